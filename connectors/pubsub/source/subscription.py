"""A subscription: whether it can be read, when it is created, how long its ids are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connectors.core.errors import AccessDeniedError, ConnectorError, OptionError, SourceGoneError
from connectors.pubsub.client.client import PubSubClient, SubscriptionInfo

if TYPE_CHECKING:
    from connectors.pubsub.options.source import PubSubReadOptions

_LONGEST_RETENTION_SECONDS: Final = 31 * 86400.0
"""The longest retention that Pub/Sub offers, for subscriptions and for topics."""


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
        )
    if info.delivery != "pull":
        raise OptionError(
            "PUBSUB_SUBSCRIPTION_NOT_PULL",
            f"The subscription delivers by itself to {info.delivery}, so nothing can be pulled from it",
            info.name,
        )


def require_topic(options: PubSubReadOptions, info: SubscriptionInfo) -> None:
    """Refuse a subscription of another topic than ``topicId``."""
    if options.topic is not None and info.topic != options.topic:
        raise OptionError(
            "PUBSUB_TOPIC_MISMATCH",
            f"The subscription belongs to the topic {info.topic}, and the option topicId says {options.topic}",
            info.name,
        )


def require_one_fetcher(options: PubSubReadOptions, info: SubscriptionInfo) -> None:
    """Refuse several fetchers of a subscription with message ordering: one process keeps the order (rule R3)."""
    if info.message_ordering and options.fetchers > 1:
        raise OptionError(
            "PUBSUB_ORDERED_ONE_FETCHER",
            f"The option fetchers is {options.fetchers}, and one process fetches a subscription with message ordering",
            info.name,
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
