"""What answers of the service say, as our own values."""

from __future__ import annotations

from typing import Any, Final

from connectors.pubsub.messages import wire_message
from connectors.pubsub.subscription import SubscriptionInfo

__all__ = ["duration", "subscription_info"]

# What the service uses for a subscription that names no retention:
# https://docs.cloud.google.com/pubsub/docs/subscription-properties
_DEFAULT_RETENTION_SECONDS: Final = 7 * 86400.0


def duration(message: Any, field: str) -> float | None:
    """A duration field of a message in seconds; None when it is not set."""
    if not message.HasField(field):
        return None
    value = getattr(message, field)
    return float(value.seconds + value.nanos / 1e9)


def subscription_info(answer: bytes) -> SubscriptionInfo:
    """What a serialised ``Subscription`` says."""
    subscription = wire_message("Subscription").FromString(answer)
    delivery = "pull"
    for field, destination in (
        ("push_config", subscription.push_config.push_endpoint),
        ("bigquery_config", "BigQuery"),
        ("cloud_storage_config", "Cloud Storage"),
        ("bigtable_config", "Bigtable"),
    ):
        if subscription.HasField(field) and destination:
            delivery = destination
    return SubscriptionInfo(
        name=subscription.name,
        topic=subscription.topic,
        ack_deadline_seconds=subscription.ack_deadline_seconds,
        retention_seconds=duration(subscription, "message_retention_duration") or _DEFAULT_RETENTION_SECONDS,
        topic_retention_seconds=duration(subscription, "topic_message_retention_duration"),
        message_ordering=subscription.enable_message_ordering,
        exactly_once_delivery=subscription.enable_exactly_once_delivery,
        detached=subscription.detached,
        delivery=delivery,
        filter=subscription.filter,
        dead_letter_topic=subscription.dead_letter_policy.dead_letter_topic,
    )
