"""The Pub/Sub service: the only module of the connector that imports Google's SDK and grpc, and only in functions.

`PubSubClient` is one gRPC channel. Pulling and acknowledging pass bytes through untouched: decoding them is the
fetcher's business, and the SDK's own subscriber is 8 to 14 times slower. Every error that leaves this module is a
`ConnectorError`; its ``transient`` says whether trying again can help, and its text holds no credentials.

What answers of the service say, as our own values.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from connectors.core.errors import CredentialsError
from connectors.core.retry import RetryPolicy, retry
from connectors.pubsub.client.errors import AckFailures, RpcCall, ack_failures, connector_error, topic_deleted
from connectors.pubsub.client.messages import wire_message
from connectors.pubsub.options.credentials import ServiceAccount, read_key_file, unusable

if TYPE_CHECKING:
    import grpc

    from connectors.pubsub.options.client import Transport

__all__ = [
    "ADMIN_RETRY",
    "PubSubClient",
    "PublishCall",
    "PullStream",
    "SubscriptionInfo",
    "duration",
    "subscription_info",
]


# What the service uses for a subscription that names no retention:
# https://docs.cloud.google.com/pubsub/docs/subscription-properties
_DEFAULT_RETENTION_SECONDS: Final = 7 * 86400.0


_DELETED_TOPIC: Final = "_deleted-topic_"


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """What the service tells about a subscription.

    Attributes:
        name: its full path.
        topic: full path of its topic, or ``_deleted-topic_``.
        ack_deadline_seconds: its default deadline.
        retention_seconds: how long it keeps messages that are not acked.
        topic_retention_seconds: how long its topic keeps messages, where the service says so here.
        message_ordering: whether messages with an ordering key come in order.
        exactly_once_delivery: whether the feature of that name is on.
        detached: whether it was detached from its topic.
        delivery: ``pull``, or where it delivers to by itself.
        filter: its filter, or an empty text.
        dead_letter_topic: full path of its dead-letter topic, or an empty text.
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

    @property
    def topic_is_deleted(self) -> bool:
        """Whether nothing is published to it any more; what it holds can still be read."""
        return self.topic == _DELETED_TOPIC

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is said to a user who reads it: that nothing new will come, if that is so."""
        if not self.topic_is_deleted:
            return ()
        error = topic_deleted(self.name)
        return (f"{error} What the subscription still holds is read first; then the query stops.",)


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


ADMIN_RETRY: Final = RetryPolicy(initial_seconds=0.1, cap_seconds=5.0, deadline_seconds=30.0)
"""How calls that only look at or create things are retried."""

_ADMIN_TIMEOUT_SECONDS: Final = 10.0
_SCOPES: Final = ("https://www.googleapis.com/auth/pubsub",)
_SUBSCRIBER: Final = "/google.pubsub.v1.Subscriber/"
_PUBLISHER: Final = "/google.pubsub.v1.Publisher/"
_UNARY: Final = {
    "Acknowledge": _SUBSCRIBER,
    "ModifyAckDeadline": _SUBSCRIBER,
    "GetSubscription": _SUBSCRIBER,
    "CreateSubscription": _SUBSCRIBER,
    "Seek": _SUBSCRIBER,
    "GetTopic": _PUBLISHER,
    "Publish": _PUBLISHER,
}


class PullStream:
    """One StreamingPull: an iterator over its responses, as wire bytes, in the order of arrival.

    It ends when the service closes the stream in good order, which it does often, and after `finish` or `cancel`.
    """

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
        """One request, and then a wait: the end of the requests would tell the service to end the stream."""
        yield first_request
        self._finished.wait()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """The next response.

        Raises:
            StopIteration: the stream ended in good order, or was cancelled here.
            ConnectorError: it broke; transient if another stream may do better.
        """
        import grpc  # noqa: PLC0415 - see the top

        try:
            response: bytes = next(self._responses)
        except grpc.RpcError as error:
            if self._cancelled or self._client.closed:
                raise StopIteration from None
            raise _error(self._call, error) from None
        return response

    def finish(self) -> None:
        """Ask the service to end the stream: what it had sent still comes. An emulator serves cancelled ones on."""
        self._finished.set()

    def cancel(self) -> None:
        """End the stream at once; a thread that waits in `__next__` wakes up."""
        self._cancelled = True
        self._responses.cancel()
        self._finished.set()


class PublishCall:
    """A Publish that is under way."""

    def __init__(self, future: Any, call: RpcCall) -> None:
        self._future = future
        self._call = call

    def error(self) -> Exception | None:
        """Why it failed, a `ConnectorError`; None if it succeeded. To be asked once it is over."""
        failed = self._future.exception()
        return None if failed is None else _error(self._call, failed)

    def cancel(self) -> None:
        """Give it up; it may have taken effect."""
        self._future.cancel()


class PubSubClient:
    """One gRPC channel to Pub/Sub; safe to use from several threads. A process that forks later must not share it.

    Args:
        transport: where the service is, and whether by TLS; without TLS no credentials are used.
        credentials: a key file, or a service account; application default credentials when None.
        retry_policy: for looking at and creating things. Pulls and acks are tried once: their callers retry.
        sleep: waits between retries; see `connectors.core.retry.retry`.

    Raises:
        CredentialsError: the credentials cannot be read.
    """

    def __init__(
        self,
        transport: Transport,
        credentials: Path | ServiceAccount | None = None,
        *,
        retry_policy: RetryPolicy = ADMIN_RETRY,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._transport = transport
        self._retry_policy = retry_policy
        self._sleep = sleep
        self._channel = _open_channel(transport, credentials)
        # No serializers: bytes in, bytes out.
        self._unary = {
            method: self._channel.unary_unary(f"{service}{method}", None, None) for method, service in _UNARY.items()
        }
        self._streaming_pull = self._channel.stream_stream(f"{_SUBSCRIBER}StreamingPull", None, None)
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all calls and streams, and close the channel."""
        self.closed = True
        self._channel.close()

    def streaming_pull(
        self,
        subscription: str,
        *,
        ack_deadline_seconds: int,
        client_id: str,
        max_outstanding_messages: int = 0,
        max_outstanding_bytes: int = 0,
    ) -> PullStream:
        """Open a stream. Nothing is known of its health before the first response or error.

        Args:
            subscription: full path.
            ack_deadline_seconds: 10 to 600; the deadline of what it delivers.
            client_id: streams with the same id are one client to the service, which then keeps an ordering key
                with it when a stream is reopened.
            max_outstanding_messages: messages not acked at which the service pauses; 0 for no limit.
            max_outstanding_bytes: likewise in bytes. The service takes both only here, at the beginning.
        """
        request = wire_message("StreamingPullRequest")(
            subscription=subscription,
            stream_ack_deadline_seconds=ack_deadline_seconds,
            client_id=client_id,
            max_outstanding_messages=max_outstanding_messages,
            max_outstanding_bytes=max_outstanding_bytes,
        )
        call = RpcCall("StreamingPull", subscription, self._transport)
        return PullStream(self, call, request.SerializeToString())

    def start_stream(self, requests: Iterator[bytes]) -> Any:
        """A StreamingPull on this channel, bytes in and out; `streaming_pull` is what to use."""
        return self._streaming_pull(requests)

    def acknowledge(self, subscription: str, request: bytes, *, timeout_seconds: float) -> AckFailures:
        """Send an encoded ``AcknowledgeRequest``, once.

        Raises:
            ConnectorError: it failed as a whole; transient if it may be sent again.
        """
        return self._acknowledge("Acknowledge", subscription, request, timeout_seconds)

    def modify_ack_deadline(self, subscription: str, request: bytes, *, timeout_seconds: float) -> AckFailures:
        """Send an encoded ``ModifyAckDeadlineRequest``, once; a deadline of 0 gives messages back.

        Raises:
            ConnectorError: it failed as a whole; transient if it may be sent again.
        """
        return self._acknowledge("ModifyAckDeadline", subscription, request, timeout_seconds)

    def publish(
        self, topic: str, request: bytes, *, timeout_seconds: float, done: Callable[[PublishCall], None]
    ) -> PublishCall:
        """Begin to send an encoded ``PublishRequest``, once.

        Args:
            topic: full path of the topic that the request names.
            request: the request.
            timeout_seconds: when it fails in any case.
            done: called by a thread of gRPC when it is over; not if it is cancelled.
        """
        future = self._unary["Publish"].future(request, timeout=timeout_seconds)
        call = PublishCall(future, RpcCall("Publish", topic, self._transport))
        future.add_done_callback(lambda _: None if future.cancelled() else done(call))
        return call

    def get_subscription(self, subscription: str) -> SubscriptionInfo:
        """What the service tells about a subscription, given by its full path.

        Raises:
            SourceGoneError: there is none.
            AccessDeniedError: the role for that is missing.
            ConnectorError: any other failure, after the retries.
        """
        request = wire_message("GetSubscriptionRequest")(subscription=subscription)
        call = RpcCall("GetSubscription", subscription, self._transport)
        return subscription_info(self._admin(call, request.SerializeToString()))

    def create_subscription(self, subscription: str, topic: str) -> SubscriptionInfo:
        """Create a pull subscription with the service's defaults; both are full paths.

        Raises:
            SourceGoneError: the topic does not exist.
            AccessDeniedError: the role for that is missing.
            ConnectorError: with the code ``PUBSUB_SUBSCRIPTION_EXISTS`` if there is one already, also when an answer
                was lost; or any other failure, after the retries.
        """
        request = wire_message("Subscription")(name=subscription, topic=topic)
        project = "/".join(subscription.split("/")[:2])
        call = RpcCall("CreateSubscription", f"{subscription} on {topic}", self._transport, granted_on=project)
        return subscription_info(self._admin(call, request.SerializeToString()))

    def seek(self, subscription: str, *, microseconds: int | None = None, snapshot: str = "") -> None:
        """Seek a subscription to a time (since 1970), or to a snapshot; names are full paths.

        Raises:
            SourceGoneError: the subscription or the snapshot does not exist.
            AccessDeniedError: the role for that is missing.
            ConnectorError: any other failure, after the retries.
        """
        request = wire_message("SeekRequest")(subscription=subscription)
        if microseconds is None:
            request.snapshot = snapshot
        else:
            request.time.SetInParent()
            request.time.seconds, rest = divmod(microseconds, 1_000_000)
            request.time.nanos = rest * 1000
        self._admin(RpcCall("Seek", snapshot or subscription, self._transport), request.SerializeToString())

    def get_topic_retention(self, topic: str) -> float | None:
        """How many seconds a topic, given by its full path, keeps messages; None if it keeps none.

        Raises:
            SourceGoneError: there is no such topic.
            AccessDeniedError: the role for that is missing.
            ConnectorError: any other failure, after the retries.
        """
        request = wire_message("GetTopicRequest")(topic=topic)
        answer = self._admin(RpcCall("GetTopic", topic, self._transport), request.SerializeToString())
        return duration(wire_message("Topic").FromString(answer), "message_retention_duration")

    def _admin(self, call: RpcCall, request: bytes) -> bytes:
        import grpc  # noqa: PLC0415 - see the top

        def attempt() -> bytes:
            try:
                answer: bytes = self._unary[call.method](request, timeout=_ADMIN_TIMEOUT_SECONDS)
            except grpc.RpcError as error:
                raise _error(call, error) from None
            return answer

        return retry(attempt, self._retry_policy, sleep=self._sleep)

    def _acknowledge(self, method: str, subscription: str, request: bytes, timeout_seconds: float) -> AckFailures:
        import grpc  # noqa: PLC0415 - see the top

        try:
            self._unary[method](request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            failures = _failures_in(error)
            if failures is None:
                raise _error(RpcCall(method, subscription, self._transport), error) from None
            return failures
        return AckFailures()


def _error(call: RpcCall, error: grpc.RpcError) -> Exception:
    # What a stub raises is also the call, which knows its status.
    failed: Any = error
    return connector_error(call, failed.code().name, failed.details() or "")


def _failures_in(error: grpc.RpcError) -> AckFailures | None:
    """The ack ids that a failed Acknowledge or ModifyAckDeadline names, as exactly-once delivery does; else None."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - see the top

    # It comes without types.
    from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # noqa: PLC0415 - see the top
    from grpc_status import rpc_status  # noqa: PLC0415 - see the top

    failed: Any = error
    reasons: dict[str, str] = {}
    try:
        status = rpc_status.from_call(failed)
        for detail in status.details if status is not None else ():
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                reasons.update(info.metadata)
    except (ValueError, DecodeError):
        # A proxy has shortened the text, or written details of its own; the code of the status is still right.
        return None
    return ack_failures(reasons)


def _open_channel(transport: Transport, credentials: Path | ServiceAccount | None) -> grpc.Channel:
    import grpc  # noqa: PLC0415 - see the top

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

    from google.auth.transport.grpc import AuthMetadataPlugin  # noqa: PLC0415 - see the top
    from google.auth.transport.requests import Request  # noqa: PLC0415 - see the top

    make_plugin: Any = AuthMetadataPlugin  # comes without types
    plugin = make_plugin(_credentials(credentials), Request())
    tls = grpc.composite_channel_credentials(grpc.ssl_channel_credentials(), grpc.metadata_call_credentials(plugin))
    return grpc.secure_channel(transport.target, tls, options)


def _credentials(source: Path | ServiceAccount | None) -> Any:
    """What Google's library makes of credentials, or the default ones; no text of another library is passed on."""
    import google.auth  # noqa: PLC0415 - see the top
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415 - see the top

    if source is None:
        try:
            return google.auth.default(scopes=_SCOPES)[0]
        except GoogleAuthError:
            raise CredentialsError(
                "CREDENTIALS_MISSING",
                "There are no usable application default credentials, and the option credentialsFile is not given",
                "pubsub",
                "Give credentialsFile, run gcloud auth application-default login, or run where a service account is "
                "attached.",
            ) from None
    info = read_key_file(source) if isinstance(source, Path) else source.to_key_file()
    load: Any = google.auth.load_credentials_from_dict  # comes without types
    try:
        with warnings.catch_warnings():
            # It warns of files from strangers; this one is named by the user, and its kinds are many.
            warnings.simplefilter("ignore", DeprecationWarning)
            credentials = load(info, scopes=_SCOPES)[0]
    except (GoogleAuthError, ValueError, TypeError, KeyError, AttributeError):
        raise unusable(source, "is no file of Google credentials") from None
    if hasattr(credentials, "with_always_use_jwt_access"):
        # As Google's clients do: the key signs the tokens itself, so no token endpoint has to be reached.
        credentials = credentials.with_always_use_jwt_access(always_use_jwt_access=True)
    return credentials
