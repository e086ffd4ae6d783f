"""The gRPC methods of google.pubsub.v1, on top of `PubSubState`.

What is not here (push, schemas) is answered with UNIMPLEMENTED by gRPC itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
from google.protobuf import empty_pb2
from google.pubsub_v1 import types
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from connectors.testing.clock import SECOND
from connectors.testing.pubsub.faults.events import EventKind
from connectors.testing.pubsub.faults.plan import ScriptedStatus
from connectors.testing.pubsub.model.messages import Consumer
from connectors.testing.pubsub.model.rules import (
    MAX_PULL_BYTES,
    MAX_PULL_MESSAGES,
    ProtoMessage,
    StatusError,
    check_modified_deadline,
)
from connectors.testing.pubsub.runtime import PubSubRuntime
from connectors.testing.pubsub.streams import StreamingPullHandler
from connectors.testing.pubsub.wire import frame_received

__all__ = ["METHODS", "service_handlers"]

_MAX_PULL_WAIT_SECONDS = 90.0
_Answer = TypeVar("_Answer")
_Behaviour = Callable[[ProtoMessage, grpc.ServicerContext], _Answer]


class _Publisher:
    def __init__(self, runtime: PubSubRuntime) -> None:
        self._runtime = runtime
        self._state = runtime.state

    def create_topic(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            return self._state.create_topic(request)

    def get_topic(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            return self._state.get_topic(request.topic)

    def update_topic(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            return self._state.update_topic(request.topic, list(request.update_mask.paths))

    def delete_topic(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            self._state.delete_topic(request.topic)
        return empty_pb2.Empty()

    def list_topics(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            topics, token = self._state.list_topics(request.project, request.page_size, request.page_token)
        return types.ListTopicsResponse.pb()(topics=topics, next_page_token=token)

    def list_topic_subscriptions(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            names, token = self._state.list_topic_subscriptions(request.topic, request.page_size, request.page_token)
        return types.ListTopicSubscriptionsResponse.pb()(subscriptions=names, next_page_token=token)

    def detach_subscription(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction() as now:
            self._state.detach_subscription(now, request.subscription)
        return types.DetachSubscriptionResponse.pb()()

    def publish(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction() as now:
            message_ids = self._state.publish(now, request)
        return types.PublishResponse.pb()(message_ids=message_ids)


class _Subscriber:
    def __init__(self, runtime: PubSubRuntime) -> None:
        self._runtime = runtime
        self._state = runtime.state

    def create_subscription(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            return self._state.create_subscription(request)

    def get_subscription(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            return self._state.get_subscription(request.subscription)

    def update_subscription(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction() as now:
            return self._state.update_subscription(now, request.subscription, list(request.update_mask.paths))

    def delete_subscription(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction() as now:
            self._state.delete_subscription(now, request.subscription)
        return empty_pb2.Empty()

    def list_subscriptions(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            found, token = self._state.list_subscriptions(request.project, request.page_size, request.page_token)
        return types.ListSubscriptionsResponse.pb()(subscriptions=found, next_page_token=token)

    def acknowledge(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction() as now:
            subscription = self._state.attached_subscription(request.subscription)
            failures = subscription.acknowledge(now, self._delivery_numbers(request))
        self._raise_failures(request, failures)
        return empty_pb2.Empty()

    def modify_ack_deadline(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction() as now:
            subscription = self._state.attached_subscription(request.subscription)
            check_modified_deadline(request.ack_deadline_seconds)
            failures = subscription.modify_deadline(now, self._delivery_numbers(request), request.ack_deadline_seconds)
        self._raise_failures(request, failures)
        return empty_pb2.Empty()

    def _raise_failures(self, request: ProtoMessage, failures: dict[int, str]) -> None:
        """With exactly-once delivery the trailers say which ack ids had no effect, and why."""
        if not failures:
            return
        reasons = {
            ack_id: failures[number]
            for ack_id in request.ack_ids
            if (number := self._state.ack_ids.number(ack_id)) in failures
        }
        info = error_details_pb2.ErrorInfo(
            reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com", metadata=reasons
        )
        code, message = grpc.StatusCode.INVALID_ARGUMENT, "Some acknowledgement ids in the request were invalid."
        status = status_pb2.Status(code=code.value[0], message=message)
        status.details.add().Pack(info)
        raise StatusError(code, message, status.SerializeToString())

    def seek(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction() as now:
            self._state.seek(now, request)
        return types.SeekResponse.pb()()

    def create_snapshot(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction() as now:
            subscription = self._state.attached_subscription(request.subscription)
            return self._state.snapshots.create(now, request.name, subscription)

    def get_snapshot(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            return self._state.snapshots.get(request.snapshot)

    def delete_snapshot(self, request: ProtoMessage, _: grpc.ServicerContext) -> ProtoMessage:
        with self._runtime.transaction():
            self._state.snapshots.delete(request.snapshot)
        return empty_pb2.Empty()

    def _delivery_numbers(self, request: ProtoMessage) -> list[int]:
        if not request.ack_ids:
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, "No ack ids specified.")
        return self._state.delivery_numbers(request.ack_ids)

    def pull(self, request: ProtoMessage, context: grpc.ServicerContext) -> bytes:
        if request.max_messages <= 0:
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, "max_messages must be positive.")
        runtime = self._runtime
        max_messages = min(request.max_messages, MAX_PULL_MESSAGES)
        give_up_at = time.monotonic() + (0.0 if request.return_immediately else _pull_wait_seconds(context))
        with runtime.transaction():
            subscription = self._state.attached_subscription(request.subscription)
            deadline_ns = subscription.config.ack_deadline_seconds * SECOND
            consumer = Consumer(runtime.next_consumer_id("pull"), deadline_ns)
            context.add_callback(runtime.locked(subscription.wake))
            while context.is_active() and not runtime.stopping.is_set():
                delivery = subscription.take(runtime.clock.now(), consumer, max_messages, MAX_PULL_BYTES)
                seconds_left = give_up_at - time.monotonic()
                if delivery.messages or seconds_left <= 0:
                    break
                runtime.wait_for_change(subscription, seconds_left)
                if subscription.gone:
                    raise subscription.gone
            else:
                raise StatusError(grpc.StatusCode.UNAVAILABLE, "The call is over.")
        return frame_received(delivery.framed(), delivery.first_number, self._state.ack_ids.prefix())


def _pull_wait_seconds(context: grpc.ServicerContext) -> float:
    """How long an empty Pull waits: answered somewhat before the client's deadline, as the emulator does."""
    remaining = context.time_remaining()  # Infinite when the client has set none.
    return min(remaining - min(1.0, remaining / 4), _MAX_PULL_WAIT_SECONDS)


class _Guard:
    """Puts scripted delays and errors around the methods, and turns `StatusError` into a status."""

    def __init__(self, runtime: PubSubRuntime) -> None:
        self._runtime = runtime

    def unary(self, method: str, behaviour: _Behaviour[_Answer]) -> _Behaviour[_Answer]:
        def guarded(request: ProtoMessage, context: grpc.ServicerContext) -> _Answer:
            try:
                scripted = self._before(method, request)
                answer = behaviour(request, context)
                if scripted:
                    raise StatusError(scripted.code, scripted.message)  # noqa: TRY301 - one way to end a call
            except StatusError as error:
                if error.details:
                    context.set_trailing_metadata((("grpc-status-details-bin", error.details),))
                context.abort(error.code, error.message)
            return answer

        return guarded

    def stream(
        self, method: str, behaviour: Callable[[Iterator[ProtoMessage], grpc.ServicerContext], Iterator[bytes]]
    ) -> Callable[[Iterator[ProtoMessage], grpc.ServicerContext], Iterator[bytes]]:
        def guarded(requests: Iterator[ProtoMessage], context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                self._before(method, None)
                yield from behaviour(requests, context)
            except StatusError as error:
                context.abort(error.code, error.message)

        return guarded

    def _before(self, method: str, request: ProtoMessage | None) -> ScriptedStatus | None:
        """Wait and fail as scripted; gives the error that is to follow the effect."""
        with self._runtime.transaction() as now:
            seconds = self._runtime.faults.call_delay(method)
            scripted = self._runtime.faults.next_status(method)
            if scripted:
                detail = f"{method} {scripted.code.name}"
                self._runtime.events.record(EventKind.RPC_ERROR, now, detail=detail)
        if seconds:
            self._runtime.stopping.wait(seconds)
        if scripted is None or (scripted.after_effect and request is not None):
            return scripted
        if method == "Acknowledge" and request is not None:
            self._record_refused_acks(request)
        raise StatusError(scripted.code, scripted.message)

    def _record_refused_acks(self, request: ProtoMessage) -> None:
        with self._runtime.transaction() as now:
            subscription = self._runtime.state.attached_subscription(request.subscription)
            ids = subscription.message_ids(self._runtime.state.delivery_numbers(request.ack_ids))
            self._runtime.events.record(EventKind.ACK_REFUSED, now, ids, subscription=subscription.name)


_UNARY_METHODS: dict[str, dict[str, tuple[str, Any]]] = {
    "Publisher": {
        "CreateTopic": ("create_topic", types.Topic),
        "GetTopic": ("get_topic", types.GetTopicRequest),
        "UpdateTopic": ("update_topic", types.UpdateTopicRequest),
        "DeleteTopic": ("delete_topic", types.DeleteTopicRequest),
        "ListTopics": ("list_topics", types.ListTopicsRequest),
        "ListTopicSubscriptions": ("list_topic_subscriptions", types.ListTopicSubscriptionsRequest),
        "DetachSubscription": ("detach_subscription", types.DetachSubscriptionRequest),
        "Publish": ("publish", types.PublishRequest),
    },
    "Subscriber": {
        "CreateSubscription": ("create_subscription", types.Subscription),
        "GetSubscription": ("get_subscription", types.GetSubscriptionRequest),
        "UpdateSubscription": ("update_subscription", types.UpdateSubscriptionRequest),
        "DeleteSubscription": ("delete_subscription", types.DeleteSubscriptionRequest),
        "ListSubscriptions": ("list_subscriptions", types.ListSubscriptionsRequest),
        "Acknowledge": ("acknowledge", types.AcknowledgeRequest),
        "ModifyAckDeadline": ("modify_ack_deadline", types.ModifyAckDeadlineRequest),
        "Pull": ("pull", types.PullRequest),
        "Seek": ("seek", types.SeekRequest),
        "CreateSnapshot": ("create_snapshot", types.CreateSnapshotRequest),
        "GetSnapshot": ("get_snapshot", types.GetSnapshotRequest),
        "DeleteSnapshot": ("delete_snapshot", types.DeleteSnapshotRequest),
    },
}
METHODS = sorted({"StreamingPull", *(name for methods in _UNARY_METHODS.values() for name in methods)})
"""Names of the RPCs that this server has, as `fail` and `delay_calls` take them."""


def service_handlers(runtime: PubSubRuntime) -> tuple[list[grpc.GenericRpcHandler[Any, Any]], StreamingPullHandler]:
    """The handlers of both services for `grpc.Server.add_generic_rpc_handlers`, and the one of StreamingPull."""
    guard = _Guard(runtime)
    servicers = {"Publisher": _Publisher(runtime), "Subscriber": _Subscriber(runtime)}
    streaming = StreamingPullHandler(runtime)
    handlers = []
    for service, methods in _UNARY_METHODS.items():
        table = {
            method: grpc.unary_unary_rpc_method_handler(
                guard.unary(method, getattr(servicers[service], attribute)),
                request_deserializer=request_type.pb().FromString,
                response_serializer=_serialize,
            )
            for method, (attribute, request_type) in methods.items()
        }
        if service == "Subscriber":
            table["StreamingPull"] = grpc.stream_stream_rpc_method_handler(
                guard.stream("StreamingPull", streaming.handle),
                request_deserializer=types.StreamingPullRequest.pb().FromString,
            )
        handlers.append(grpc.method_handlers_generic_handler(f"google.pubsub.v1.{service}", table))
    return handlers, streaming


def _serialize(answer: ProtoMessage | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()
