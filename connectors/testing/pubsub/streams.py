"""StreamingPull: one thread sends messages, another one takes what the client says on the stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import grpc
from google.pubsub_v1 import types

from connectors.testing.clock import SECOND
from connectors.testing.pubsub.faults.events import EventKind
from connectors.testing.pubsub.model.messages import Delivery
from connectors.testing.pubsub.model.rules import (
    MAX_PULL_MESSAGES,
    ProtoMessage,
    StatusError,
    check_ack_deadline,
    check_modified_deadline,
)
from connectors.testing.pubsub.runtime import OpenStream, PubSubRuntime
from connectors.testing.pubsub.wire import frame_received

__all__ = ["StreamingPullHandler"]

_MAX_RESPONSE_BYTES = 1_000_000
_ONLY_FIRST = {"subscription", "client_id", "max_outstanding_messages", "max_outstanding_bytes", "protocol_version"}


class StreamingPullHandler:
    """Serves StreamingPull for one server, and knows the streams that are open."""

    def __init__(self, runtime: PubSubRuntime) -> None:
        self._runtime = runtime
        self._streams: dict[str, OpenStream] = {}
        self._listeners: set[threading.Thread] = set()

    def handle(self, requests: Iterator[ProtoMessage], context: grpc.ServicerContext) -> Iterator[bytes]:
        """The method itself; raises `StatusError` to end the stream with a status."""
        first = next(requests, None)
        if first is None:
            return
        stream = self._open(first)
        if not context.add_callback(partial(self._close, stream, None)):
            self._close(stream, None)
            return
        listener = threading.Thread(target=self._listen, args=(stream, requests), name=f"pubsub-{stream.id}")
        listener.daemon = True
        self._listeners.add(listener)
        listener.start()
        yield from self._responses(stream)
        if stream.status:
            raise stream.status

    def close_streams(self, status: StatusError, subscription: str | None = None) -> int:
        """End the open streams, of one subscription or of all, and give how many; within a transaction."""
        streams = [
            stream
            for stream in self._streams.values()
            if subscription is None or stream.subscription.name == subscription
        ]
        for stream in streams:
            self._close(stream, status)
        return len(streams)

    def plan_stream_ends(self) -> None:
        """Give every open stream the life that the fault plan says now; within a transaction."""
        for stream in self._streams.values():
            self._plan_end(stream)

    def join(self, timeout: float) -> None:
        """Wait for the threads of streams after the server was stopped; at most ``timeout`` seconds each."""
        for listener in list(self._listeners):
            listener.join(timeout)

    def _open(self, first: ProtoMessage) -> OpenStream:
        runtime = self._runtime
        if not first.subscription:
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, "The first request must set the subscription.")
        check_ack_deadline(first.stream_ack_deadline_seconds, "stream_ack_deadline_seconds")
        with runtime.transaction() as now:
            subscription = runtime.state.attached_subscription(first.subscription)
            stream = OpenStream(
                runtime.next_consumer_id("stream"),
                subscription,
                first.stream_ack_deadline_seconds * SECOND,
                (first.max_outstanding_messages, first.max_outstanding_bytes),
                first.client_id,
            )
            self._streams[stream.id] = stream
            subscription.streams[stream.id] = stream
            runtime.events.record(
                EventKind.STREAM_OPEN, now, subscription=subscription.name, stream=stream.id, detail=first.client_id
            )
            self._plan_end(stream)
            try:
                self._apply(stream, first, now)
            except StatusError as error:
                self._close(stream, error)
        return stream

    def _plan_end(self, stream: OpenStream) -> None:
        life = self._runtime.faults.stream_life_ns
        if life:
            self._runtime.at(self._runtime.clock.now() + life, partial(self._end_of_life, stream))

    def _end_of_life(self, stream: OpenStream, _: int) -> None:
        if self._runtime.faults.stream_life_ns:
            message = "The service was unable to fulfill your request. Please try again. [code=8a75]"
            self._close(stream, StatusError(grpc.StatusCode.UNAVAILABLE, message))

    def _close(self, stream: OpenStream, status: StatusError | None) -> None:
        """End a stream: by the server, with a status; or None because the call is over. Only the first one counts."""
        with self._runtime.transaction() as now:
            if stream.closed.is_set():
                return
            stream.status = status
            stream.closed.set()
            self._streams.pop(stream.id, None)
            stream.subscription.streams.pop(stream.id, None)
            detail = status.code.name if status else "CANCELLED"
            self._runtime.events.record(
                EventKind.STREAM_CLOSE, now, subscription=stream.subscription.name, stream=stream.id, detail=detail
            )
            # Others may now be handed what was kept from this stream alone.
            stream.subscription.wake()

    def _listen(self, stream: OpenStream, requests: Iterator[ProtoMessage]) -> None:
        status: StatusError | None = None
        try:
            for request in requests:
                _check_later(request)
                with self._runtime.transaction() as now:
                    self._apply(stream, request, now)
        except StatusError as error:
            status = error
        except grpc.RpcError:
            pass  # The call is over; its callback closes the stream.
        self._close(stream, status)
        self._listeners.discard(threading.current_thread())

    def _apply(self, stream: OpenStream, request: ProtoMessage, now: int) -> None:
        """Do what a request says; within a transaction."""
        if request.stream_ack_deadline_seconds:
            check_ack_deadline(request.stream_ack_deadline_seconds, "stream_ack_deadline_seconds")
            stream.deadline_ns = request.stream_ack_deadline_seconds * SECOND
        if len(request.modify_deadline_ack_ids) != len(request.modify_deadline_seconds):
            message = "modify_deadline_ack_ids and modify_deadline_seconds must have the same size."
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)
        state = self._runtime.state
        acked = state.delivery_numbers(request.ack_ids)
        modified = state.delivery_numbers(request.modify_deadline_ack_ids)
        by_seconds: dict[int, list[int]] = {}
        for number, seconds in zip(modified, request.modify_deadline_seconds, strict=True):
            check_modified_deadline(seconds)
            by_seconds.setdefault(seconds, []).append(number)
        if (acked or by_seconds) and stream.subscription.config.enable_exactly_once_delivery:
            message = (
                "This server takes acks of exactly-once delivery by Acknowledge only, as Google's clients send them."
            )
            raise StatusError(grpc.StatusCode.UNIMPLEMENTED, message)
        if acked:
            stream.subscription.acknowledge(now, acked, stream.id)
        for seconds, numbers in by_seconds.items():
            stream.subscription.modify_deadline(now, numbers, seconds, stream.id)

    def _responses(self, stream: OpenStream) -> Iterator[bytes]:
        properties = _properties(stream)
        while (delivery := self._next_delivery(stream)) is not None:
            if self._is_lost():
                self._close(stream, StatusError(grpc.StatusCode.UNAVAILABLE, "The connection was lost."))
                return
            if self._runtime.faults.response_delay_seconds:
                # The messages are leased already: it is the network that is slow, and deadlines run meanwhile.
                stream.closed.wait(self._runtime.faults.response_delay_seconds)
            prefix = self._runtime.state.ack_ids.prefix()
            yield frame_received(delivery.framed(), delivery.first_number, prefix) + properties

    def _is_lost(self) -> bool:
        with self._runtime.transaction():
            lost = self._runtime.faults.lost_responses > 0
            self._runtime.faults.lost_responses -= lost
        return lost

    def _next_delivery(self, stream: OpenStream) -> Delivery | None:
        runtime, subscription = self._runtime, stream.subscription
        with runtime.transaction():
            while not stream.closed.is_set() and not runtime.stopping.is_set():
                if subscription.gone:
                    self._close(stream, subscription.gone)
                    break
                delivery = subscription.take(runtime.clock.now(), stream, MAX_PULL_MESSAGES, _MAX_RESPONSE_BYTES)
                if delivery.messages:
                    return delivery
                runtime.wait_for_change(subscription)
        return None


def _check_later(request: ProtoMessage) -> None:
    """Raise INVALID_ARGUMENT when a request that is not the first sets what only the first one may set."""
    for field, _ in request.ListFields():
        if field.name in _ONLY_FIRST:
            message = f"{field.name} may only be set in the first request."
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)


def _properties(stream: OpenStream) -> bytes:
    """The properties that each response carries, serialised; they are appended, as protobuf allows.

    Google's clients take them from each response: that for Go gives up the order of keys when one lacks them.
    """
    response = types.StreamingPullResponse.pb()()
    response.subscription_properties.message_ordering_enabled = stream.subscription.config.enable_message_ordering
    response.subscription_properties.exactly_once_delivery_enabled = (
        stream.subscription.config.enable_exactly_once_delivery
    )
    return bytes(response.SerializeToString())
