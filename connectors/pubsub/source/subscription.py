"""The life of a subscription: what it is, whether it can be read, when it is created, how long its ids count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connectors.core.errors import AccessDeniedError, ConnectorError, OptionError, SourceGoneError
from connectors.pubsub.client.client import SubscriptionInfo

if TYPE_CHECKING:
    from connectors.pubsub.client.client import PubSubClient
    from connectors.pubsub.options.source import PubSubReadOptions

__all__ = ["DedupHorizon", "SubscriptionState", "ensure_subscription", "require_readable"]

LONGEST_RETENTION_SECONDS: Final = 31 * 86400.0
"""The longest retention that Pub/Sub offers, for subscriptions and for topics."""


@dataclass(frozen=True, slots=True)
class DedupHorizon:
    """How long the id of a message is kept.

    Attributes:
        seconds: the time.
        source: where it comes from: ``option``, ``subscription``, ``topic`` or ``unreadable``.
        warning: what the user should know, or an empty text.
    """

    seconds: float
    source: str
    warning: str = ""


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """A subscription that can be pulled from.

    Attributes:
        info: what the service tells about it; None when the role for that is missing. Then nothing is known of its
            ordering, and it has to be fetched as one with message ordering.
        created: whether it was created just now.
        horizon: how long ids are kept.
        warnings: what the user should be told once, the horizon's warning included.
    """

    info: SubscriptionInfo | None
    created: bool
    horizon: DedupHorizon
    warnings: tuple[str, ...] = ()


def ensure_subscription(client: PubSubClient, options: PubSubReadOptions, *, spool_is_new: bool) -> SubscriptionState:
    """Look at the subscription, and create it where that is asked for and loses nothing.

    It is created when absent only if ``topicId`` is given and the spool is new: messages between the end of the one
    that vanished and the beginning of another are lost. With ``failOnDataLoss=false`` it is created for a used spool
    too, with a warning.

    Args:
        client: the client to ask.
        options: the options of the stream.
        spool_is_new: whether nothing was ever fetched into the spool.

    Raises:
        SourceGoneError: it is absent and may not be created, or is detached.
        OptionError: it belongs to another topic than ``topicId``, or delivers by itself to somewhere else.
        AccessDeniedError: it has to be created, and the role for that is missing.
        CredentialsError: the credentials cannot be read or are refused.
        ServiceUnavailableError: the service did not answer within the retries.
    """
    try:
        info, created = client.get_subscription(options.subscription), False
    except AccessDeniedError as error:
        return _unreadable(options, error)
    except SourceGoneError:
        info, created = _create(client, options, spool_is_new=spool_is_new), True
    require_readable(info)
    if options.topic is not None and info.topic != options.topic and not info.topic_is_deleted:
        raise OptionError(
            "PUBSUB_TOPIC_MISMATCH",
            f"The subscription belongs to the topic {info.topic}, and the option topicId says {options.topic}",
            info.name,
            "Leave topicId out, or give the topic that the subscription belongs to.",
        )
    warnings = list(info.warnings)
    if created and not spool_is_new:
        warnings.append(
            f"[PUBSUB_SUBSCRIPTION_RECREATED] The subscription {info.name} had vanished and was created again, because "
            "failOnDataLoss is false: what it had not delivered, and what was published until now, is lost."
        )
    horizon = _horizon(client, options, info)
    if horizon.warning:
        warnings.append(horizon.warning)
    return SubscriptionState(info, created, horizon, tuple(warnings))


def require_readable(info: SubscriptionInfo) -> None:
    """Refuse a subscription that delivers nothing to a puller; also for looking again while a query runs.

    One whose topic was deleted delivers what it holds: see `SubscriptionInfo.topic_is_deleted`.

    Raises:
        SourceGoneError: it is detached.
        OptionError: it delivers by itself to somewhere else.
    """
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


def _create(client: PubSubClient, options: PubSubReadOptions, *, spool_is_new: bool) -> SubscriptionInfo:
    """Create a subscription that is absent, or say why not."""
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
        # Someone else was faster, or the answer to our own call was lost.
        return client.get_subscription(name)


def _horizon(client: PubSubClient, options: PubSubReadOptions, info: SubscriptionInfo) -> DedupHorizon:
    """Rule R8: the larger of the subscription's and the topic's retention, unless the option says otherwise."""
    if options.dedup_horizon is not None:
        return _fixed_horizon(options.dedup_horizon, info)
    topic_retention = info.topic_retention_seconds
    if topic_retention is None and not info.topic_is_deleted:
        try:
            topic_retention = client.get_topic_retention(info.topic)
        except AccessDeniedError as error:
            return _longest_horizon(error)
        except SourceGoneError:
            # It was deleted since the subscription was looked at, and what it kept can be sought no more.
            topic_retention = None
    if topic_retention is not None and topic_retention > info.retention_seconds:
        return DedupHorizon(topic_retention, "topic")
    return DedupHorizon(info.retention_seconds, "subscription")


def _fixed_horizon(seconds: float, info: SubscriptionInfo | None) -> DedupHorizon:
    if info is None or info.retention_seconds <= seconds:
        return DedupHorizon(seconds, "option")
    return DedupHorizon(
        seconds,
        "option",
        f"[PUBSUB_DEDUP_HORIZON_SHORT] dedupHorizon is {seconds:g} s, and the subscription {info.name} keeps messages "
        f"for {info.retention_seconds:g} s: a message that is redelivered later than dedupHorizon gives a second row.",
    )


def _longest_horizon(error: AccessDeniedError) -> DedupHorizon:
    return DedupHorizon(
        LONGEST_RETENTION_SECONDS,
        "unreadable",
        f"[PUBSUB_RETENTION_UNREADABLE] {error.what} ({error.where}). Ids are kept for 31 days, the longest retention "
        f"there is. {error.action} Or set dedupHorizon.",
    )


def _unreadable(options: PubSubReadOptions, error: AccessDeniedError) -> SubscriptionState:
    """The role to read the subscription is missing: it can be pulled from, with what is safe for any."""
    if options.dedup_horizon is None:
        horizon = _longest_horizon(error)
        return SubscriptionState(None, created=False, horizon=horizon, warnings=(horizon.warning,))
    warning = (
        f"[PUBSUB_SUBSCRIPTION_UNREADABLE] {error.what} ({error.where}). Whether its messages are ordered is not "
        f"known, so one process fetches them. {error.action}"
    )
    horizon = _fixed_horizon(options.dedup_horizon, None)
    return SubscriptionState(None, created=False, horizon=horizon, warnings=(warning,))
