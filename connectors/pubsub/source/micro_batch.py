"""What is done before a query fetches, and what its fetchers have to know.

A subscription is read, created where the options ask for that, and moved; how long ids are stored follows from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import AccessDeniedError, ConnectorError, OptionError, SourceGoneError, declared_action
from connectors.pubsub.client.client import PubSubClient, SubscriptionInfo
from connectors.pubsub.options.client import ServiceAccount
from connectors.pubsub.source.fetcher import PubSubFetchSettings
from connectors.spool.fetching.messages import to_json
from connectors.spool.source.connector import Feed, SpoolStart

if TYPE_CHECKING:
    from connectors.pubsub.options.source import PubSubReadOptions

_log = logging.getLogger(__name__)
_CREATION_POLL_SECONDS: Final = 0.5
_LONGEST_RETENTION_SECONDS: Final = 31 * 86400.0
"""The longest retention that Pub/Sub offers, for subscriptions and for topics."""


def prepared_feeds(options: PubSubReadOptions, start: SpoolStart) -> list[Feed]:
    """Create what is absent and move the subscriptions, as the options ask; return what is fetched of each."""
    alone = [options.alone(subscription) for subscription in options.subscriptions]
    with PubSubClient(options.transport, options.credentials) as client:
        states = [ensure_subscription(client, one, spool_is_new=start.is_new) for one in alone]
        _seek(client, options, start)
    for warning in (warning for state in states for warning in state.warnings):
        _log.warning("%s", warning)
    return [feed_of(one, state.info, state.horizon) for one, state in zip(alone, states, strict=True)]


def external_feeds(options: PubSubReadOptions) -> list[Feed]:
    """Return what is fetched of each subscription outside of the query, which creates and moves them."""
    alone = [options.alone(subscription) for subscription in options.subscriptions]
    return [feed_of(one, _read_once_created(one)) for one in alone]


def _seek(client: PubSubClient, options: PubSubReadOptions, start: SpoolStart) -> None:
    def move(wanted: Mapping[str, Any]) -> None:
        for subscription in options.subscriptions:
            if "snapshot" in wanted:
                client.seek(subscription, snapshot=wanted["snapshot"])
            elif "timestamp" in wanted:
                client.seek(subscription, microseconds=wanted["timestamp"])

    if start.seek(options.seek, move):
        _log.warning(
            "[PUBSUB_SOUGHT] %s was moved, as %s say. Messages that it delivers again give rows again.",
            ", ".join(options.subscriptions),
            ", ".join(f"{name}={value}" for name, value in sorted(options.seek.items())) or "earlier options",
        )


def read_subscription(options: PubSubReadOptions) -> SubscriptionInfo | None:
    """Read a subscription that can be pulled from, and log its warnings; None when the role for that is missing."""
    with PubSubClient(options.transport, options.credentials, outage_rule=options.outage_rule) as client:
        try:
            info = client.get_subscription(options.subscription)
        except AccessDeniedError:
            return None
    info.check_readable()
    for warning in info.warnings:
        _log.warning("%s", warning)
    return info


def feed_of(options: PubSubReadOptions, info: SubscriptionInfo | None, horizon: float = 0.0) -> Feed:
    """Return what is fetched of a subscription; `info` is None if the role to read the subscription is missing."""
    if info is not None:
        require_one_fetcher(options, info)
    # A short deadline redelivers the messages of a crashed fetcher soon; exactly-once delivery asks for 60 s.
    deadline = 60 if info is None or info.exactly_once_delivery else info.ack_deadline_seconds
    credentials = options.credentials
    settings = PubSubFetchSettings(
        subscription=options.subscription,
        transport=options.transport,
        credentials_file=str(credentials) if isinstance(credentials, Path) else None,
        service_account=credentials if isinstance(credentials, ServiceAccount) else None,
        credential_provider=options.credential_provider,
        streams=options.streams,
        ack_deadline_seconds=min(max(deadline, 10), 600),
        max_outstanding_bytes=options.max_outstanding_bytes,
        ordered=info is None or info.message_ordering,
        dedup_attribute=options.dedup_attribute or "",
    )
    return Feed(to_json(settings), horizon, settings.ordered, options.seek)


def _read_once_created(options: PubSubReadOptions) -> SubscriptionInfo | None:
    """Read a subscription; with ``topicId`` the query creates one that is absent, after its spool."""
    end = time.monotonic() + options.max_reader_age
    while True:
        try:
            return read_subscription(options)
        except SourceGoneError as error:
            may_come = options.topic is not None and error.code == "PUBSUB_SUBSCRIPTION_NOT_FOUND"
            if not may_come or time.monotonic() >= end:
                raise
        time.sleep(_CREATION_POLL_SECONDS)


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

    For a used spool it is created only with ``failOnDataLoss=false``, with a warning: messages that came between the
    deletion of the old one and the creation of the new one are lost. Otherwise, or if it cannot be pulled from, raises
    SourceGoneError or OptionError.
    """
    try:
        info, created = client.get_subscription(options.subscription), False
    except AccessDeniedError as error:
        return _unreadable(options, error)
    except SourceGoneError:
        info, created = _create(client, options, spool_is_new=spool_is_new), True
    info.check_readable()
    if not info.topic_is_deleted:
        require_topic(options, info)
    warnings = list(info.warnings)
    if created and not spool_is_new:
        warnings.append(
            f"[PUBSUB_SUBSCRIPTION_RECREATED] The subscription {info.name} was missing and was created again, because "
            "failOnDataLoss is false. Messages that it had not delivered, and those published until now, are lost."
        )
    horizon, more = _horizon(client, options, info)
    return SubscriptionState(info, horizon, (*warnings, *more))


def require_topic(options: PubSubReadOptions, info: SubscriptionInfo) -> None:
    if options.topic is not None and info.topic != options.topic:
        raise OptionError(
            "PUBSUB_TOPIC_MISMATCH",
            f"The subscription belongs to the topic {info.topic}, but the option topicId is {options.topic}",
            info.name,
        )


def require_one_fetcher(options: PubSubReadOptions, info: SubscriptionInfo) -> None:
    """Refuse several fetchers of a subscription with message ordering: one process keeps the order (rule R3)."""
    if info.message_ordering and options.fetchers > 1:
        raise OptionError(
            "PUBSUB_ORDERED_ONE_FETCHER",
            f"The option fetchers is {options.fetchers}, but one process fetches a subscription with message ordering",
            info.name,
        )


def _create(client: PubSubClient, options: PubSubReadOptions, *, spool_is_new: bool) -> SubscriptionInfo:
    name = options.subscription
    if not spool_is_new and options.fail_on_data_loss:
        raise SourceGoneError(
            "PUBSUB_SUBSCRIPTION_NOT_FOUND",
            "The subscription that filled this spool no longer exists. Messages that it had not delivered are lost",
            name,
            "If that is acceptable, start with a new spool and a new checkpoint. If the query has no other "
            "subscription, you can instead set failOnDataLoss=false and topicId: the query then creates the "
            "subscription again.",
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
            f"[PUBSUB_DEDUP_HORIZON_SHORT] dedupHorizon is {seconds:g} s, but the subscription {info.name} retains "
            f"messages for {retention:g} s. A message redelivered after dedupHorizon gives a second row. "
            f"{declared_action('PUBSUB_DEDUP_HORIZON_SHORT')}"
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
