"""A subscription: whether it can be read, when it is created, how long its ids are stored, when it ends.

A subscription whose topic was deleted delivers what it holds (seen on the official emulator, and in
reference/pubsub.md section 2). So its query stops only when nothing comes any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connectors.core.errors import AccessDeniedError, ConnectorError, OptionError, SourceGoneError
from connectors.pubsub.client.client import PubSubClient, SubscriptionInfo
from connectors.pubsub.client.errors import topic_deleted
from connectors.pubsub.source.streaming_pull import ServiceHealth
from connectors.spool.fetching.target import FetchContext

if TYPE_CHECKING:
    from connectors.pubsub.options.source import PubSubReadOptions

__all__ = [
    "SubscriptionMonitor",
    "SubscriptionState",
    "ensure_subscription",
    "require_one_fetcher",
    "require_readable",
    "require_topic",
]

_LONGEST_RETENTION_SECONDS: Final = 31 * 86400.0
"""The longest retention that Pub/Sub offers, for subscriptions and for topics."""

_RETRY_SECONDS: Final = 1.0
_QUIET_POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """A subscription that can be pulled from, how many seconds its ids are stored, and warnings to be logged once.

    `info` is None when the role to read it is missing; then it has to be fetched as one with message ordering.
    """

    info: SubscriptionInfo | None
    horizon: float
    warnings: tuple[str, ...]


def ensure_subscription(client: PubSubClient, options: PubSubReadOptions, *, spool_is_new: bool) -> SubscriptionState:
    """Read the subscription, and create it where the options ask for that and nothing is lost by it.

    For a used spool it is created only with ``failOnDataLoss=false``, with a warning: messages between the end of the
    one that was deleted and the beginning of the other are lost. Else, and if it cannot be pulled from,
    SourceGoneError or OptionError is raised.
    """
    try:
        info, created = client.get_subscription(options.subscription), False
    except AccessDeniedError as error:
        return _unreadable(options, error)
    except SourceGoneError:
        info, created = _create(client, options, spool_is_new=spool_is_new), True
    require_readable(info)
    if not info.topic_is_deleted:
        require_topic(options, info)
    warnings = list(info.warnings)
    if created and not spool_is_new:
        warnings.append(
            f"[PUBSUB_SUBSCRIPTION_RECREATED] The subscription {info.name} was absent and was created again, because "
            "failOnDataLoss is false: what it had not delivered, and what was published until now, is lost."
        )
    horizon, more = _horizon(client, options, info)
    return SubscriptionState(info, horizon, (*warnings, *more))


def require_readable(info: SubscriptionInfo) -> None:
    """Refuse a subscription that cannot be pulled from; one whose topic was deleted still delivers what it holds."""
    if info.detached:
        raise SourceGoneError(
            "PUBSUB_SUBSCRIPTION_DETACHED",
            "The subscription was detached from its topic",
            info.name,
            "Create another subscription, and start with a new spool and a new checkpoint.",
        )
    if info.delivery != "pull":
        raise OptionError(
            "PUBSUB_SUBSCRIPTION_NOT_PULL",
            f"The subscription delivers by itself to {info.delivery}, so nothing can be pulled from it",
            info.name,
            "Give the option subscriptionId a pull subscription.",
        )


def require_topic(options: PubSubReadOptions, info: SubscriptionInfo) -> None:
    """Refuse a subscription of another topic than ``topicId``."""
    if options.topic is not None and info.topic != options.topic:
        raise OptionError(
            "PUBSUB_TOPIC_MISMATCH",
            f"The subscription belongs to the topic {info.topic}, and the option topicId says {options.topic}",
            info.name,
            "Leave topicId out, or give the topic that the subscription belongs to.",
        )


def require_one_fetcher(options: PubSubReadOptions, info: SubscriptionInfo) -> None:
    """Refuse several fetchers of a subscription with message ordering: one process keeps the order (rule R3)."""
    if info.message_ordering and options.fetchers > 1:
        raise OptionError(
            "PUBSUB_ORDERED_ONE_FETCHER",
            f"The option fetchers is {options.fetchers}, and one process fetches a subscription with message ordering",
            info.name,
            "Leave fetchers out, or raise streams.",
        )


def _create(client: PubSubClient, options: PubSubReadOptions, *, spool_is_new: bool) -> SubscriptionInfo:
    name = options.subscription
    if not spool_is_new and options.fail_on_data_loss:
        raise SourceGoneError(
            "PUBSUB_SUBSCRIPTION_NOT_FOUND",
            "The subscription that this spool was filled from does not exist any more, and what it had not delivered "
            "is lost",
            name,
            "If that is acceptable, start with a new spool and a new checkpoint; or, if the query has no other "
            "subscription, set failOnDataLoss=false and topicId to go on with one that is created again.",
        )
    if options.topic is None:
        short = name.rpartition("/")[2]
        raise SourceGoneError(
            "PUBSUB_SUBSCRIPTION_NOT_FOUND",
            "The subscription does not exist",
            name,
            "Check the options projectId and subscriptionId, give the option topicId to have it created, or create "
            f"it: gcloud pubsub subscriptions create {short} --project={options.project} --topic=TOPIC",
        )
    try:
        return client.create_subscription(name, options.topic)
    except ConnectorError as error:
        if error.code != "PUBSUB_SUBSCRIPTION_EXISTS":
            raise
        # Someone else was faster, or the response to our own call was lost.
        return client.get_subscription(name)


def _horizon(client: PubSubClient, options: PubSubReadOptions, info: SubscriptionInfo) -> tuple[float, Sequence[str]]:
    """Return how many seconds ids are stored, the larger of both retentions or the option (rule R8), and warnings."""
    seconds, retention, topic_retention = options.dedup_horizon, info.retention_seconds, info.topic_retention_seconds
    if seconds is not None:
        warning = (
            f"[PUBSUB_DEDUP_HORIZON_SHORT] dedupHorizon is {seconds:g} s, and the subscription {info.name} retains "
            f"messages for {retention:g} s: a message that is redelivered later than dedupHorizon gives a second row."
        )
        return seconds, [warning] if retention > seconds else []
    if topic_retention is None and not info.topic_is_deleted:
        try:
            topic_retention = client.get_topic_retention(info.topic)
        except AccessDeniedError as error:
            return _LONGEST_RETENTION_SECONDS, [_longest_warning(error)]
        except SourceGoneError:
            # It was deleted since the subscription was read, and a seek cannot bring back what it retained.
            topic_retention = None
    return max(retention, topic_retention or 0.0), []


def _longest_warning(error: AccessDeniedError) -> str:
    return (
        f"[PUBSUB_RETENTION_UNREADABLE] {error.what} ({error.where}). Ids are stored for 31 days, the longest "
        f"retention there is. {error.action} Or set dedupHorizon."
    )


def _unreadable(options: PubSubReadOptions, error: AccessDeniedError) -> SubscriptionState:
    if options.dedup_horizon is None:
        return SubscriptionState(None, _LONGEST_RETENTION_SECONDS, (_longest_warning(error),))
    warning = (
        f"[PUBSUB_SUBSCRIPTION_UNREADABLE] {error.what} ({error.where}). Whether its messages are ordered is unknown, "
        f"so one process fetches them. {error.action}"
    )
    return SubscriptionState(None, options.dedup_horizon, (warning,))


class SubscriptionMonitor:
    """Reads the subscription when a stream was opened, and now and then: a deleted topic shows only there.

    Only the first fetcher reads it `every_seconds`. A subscription without a topic counts as empty when nothing came
    for `quiet_seconds`: as long as a fetcher that died may have held messages. `response_awaited` says whether some
    stream is open whose health is unknown, `reading` whether all are open and there is room for what they bring.
    """

    def __init__(
        self,
        read: Callable[[], SubscriptionInfo],
        health: ServiceHealth,
        context: FetchContext,
        *,
        every_seconds: float,
        quiet_seconds: float,
        response_awaited: Callable[[], bool],
        reading: Callable[[], bool],
    ) -> None:
        self._read = read
        self._health = health
        self._context = context
        self._every = every_seconds if context.index == 0 else threading.TIMEOUT_MAX
        self._quiet_seconds = quiet_seconds
        self._response_awaited = response_awaited
        self._reading = reading
        self._closed = threading.Event()
        self._gone: SourceGoneError | None = None
        self._quiet_since = 0.0

    def close(self) -> None:
        """Make `run` return soon."""
        self._closed.set()
        self._health.check_wanted.set()

    def run(self) -> None:
        """Check until it is closed, or nothing more will come."""
        next_check = time.monotonic() + self._every
        while True:
            pause = min(max(next_check - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
            wanted = self._health.check_wanted.wait(pause if self._gone is None else _QUIET_POLL_SECONDS)
            self._health.check_wanted.clear()
            if self._closed.is_set() or self._is_drained():
                return
            if wanted and not self._response_awaited():
                continue
            if wanted or time.monotonic() >= next_check:
                if not self._check():
                    return
                next_check = time.monotonic() + self._every

    def _check(self) -> bool:
        """Read the subscription once; return whether to go on."""
        try:
            info = self._read()
            require_readable(info)
            if info.topic_is_deleted and self._gone is None:
                self._quiet_since, self._gone = time.monotonic(), topic_deleted(info.name)
        except AccessDeniedError:
            # A response, and no reason to stop: pulling needs another role than reading the subscription.
            self._health.responded()
            self._every = threading.TIMEOUT_MAX
        except ConnectorError as error:
            if not error.transient:
                self._context.fail(error)
                return False
            self._health.error = error
            self._health.check_wanted.set()
            self._closed.wait(_RETRY_SECONDS)
        else:
            self._health.responded()
        self._context.changed()
        return True

    def _is_drained(self) -> bool:
        """Whether the topic is gone and nothing came for long enough; then the query stops."""
        if self._gone is None:
            return False
        now = time.monotonic()
        if not self._reading():
            self._quiet_since = now
        if now - max(self._quiet_since, self._health.last_delivery or 0.0) < self._quiet_seconds:
            return False
        self._context.fail(self._gone)
        return True
