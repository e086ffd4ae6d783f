"""What the Pub/Sub service accepts: names, sizes, ranges. Broken rules become the status codes of the service.

The limits are those of https://cloud.google.com/pubsub/quotas and of the API reference (google.pubsub.v1).
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import grpc

from connectors.testing.pubsub.model.filter import parse_filter

__all__ = [
    "DELETED_TOPIC",
    "MAX_ACK_DEADLINE_SECONDS",
    "MAX_PULL_BYTES",
    "MAX_PULL_MESSAGES",
    "ProtoMessage",
    "StatusError",
    "check_ack_deadline",
    "check_dead_letter_policy",
    "check_modified_deadline",
    "check_name",
    "check_publish",
    "check_retention",
    "check_subscription",
    "check_topic",
]

ProtoMessage: TypeAlias = Any
"""A raw protobuf message of google.pubsub.v1; the client library ships no stubs for them."""

DELETED_TOPIC = "_deleted-topic_"
"""What a subscription names as its topic after that was deleted."""
MAX_PULL_MESSAGES = 1000
MAX_PULL_BYTES = 10_000_000
MAX_ACK_DEADLINE_SECONDS = 600

_MIN_ACK_DEADLINE_SECONDS = 10
_MAX_PUBLISH_MESSAGES = 1000
_MAX_PUBLISH_BYTES = 10_000_000
_MAX_ATTRIBUTES = 100
_MAX_ATTRIBUTE_KEY_BYTES = 256
_MAX_ATTRIBUTE_VALUE_BYTES = 1024
_MAX_ORDERING_KEY_BYTES = 1024
_MIN_RETENTION_SECONDS = 600
_MIN_ATTEMPTS = 5
_MAX_ATTEMPTS = 100
_MAX_RETENTION_SECONDS = 31 * 86_400

_NAME = re.compile(r"projects/[^/]+/(topics|subscriptions|snapshots)/(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
_SUBSCRIPTION_FIELDS = {
    "name",
    "topic",
    "push_config",
    "ack_deadline_seconds",
    "retain_acked_messages",
    "message_retention_duration",
    "labels",
    "enable_message_ordering",
    "enable_exactly_once_delivery",
    "expiration_policy",
    "filter",
    "dead_letter_policy",
    # Output only: a client may send back what it got; the server sets them itself.
    "detached",
    "state",
    "topic_message_retention_duration",
}
_TOPIC_FIELDS = {
    "name",
    "labels",
    "message_storage_policy",
    "kms_key_name",
    "message_retention_duration",
    "satisfies_pzs",
    "state",
}


class StatusError(Exception):
    """Raised to end a call, or a stream, with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str, details: bytes = b"") -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.details = details
        """A serialised ``google.rpc.Status`` for the trailers; empty for none."""


def _invalid(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)


def check_name(name: str, kind: str) -> None:
    """Raise INVALID_ARGUMENT unless ``name`` is ``projects/P/KIND/ID``; ``kind`` such as ``topics``."""
    match = _NAME.fullmatch(name)
    if match is None or match[1] != kind:
        message = f"Invalid [{kind}] name: (name={name})"
        raise _invalid(message)


def check_ack_deadline(seconds: int, field: str = "ack_deadline_seconds") -> None:
    """Raise INVALID_ARGUMENT unless a deadline is 10 to 600 seconds."""
    if not _MIN_ACK_DEADLINE_SECONDS <= seconds <= MAX_ACK_DEADLINE_SECONDS:
        message = f"{field} must be between {_MIN_ACK_DEADLINE_SECONDS} and {MAX_ACK_DEADLINE_SECONDS}, not {seconds}."
        raise _invalid(message)


def check_modified_deadline(seconds: int) -> None:
    """Raise INVALID_ARGUMENT unless the deadline of a delivery is moved to 0 (a nack) to 600 seconds."""
    if not 0 <= seconds <= MAX_ACK_DEADLINE_SECONDS:
        message = f"A modified ack deadline must be between 0 and {MAX_ACK_DEADLINE_SECONDS}, not {seconds}."
        raise _invalid(message)


def check_retention(seconds: int) -> None:
    """Raise INVALID_ARGUMENT unless a retention is 10 minutes to 31 days."""
    if not _MIN_RETENTION_SECONDS <= seconds <= _MAX_RETENTION_SECONDS:
        message = (
            f"message_retention_duration must be between {_MIN_RETENTION_SECONDS} and {_MAX_RETENTION_SECONDS} "
            f"seconds, not {seconds}."
        )
        raise _invalid(message)


def check_subscription(config: ProtoMessage) -> None:
    """Check a ``Subscription`` that is to be created.

    Raises:
        StatusError: INVALID_ARGUMENT for a value outside its range; UNIMPLEMENTED for a feature that this server
            does not have: it would take it and behave otherwise.
    """
    check_name(config.name, "subscriptions")
    check_name(config.topic, "topics")
    _refuse_unknown(config, _SUBSCRIPTION_FIELDS)
    if config.push_config.ListFields():
        raise StatusError(grpc.StatusCode.UNIMPLEMENTED, "This server has no push subscriptions.")
    if config.ack_deadline_seconds:
        check_ack_deadline(config.ack_deadline_seconds)
    if config.HasField("message_retention_duration"):
        check_retention(config.message_retention_duration.seconds)
    if config.HasField("dead_letter_policy"):
        check_dead_letter_policy(config.dead_letter_policy)
    try:
        parse_filter(config.filter)
    except ValueError as error:
        raise _invalid(str(error)) from None


def check_dead_letter_policy(policy: ProtoMessage) -> None:
    """Raise INVALID_ARGUMENT unless a policy names a topic and 5 to 100 attempts (0 stands for 5)."""
    check_name(policy.dead_letter_topic, "topics")
    attempts = policy.max_delivery_attempts
    if attempts and not _MIN_ATTEMPTS <= attempts <= _MAX_ATTEMPTS:
        message = f"max_delivery_attempts must be between {_MIN_ATTEMPTS} and {_MAX_ATTEMPTS}, not {attempts}."
        raise _invalid(message)


def check_topic(config: ProtoMessage) -> None:
    """Check a ``Topic`` that is to be created; raises as `check_subscription` does."""
    check_name(config.name, "topics")
    _refuse_unknown(config, _TOPIC_FIELDS)
    if config.HasField("message_retention_duration"):
        check_retention(config.message_retention_duration.seconds)


def _refuse_unknown(config: ProtoMessage, known: set[str]) -> None:
    for field, _ in config.ListFields():
        if field.name not in known:
            message = f"This server does not support the field {field.name}."
            raise StatusError(grpc.StatusCode.UNIMPLEMENTED, message)


def check_publish(request: ProtoMessage) -> None:
    """Raise INVALID_ARGUMENT when a ``PublishRequest`` is empty, too large, or holds a message that is not legal."""
    if not request.messages:
        raise _invalid("The request has no messages.")
    if len(request.messages) > _MAX_PUBLISH_MESSAGES:
        message = (
            f"The value for message_count is too large. You passed {len(request.messages)} in the request, "
            f"but the maximum value is {_MAX_PUBLISH_MESSAGES}."
        )
        raise _invalid(message)
    size = request.ByteSize()
    if size > _MAX_PUBLISH_BYTES:
        message = f"Request payload size exceeds the limit: {size} bytes, the limit is {_MAX_PUBLISH_BYTES}."
        raise _invalid(message)
    ordering_key = request.messages[0].ordering_key
    for message in request.messages:
        if message.ordering_key != ordering_key:
            raise _invalid("All messages of a publish request must have the same ordering key, or none.")
        if not message.data and not message.attributes:
            raise _invalid("Some messages are empty: a message needs data or at least one attribute.")
        if message.attributes:
            _check_attributes(message.attributes)
    if len(ordering_key.encode()) > _MAX_ORDERING_KEY_BYTES:
        message = f"An ordering key has at most {_MAX_ORDERING_KEY_BYTES} bytes."
        raise _invalid(message)


def _check_attributes(attributes: ProtoMessage) -> None:
    if len(attributes) > _MAX_ATTRIBUTES:
        message = f"A message has at most {_MAX_ATTRIBUTES} attributes, not {len(attributes)}."
        raise _invalid(message)
    for key, value in attributes.items():
        # Google's clients put a trace context under keys that begin with googclient_.
        is_reserved = key.startswith("goog") and not key.startswith("googclient_")
        if not key or is_reserved or len(key.encode()) > _MAX_ATTRIBUTE_KEY_BYTES:
            message = (
                f"Invalid attribute key {key[:40]!r}: 1 to {_MAX_ATTRIBUTE_KEY_BYTES} bytes, not starting with goog."
            )
            raise _invalid(message)
        if len(value.encode()) > _MAX_ATTRIBUTE_VALUE_BYTES:
            message = f"The value of attribute {key!r} has more than {_MAX_ATTRIBUTE_VALUE_BYTES} bytes."
            raise _invalid(message)
