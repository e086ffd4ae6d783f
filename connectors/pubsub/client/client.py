"""Calls to the Pub/Sub service.

`PubSubClient` is one gRPC channel. Pulls and acks pass bytes through: the SDK's own subscriber, which decodes them, is
8 to 14 times slower. Nor are its types used: importing them loads all of its services, which took 0.5 s of processor
time at the start of every reader and fetcher. Every error that leaves this module is a `ConnectorError`; its
``transient`` says whether a retry can help, and its text holds no credentials.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from connectors.core.errors import ConnectorError, OptionError, SourceGoneError
from connectors.core.options.declaration import parse_options
from connectors.core.retry import OutageRule, wait_out
from connectors.pubsub import FORMAT
from connectors.pubsub.client.errors import AckFailures, RpcCall, connector_error, topic_deleted
from connectors.pubsub.options.client import (
    Credentials,
    PubSubClientOptions,
    Transport,
    client_credentials,
    connection_transport,
)

# What the service uses for a subscription that names no retention:
# https://docs.cloud.google.com/pubsub/docs/subscription-properties
_DEFAULT_RETENTION_SECONDS: Final = 7 * 86400.0

_DELETED_TOPIC: Final = "_deleted-topic_"
ONE_ATTEMPT: Final = OutageRule(0.0)
"""For callers that try again by themselves."""
_ADMIN_TIMEOUT_SECONDS: Final = 10.0
_SUBSCRIBER: Final = "/google.pubsub.v1.Subscriber/"
_SUBSCRIPTION_METHODS: Final = ("GetSubscription", "CreateSubscription", "DeleteSubscription", "Seek")

_PACKAGE: Final = "connectors.pubsub"

MESSAGES: Final = {
    "Timestamp": {"seconds": (1, "INT64"), "nanos": (2, "INT32")},
    "Duration": {"seconds": (1, "INT64"), "nanos": (2, "INT32")},
    "AttributesEntry": {"key": (1, "STRING"), "value": (2, "STRING")},
    "PubsubMessage": {
        "data": (1, "BYTES"),
        "attributes": (2, "AttributesEntry[]"),
        "message_id": (3, "STRING"),
        "publish_time": (4, "Timestamp"),
        "ordering_key": (5, "STRING"),
    },
    "ReceivedMessage": {
        "ack_id": (1, "STRING"),
        "message": (2, "PubsubMessage"),
        "delivery_attempt": (3, "INT32"),
    },
    "StreamingPullResponse": {"received_messages": (1, "ReceivedMessage[]")},
    "StreamingPullRequest": {
        "subscription": (1, "STRING"),
        "stream_ack_deadline_seconds": (5, "INT32"),
        "client_id": (6, "STRING"),
        "max_outstanding_bytes": (8, "INT64"),
    },
    "SeekRequest": {"subscription": (1, "STRING"), "time": (2, "Timestamp"), "snapshot": (3, "STRING")},
    "GetSubscriptionRequest": {"subscription": (1, "STRING")},
    "DeleteSubscriptionRequest": {"subscription": (1, "STRING")},
    "GetTopicRequest": {"topic": (1, "STRING")},
    "DeleteTopicRequest": {"topic": (1, "STRING")},
    "PublishRequest": {"topic": (1, "STRING"), "messages": (2, "PubsubMessage[]")},
    "Topic": {"name": (1, "STRING"), "message_retention_duration": (8, "Duration")},
    "PushConfig": {"push_endpoint": (1, "STRING")},
    "BigQueryConfig": {"table": (1, "STRING")},
    "CloudStorageConfig": {"bucket": (1, "STRING")},
    "BigtableConfig": {"table": (1, "STRING")},
    "DeadLetterPolicy": {"dead_letter_topic": (1, "STRING")},
    "Subscription": {
        "name": (1, "STRING"),
        "topic": (2, "STRING"),
        "push_config": (4, "PushConfig"),
        "ack_deadline_seconds": (5, "INT32"),
        "message_retention_duration": (8, "Duration"),
        "enable_message_ordering": (10, "BOOL"),
        "filter": (12, "STRING"),
        "dead_letter_policy": (13, "DeadLetterPolicy"),
        "detached": (15, "BOOL"),
        "enable_exactly_once_delivery": (16, "BOOL"),
        "topic_message_retention_duration": (17, "Duration"),
        "bigquery_config": (18, "BigQueryConfig"),
        "cloud_storage_config": (22, "CloudStorageConfig"),
        "bigtable_config": (27, "BigtableConfig"),
    },
}
"""The messages and fields that we use, with their types: scalars in capitals, and names of messages.

Names and numbers are those of google.pubsub.v1
(https://github.com/googleapis/googleapis/blob/master/google/pubsub/v1/pubsub.proto); a test holds them against the
SDK's. Two entries differ, not on the wire: ``PubsubMessage.attributes`` is a list of entries, so that the order is
kept, and a ``PullResponse`` is read as a ``StreamingPullResponse``, whose first field it shares.
"""


@cache
def wire_message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    """Build a pool of our own: in the default one, two versions of a file would clash."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="connectors/pubsub/messages.proto", package=_PACKAGE, syntax="proto3"
    )
    for message, fields in MESSAGES.items():
        declared = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            target = declared.field.add(name=field, number=number)
            target.label = field_type.LABEL_REPEATED if kind.endswith("[]") else field_type.LABEL_OPTIONAL
            if kind.isupper():
                target.type = field_type.Type.Value(f"TYPE_{kind}")
            else:
                target.type = field_type.TYPE_MESSAGE
                target.type_name = f".{_PACKAGE}.{kind.removesuffix('[]')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """What the service says about a subscription; name and topics are full paths.

    `topic` may be ``_deleted-topic_``; `topic_retention_seconds` is None where the service does not say it here;
    `delivery` is ``pull``, or where the subscription delivers to by itself.
    """

    name: str
    topic: str
    ack_deadline_seconds: int
    retention_seconds: float
    topic_retention_seconds: float | None = None
    message_ordering: bool = False
    exactly_once_delivery: bool = False
    detached: bool = False
    delivery: str = "pull"
    filter: str = ""
    dead_letter_topic: str = ""

    @classmethod
    def from_wire(cls, response: bytes) -> Self:
        subscription = wire_message("Subscription").FromString(response)
        delivery = "pull"
        for field, destination in (
            ("push_config", subscription.push_config.push_endpoint),
            ("bigquery_config", "BigQuery"),
            ("cloud_storage_config", "Cloud Storage"),
            ("bigtable_config", "Bigtable"),
        ):
            if subscription.HasField(field) and destination:
                delivery = destination
        return cls(
            name=subscription.name,
            topic=subscription.topic,
            ack_deadline_seconds=subscription.ack_deadline_seconds,
            retention_seconds=_seconds(subscription, "message_retention_duration") or _DEFAULT_RETENTION_SECONDS,
            topic_retention_seconds=_seconds(subscription, "topic_message_retention_duration"),
            message_ordering=subscription.enable_message_ordering,
            exactly_once_delivery=subscription.enable_exactly_once_delivery,
            detached=subscription.detached,
            delivery=delivery,
            filter=subscription.filter,
            dead_letter_topic=subscription.dead_letter_policy.dead_letter_topic,
        )

    def check_readable(self) -> None:
        """Refuse what cannot be pulled from; a subscription whose topic was deleted still delivers what it holds."""
        if self.detached:
            what = "The subscription was detached from its topic"
            raise SourceGoneError("PUBSUB_SUBSCRIPTION_DETACHED", what, self.name)
        if self.delivery != "pull":
            what = f"The subscription delivers by itself to {self.delivery}, so nothing can be pulled from it"
            raise OptionError("PUBSUB_SUBSCRIPTION_NOT_PULL", what, self.name)

    @property
    def topic_is_deleted(self) -> bool:
        """Whether nothing is published to it any more; what it holds can still be read."""
        return self.topic == _DELETED_TOPIC

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self.topic_is_deleted:
            return ()
        return (f"{topic_deleted(self.name)} What the subscription still holds is read first; then the query stops.",)


def _seconds(message: Any, field: str) -> float | None:
    if not message.HasField(field):
        return None
    value = getattr(message, field)
    return float(value.seconds + value.nanos / 1e9)


class PullStream:
    """A StreamingPull: an iterator over responses, as wire bytes, until the service closes it, as it does often."""

    def __init__(self, client: PubSubClient, call: RpcCall, first_request: bytes) -> None:
        self._client = client
        self._call = call
        self._finished = threading.Event()
        self._cancelled = False
        self._responses = client.start_stream(self._requests(first_request))
        # Else the thread of gRPC that reads the requests would wait for ever. A call that is over takes no callback.
        if not self._responses.add_callback(self._finished.set):
            self._finished.set()

    def _requests(self, first_request: bytes) -> Iterator[bytes]:
        yield first_request
        # Wait: the end of the requests would tell the service to end the stream.
        self._finished.wait()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """Return the next response; raise ConnectorError if the stream broke, transient if another may do better."""
        try:
            response: bytes = next(self._responses)
        except grpc.RpcError as error:
            if self._cancelled or self._client.closed:
                raise StopIteration from None
            raise _error(self._call, error) from None
        return response

    def finish(self) -> None:
        """Ask the service to end the stream, as emulators keep sending to cancelled ones; what it had sent comes."""
        self._finished.set()

    def cancel(self) -> None:
        """End the stream at once; a thread that waits in `__next__` wakes up."""
        self._cancelled = True
        self._responses.cancel()
        self._finished.set()


class PubSubClient:
    """One gRPC channel to Pub/Sub; safe to use from several threads. A process that forks later must not share it.

    Without `credentials`, application default credentials are used; without TLS none. Topics, subscriptions and
    snapshots are named by full paths. A method that reads or changes one waits an outage out by `outage_rule`; pulls,
    acks and publishing are tried once: their callers retry.

    Raises:
        CredentialsError: the credentials cannot be read.
        SourceGoneError: what a method is about does not exist.
        AccessDeniedError: the role is missing.
    """

    def __init__(
        self,
        transport: Transport,
        credentials: Credentials = None,
        *,
        outage_rule: OutageRule = ONE_ATTEMPT,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._transport = transport
        self._outage_rule = outage_rule
        self._sleep = sleep
        self._channel = _open_channel(transport, credentials)
        # No serializers: bytes in, bytes out.
        self._unary = {
            method: self._channel.unary_unary(f"{_SUBSCRIBER}{method}", None, None)
            for method in ("Acknowledge", "ModifyAckDeadline", *_SUBSCRIPTION_METHODS)
        }
        for method in ("GetTopic", "CreateTopic", "DeleteTopic", "Publish"):
            self._unary[method] = self._channel.unary_unary(f"/google.pubsub.v1.Publisher/{method}", None, None)
        self._streaming_pull = self._channel.stream_stream(f"{_SUBSCRIBER}StreamingPull", None, None)
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True
        self._channel.close()

    def streaming_pull(
        self,
        subscription: str,
        *,
        ack_deadline_seconds: int,
        client_id: str,
        max_outstanding_bytes: int = 0,
    ) -> PullStream:
        """Open a stream. Its health is unknown before the first response or error.

        The deadline, 10 to 600, is that of what it delivers. To the service, streams with the same id are one client,
        which keeps its ordering keys when a stream is reopened. The service pauses at `max_outstanding_bytes`
        that are not acked, 0 for no limit.
        """
        request = wire_message("StreamingPullRequest")(
            subscription=subscription,
            stream_ack_deadline_seconds=ack_deadline_seconds,
            client_id=client_id,
            max_outstanding_bytes=max_outstanding_bytes,
        )
        call = RpcCall("StreamingPull", subscription, self._transport)
        return PullStream(self, call, request.SerializeToString())

    def start_stream(self, requests: Iterator[bytes]) -> Any:
        return self._streaming_pull(requests)

    def acknowledge(
        self, subscription: str, request: bytes, *, timeout_seconds: float, method: str = "Acknowledge"
    ) -> AckFailures:
        """Send an encoded ``AcknowledgeRequest``, once; raise ConnectorError if it failed as a whole."""
        try:
            self._unary[method](request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            failures = _failures_in(error)
            if failures is None:
                raise _error(RpcCall(method, subscription, self._transport), error) from None
            return failures
        return AckFailures()

    def modify_ack_deadline(self, subscription: str, request: bytes, *, timeout_seconds: float) -> AckFailures:
        """Send an encoded ``ModifyAckDeadlineRequest``, once, as `acknowledge`; a deadline of 0 is a nack."""
        return self.acknowledge(subscription, request, timeout_seconds=timeout_seconds, method="ModifyAckDeadline")

    def publish(
        self, topic: str, request: bytes, *, timeout_seconds: float, done: Callable[[ConnectorError | None], None]
    ) -> Any:
        """Begin to send an encoded ``PublishRequest``, once; return the call, which has a method `cancel`.

        A thread of gRPC calls `done` with the error, or None; not for a cancelled call, which may have taken effect.
        """
        call = RpcCall("Publish", topic, self._transport)
        future = self._unary["Publish"].future(request, timeout=timeout_seconds)

        def finished(_: object) -> None:
            if not future.cancelled():
                error = future.exception()
                done(None if error is None else _error(call, error))

        future.add_done_callback(finished)
        return future

    def get_subscription(self, subscription: str) -> SubscriptionInfo:
        request = wire_message("GetSubscriptionRequest")(subscription=subscription)
        call = RpcCall("GetSubscription", subscription, self._transport)
        return SubscriptionInfo.from_wire(self._admin(call, request))

    def create_subscription(self, subscription: str, topic: str, *, ordering: bool = False) -> SubscriptionInfo:
        """Create a pull subscription with the service's defaults; ``PUBSUB_SUBSCRIPTION_EXISTS`` if there is one."""
        request = wire_message("Subscription")(name=subscription, topic=topic, enable_message_ordering=ordering)
        project = "/".join(subscription.split("/")[:2])
        call = RpcCall("CreateSubscription", f"{subscription} on {topic}", self._transport, granted_on=project)
        return SubscriptionInfo.from_wire(self._admin(call, request))

    def delete_subscription(self, subscription: str) -> None:
        """Delete a subscription; no reader and no fetcher does."""
        request = wire_message("DeleteSubscriptionRequest")(subscription=subscription)
        self._admin(RpcCall("DeleteSubscription", subscription, self._transport), request)

    def seek(self, subscription: str, *, microseconds: int | None = None, snapshot: str = "") -> None:
        request = wire_message("SeekRequest")(subscription=subscription)
        if microseconds is None:
            request.snapshot = snapshot
        else:
            request.time.SetInParent()
            request.time.seconds, rest = divmod(microseconds, 1_000_000)
            request.time.nanos = rest * 1000
        self._admin(RpcCall("Seek", snapshot or subscription, self._transport), request)

    def create_topic(self, topic: str) -> None:
        call = RpcCall("CreateTopic", topic, self._transport, granted_on="/".join(topic.split("/")[:2]))
        self._admin(call, wire_message("Topic")(name=topic))

    def delete_topic(self, topic: str) -> None:
        self._admin(RpcCall("DeleteTopic", topic, self._transport), wire_message("DeleteTopicRequest")(topic=topic))

    def get_topic_retention(self, topic: str) -> float | None:
        """Return how many seconds a topic retains messages; None if it retains none."""
        request = wire_message("GetTopicRequest")(topic=topic)
        response = self._admin(RpcCall("GetTopic", topic, self._transport), request)
        return _seconds(wire_message("Topic").FromString(response), "message_retention_duration")

    def _admin(self, call: RpcCall, request: Any) -> bytes:
        def attempt() -> bytes:
            try:
                response: bytes = self._unary[call.method](request.SerializeToString(), timeout=_ADMIN_TIMEOUT_SECONDS)
            except grpc.RpcError as error:
                raise _error(call, error) from None
            return response

        return wait_out(attempt, self._outage_rule, sleep=self._sleep)


def delete_subscription(subscription: str, raw: Mapping[str, str]) -> None:
    """Delete a subscription, reached as ``endpoint``, ``allowInsecure`` and the credentials in `raw` say."""
    options = parse_options(PubSubClientOptions, raw, os.environ, FORMAT)
    transport = connection_transport(options, os.environ)
    with PubSubClient(transport, client_credentials(options), outage_rule=options.outage_rule) as client:
        client.delete_subscription(subscription)


def _error(call: RpcCall, error: Any) -> ConnectorError:
    # What a stub raises is also the call, which knows its status.
    return connector_error(call, error.code().name, error.details() or "")


def _failures_in(error: Any) -> AckFailures | None:
    """Return the ack ids that a failed call names, as exactly-once delivery does; else None."""
    # They take 0.04 s to load, and few processes ever need them. The first comes without types.
    from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # noqa: PLC0415
    from grpc_status import rpc_status  # noqa: PLC0415

    reasons: dict[str, str] = {}
    try:
        status = rpc_status.from_call(error)
        for detail in status.details if status is not None else ():
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                reasons.update(info.metadata)
    except (ValueError, DecodeError):
        # A proxy has shortened the text, or written details of its own; the code of the status is still right.
        return None
    transient = frozenset(ack_id for ack_id, reason in reasons.items() if reason.startswith("TRANSIENT_FAILURE_"))
    permanent = frozenset(ack_id for ack_id, reason in reasons.items() if reason.startswith("PERMANENT_FAILURE_"))
    return AckFailures(transient, permanent) if transient or permanent else None


def _open_channel(transport: Transport, credentials: Credentials) -> grpc.Channel:
    options: list[tuple[str, int]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # Errors of exactly-once delivery travel in trailers; as in Google's clients.
        ("grpc.max_metadata_size", 4 << 20),
        # Else all channels of a process share one connection, and with it the limit of streams on it.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5000),
    ]
    if transport.local:
        options.append(("grpc.enable_http_proxy", 0))
    else:
        options.append(("grpc.keepalive_time_ms", 30_000))
    if not transport.secure:
        return grpc.insecure_channel(transport.target, options)

    from connectors.pubsub.client.credentials import tls_credentials  # noqa: PLC0415 - 0.1 s to load

    return grpc.secure_channel(transport.target, tls_credentials(credentials), options)
