"""All topics and subscriptions of the Pub/Sub server: a pure state machine, as `pubsub_subscription` is.

Every method that a client can call raises `StatusError` with the code that the service gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import grpc
from google.pubsub_v1 import types

from connectors.testing.clock import SECOND
from connectors.testing.pubsub.faults.events import EventKind
from connectors.testing.pubsub.model.messages import Entry, Machinery, Message
from connectors.testing.pubsub.model.rules import (
    ProtoMessage,
    StatusError,
    check_ack_deadline,
    check_dead_letter_policy,
    check_name,
    check_publish,
    check_retention,
    check_subscription,
    check_topic,
)
from connectors.testing.pubsub.model.snapshots import Snapshots
from connectors.testing.pubsub.model.subscription import Subscription
from connectors.testing.pubsub.wire import AckIds, MessageIds, frame_message

__all__ = ["PubSubState"]

_DEFAULT_ACK_DEADLINE_SECONDS = 10
_DEFAULT_RETENTION_SECONDS = 7 * 86_400
_DEFAULT_EXPIRATION_SECONDS = 31 * 86_400
_MILLISECOND = 1_000_000
_DEFAULT_PAGE = 1000

_MUTABLE_TOPIC_FIELDS = {"labels", "message_retention_duration", "message_storage_policy", "kms_key_name"}
_MUTABLE_SUBSCRIPTION_FIELDS = {
    "ack_deadline_seconds",
    "dead_letter_policy",
    "enable_exactly_once_delivery",
    "expiration_policy",
    "labels",
    "message_retention_duration",
    "push_config",
    "retain_acked_messages",
}


@dataclass
class _Topic:
    config: ProtoMessage
    subscriptions: list[Subscription] = field(default_factory=list)


class PubSubState:
    """Topics, subscriptions and ids; not thread-safe.

    Args:
        machinery: what all subscriptions share.
        message_ids: where the ids of messages come from.
        make_wake: gives, for each new subscription, the function that wakes its waiting consumers.
    """

    def __init__(
        self, machinery: Machinery, message_ids: MessageIds, make_wake: Callable[[str], Callable[[], None]]
    ) -> None:
        self.machinery = machinery
        self.ack_ids = AckIds()
        self._message_ids = message_ids
        self._make_wake = make_wake
        self._topics: dict[str, _Topic] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self.snapshots = Snapshots()
        machinery.forward = self._forward

    # -- topics --

    def create_topic(self, config: ProtoMessage) -> ProtoMessage:
        """Add a topic, and give its full settings."""
        check_topic(config)
        if config.name in self._topics:
            raise StatusError(grpc.StatusCode.ALREADY_EXISTS, "Topic already exists")
        kept = _copy(config)
        kept.state = types.Topic.State.ACTIVE
        self._topics[kept.name] = _Topic(kept)
        return _copy(kept)

    def get_topic(self, name: str) -> ProtoMessage:
        """The settings of a topic."""
        return _copy(self._topic(name).config)

    def update_topic(self, config: ProtoMessage, paths: Sequence[str]) -> ProtoMessage:
        """Change the named fields of a topic."""
        topic = self._topic(config.name)
        _check_mask(topic.config, paths, _MUTABLE_TOPIC_FIELDS)
        if "message_retention_duration" in paths and config.HasField("message_retention_duration"):
            check_retention(config.message_retention_duration.seconds)
        _copy_fields(config, topic.config, paths)
        for subscription in topic.subscriptions:
            _copy_topic_retention(topic.config, subscription.config)
        return _copy(topic.config)

    def delete_topic(self, name: str) -> None:
        """Remove a topic; its subscriptions keep their backlog and name ``_deleted-topic_`` as their topic."""
        topic = self._topic(name)
        del self._topics[name]
        for subscription in topic.subscriptions:
            subscription.lose_topic()

    def list_topics(self, project: str, page_size: int, page_token: str) -> tuple[list[ProtoMessage], str]:
        """A page of the topics of ``projects/P``, by name, and the token of the next page."""
        names, token = _page(_names_in(project, self._topics), page_size, page_token)
        return [_copy(self._topics[name].config) for name in names], token

    def list_topic_subscriptions(self, name: str, page_size: int, page_token: str) -> tuple[list[str], str]:
        """A page of the names of the subscriptions of a topic, and the token of the next page."""
        names = [subscription.name for subscription in self._topic(name).subscriptions]
        return _page(names, page_size, page_token)

    def publish(self, now: int, request: ProtoMessage) -> list[str]:
        """Give ids to the messages of a ``PublishRequest``, and add them to every subscription of the topic."""
        topic = self._topic(request.topic)
        check_publish(request)
        published_ns = now - now % _MILLISECOND
        messages = [self._stamp(message, published_ns) for message in request.messages]
        ids = [message.id for message in messages]
        self.machinery.events.record(EventKind.PUBLISH, now, ids, detail=request.topic)
        for subscription in topic.subscriptions:
            subscription.publish(now, messages)
        self.snapshots.published(request.topic, messages)
        return ids

    def _forward(self, now: int, entry: Entry, subscription: str) -> bool:
        """Publish what was handed out too often to the dead-letter topic, with attributes that say where it was."""
        config = self._subscriptions[subscription].config
        if config.dead_letter_policy.dead_letter_topic not in self._topics:
            return False
        received = types.ReceivedMessage.pb().FromString(entry.message.framed)
        attributes = {
            "CloudPubSubDeadLetterSourceDeliveryCount": str(entry.deliveries),
            "CloudPubSubDeadLetterSourceSubscription": config.name.rpartition("/")[2],
            "CloudPubSubDeadLetterSourceSubscriptionProject": config.name.split("/")[1],
            "CloudPubSubDeadLetterSourceTopicPublishTime": received.message.publish_time.ToJsonString(),
        }
        forwarded = types.PubsubMessage.pb()(
            data=received.message.data,
            attributes=dict(received.message.attributes) | attributes,
            ordering_key=received.message.ordering_key,
        )
        topic = config.dead_letter_policy.dead_letter_topic
        self.publish(now, types.PublishRequest.pb()(topic=topic, messages=[forwarded]))
        return True

    def _stamp(self, message: ProtoMessage, published_ns: int) -> Message:
        message.message_id = self._message_ids.take()
        message.publish_time.seconds = published_ns // SECOND
        message.publish_time.nanos = published_ns % SECOND
        serialized = message.SerializeToString()
        return Message(
            message.message_id,
            published_ns,
            message.ordering_key,
            frame_message(serialized),
            len(serialized),
            dict(message.attributes),
        )

    def _topic(self, name: str) -> _Topic:
        check_name(name, "topics")
        topic = self._topics.get(name)
        if topic is None:
            message = f"Topic not found (resource={name.rpartition('/')[2]})."
            raise StatusError(grpc.StatusCode.NOT_FOUND, message)
        return topic

    # -- subscriptions --

    def create_subscription(self, config: ProtoMessage) -> ProtoMessage:
        """Add a subscription, which sees what is published from now on, and give its full settings."""
        check_subscription(config)
        if config.name in self._subscriptions:
            raise StatusError(grpc.StatusCode.ALREADY_EXISTS, "Subscription already exists")
        topic = self._topics.get(config.topic)
        if topic is None:
            raise StatusError(grpc.StatusCode.NOT_FOUND, "Subscription topic does not exist")
        kept = _copy(config)
        kept.detached = False
        kept.state = types.Subscription.State.ACTIVE
        kept.ack_deadline_seconds = kept.ack_deadline_seconds or _DEFAULT_ACK_DEADLINE_SECONDS
        kept.push_config.SetInParent()
        _set_defaults(kept)
        _copy_topic_retention(topic.config, kept)
        subscription = Subscription(kept, self.machinery, self._make_wake(kept.name))
        self._subscriptions[kept.name] = subscription
        topic.subscriptions.append(subscription)
        return _copy(kept)

    def get_subscription(self, name: str) -> ProtoMessage:
        """The settings of a subscription, also of a detached one."""
        return _copy(self.subscription(name).config)

    def update_subscription(self, now: int, config: ProtoMessage, paths: Sequence[str]) -> ProtoMessage:
        """Change the named fields of a subscription."""
        subscription = self.subscription(config.name)
        _check_mask(subscription.config, paths, _MUTABLE_SUBSCRIPTION_FIELDS)
        changed = _copy(subscription.config)
        _copy_fields(config, changed, paths)
        if changed.push_config.ListFields():
            raise StatusError(grpc.StatusCode.UNIMPLEMENTED, "This server has no push subscriptions.")
        changed.ack_deadline_seconds = changed.ack_deadline_seconds or _DEFAULT_ACK_DEADLINE_SECONDS
        check_ack_deadline(changed.ack_deadline_seconds)
        _set_defaults(changed)
        check_retention(changed.message_retention_duration.seconds)
        if changed.HasField("dead_letter_policy"):
            check_dead_letter_policy(changed.dead_letter_policy)
        subscription.config = changed
        subscription.check_retention(now)
        return _copy(changed)

    def delete_subscription(self, now: int, name: str) -> None:
        """Remove a subscription and its backlog; open streams end with NOT_FOUND."""
        subscription = self.subscription(name)
        del self._subscriptions[name]
        self._leave_topic(subscription)
        subscription.close(now, _subscription_not_found(name))

    def detach_subscription(self, now: int, name: str) -> None:
        """Drop the backlog of a subscription for good; open streams end with FAILED_PRECONDITION."""
        subscription = self.subscription(name)
        self._leave_topic(subscription)
        subscription.config.detached = True
        message = f"Subscription is detached (resource={name.rpartition('/')[2]})."
        subscription.close(now, StatusError(grpc.StatusCode.FAILED_PRECONDITION, message))

    def seek(self, now: int, request: ProtoMessage) -> None:
        """Do what a ``SeekRequest`` says."""
        subscription = self.attached_subscription(request.subscription)
        if request.HasField("snapshot"):
            messages = self.snapshots.messages(request.snapshot, subscription)
            subscription.seek(now, messages, request.snapshot)
        elif request.HasField("time"):
            moment = request.time.ToNanoseconds()
            subscription.seek(now, subscription.kept_since(now, moment), str(moment))
        else:
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, "Seek needs a time or a snapshot.")

    def list_subscriptions(self, project: str, page_size: int, page_token: str) -> tuple[list[ProtoMessage], str]:
        """A page of the subscriptions of ``projects/P``, by name, and the token of the next page."""
        names, token = _page(_names_in(project, self._subscriptions), page_size, page_token)
        return [_copy(self._subscriptions[name].config) for name in names], token

    def all_subscriptions(self) -> list[Subscription]:
        """Every subscription there is."""
        return list(self._subscriptions.values())

    def subscription(self, name: str) -> Subscription:
        """A subscription by its full name, detached or not; raises NOT_FOUND or INVALID_ARGUMENT."""
        check_name(name, "subscriptions")
        subscription = self._subscriptions.get(name)
        if subscription is None:
            raise _subscription_not_found(name)
        return subscription

    def attached_subscription(self, name: str) -> Subscription:
        """As `subscription`, for calls about messages: raises FAILED_PRECONDITION when it is detached."""
        subscription = self.subscription(name)
        if subscription.gone:
            raise subscription.gone
        return subscription

    def delivery_numbers(self, ack_ids: Iterable[str]) -> list[int]:
        """The deliveries that ack ids stand for; raises INVALID_ARGUMENT for a text that is not an ack id."""
        numbers: list[int] = []
        for ack_id in ack_ids:
            number = self.ack_ids.number(ack_id)
            if number is None:
                message = f"You have passed an invalid ack ID to the service (ack_id={ack_id[:250]})."
                raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)
            numbers.append(number)
        return numbers

    def _leave_topic(self, subscription: Subscription) -> None:
        topic = self._topics.get(subscription.config.topic)
        if topic and subscription in topic.subscriptions:
            topic.subscriptions.remove(subscription)


def _subscription_not_found(name: str) -> StatusError:
    message = f"Subscription does not exist (resource={name.rpartition('/')[2]})."
    return StatusError(grpc.StatusCode.NOT_FOUND, message)


def _copy(config: ProtoMessage) -> ProtoMessage:
    copy = type(config)()
    copy.CopyFrom(config)
    return copy


def _set_defaults(config: ProtoMessage) -> None:
    if not config.HasField("message_retention_duration"):
        config.message_retention_duration.seconds = _DEFAULT_RETENTION_SECONDS
    if not config.HasField("expiration_policy"):
        config.expiration_policy.ttl.seconds = _DEFAULT_EXPIRATION_SECONDS


def _copy_topic_retention(topic: ProtoMessage, subscription: ProtoMessage) -> None:
    subscription.ClearField("topic_message_retention_duration")
    if topic.HasField("message_retention_duration"):
        subscription.topic_message_retention_duration.CopyFrom(topic.message_retention_duration)


def _copy_fields(source: ProtoMessage, target: ProtoMessage, paths: Sequence[str]) -> None:
    part = type(source)()
    part.CopyFrom(source)
    for path in paths:
        target.ClearField(path)
    for descriptor, _ in source.ListFields():
        if descriptor.name not in paths:
            part.ClearField(descriptor.name)
    target.MergeFrom(part)


def _check_mask(config: ProtoMessage, paths: Sequence[str], mutable: set[str]) -> None:
    if not paths:
        raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, "The update_mask must contain a non-empty paths list.")
    for path in paths:
        if path not in config.DESCRIPTOR.fields_by_name:
            message = f"Invalid update_mask: {path} is not a known {config.DESCRIPTOR.name} field."
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)
        if path not in mutable:
            message = f"Invalid update_mask: the {path} field in the {config.DESCRIPTOR.name} is not mutable."
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)


def _names_in(project: str, names: Iterable[str]) -> list[str]:
    if not project.startswith("projects/") or project.count("/") != 1:
        message = f"Invalid [projects] name: (name={project})"
        raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)
    return [name for name in names if name.startswith(project + "/")]


def _page(names: Iterable[str], page_size: int, page_token: str) -> tuple[list[str], str]:
    """The names from ``page_token`` on (it is the first name of its page), and the token of the next page."""
    ordered = sorted(name for name in names if name >= page_token)
    size = min(page_size, _DEFAULT_PAGE) if page_size > 0 else _DEFAULT_PAGE
    return ordered[:size], ordered[size] if len(ordered) > size else ""
