"""Raw calls of google.pubsub.v1 for tests: no retries, no leases, no flow control but what a test asks for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import types

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A new channel connects anew, and does not wait because another one failed to.
    ("grpc.use_local_subchannel_pool", 1),
)
CALL_SECONDS = 20.0
REQUESTS: dict[str, Any] = {
    "Publisher/CreateTopic": types.Topic,
    "Publisher/GetTopic": types.GetTopicRequest,
    "Publisher/UpdateTopic": types.UpdateTopicRequest,
    "Publisher/DeleteTopic": types.DeleteTopicRequest,
    "Publisher/ListTopics": types.ListTopicsRequest,
    "Publisher/ListTopicSubscriptions": types.ListTopicSubscriptionsRequest,
    "Publisher/DetachSubscription": types.DetachSubscriptionRequest,
    "Publisher/Publish": types.PublishRequest,
    "Subscriber/CreateSubscription": types.Subscription,
    "Subscriber/GetSubscription": types.GetSubscriptionRequest,
    "Subscriber/UpdateSubscription": types.UpdateSubscriptionRequest,
    "Subscriber/DeleteSubscription": types.DeleteSubscriptionRequest,
    "Subscriber/ListSubscriptions": types.ListSubscriptionsRequest,
    "Subscriber/Acknowledge": types.AcknowledgeRequest,
    "Subscriber/ModifyAckDeadline": types.ModifyAckDeadlineRequest,
    "Subscriber/Pull": types.PullRequest,
    "Subscriber/Seek": types.SeekRequest,
    "Subscriber/CreateSnapshot": types.CreateSnapshotRequest,
    "Subscriber/GetSnapshot": types.GetSnapshotRequest,
    "Subscriber/DeleteSnapshot": types.DeleteSnapshotRequest,
}
ANSWERS: dict[str, Any] = {
    "Publisher/CreateTopic": types.Topic,
    "Publisher/GetTopic": types.Topic,
    "Publisher/UpdateTopic": types.Topic,
    "Publisher/ListTopics": types.ListTopicsResponse,
    "Publisher/ListTopicSubscriptions": types.ListTopicSubscriptionsResponse,
    "Publisher/Publish": types.PublishResponse,
    "Subscriber/CreateSubscription": types.Subscription,
    "Subscriber/GetSubscription": types.Subscription,
    "Subscriber/UpdateSubscription": types.Subscription,
    "Subscriber/ListSubscriptions": types.ListSubscriptionsResponse,
    "Subscriber/Pull": types.PullResponse,
    "Subscriber/Seek": types.SeekResponse,
    "Subscriber/CreateSnapshot": types.Snapshot,
    "Subscriber/GetSnapshot": types.Snapshot,
}


class Stream:
    """A StreamingPull whose responses are collected by a thread.

    ``messages`` holds what came, in order; ``sizes`` the number of messages of each response; ``status`` the code of
    the end once it has ended.
    """

    def __init__(self, channel: grpc.Channel, first: dict[str, Any]) -> None:
        self.messages: list[Any] = []
        self.responses: list[Any] = []
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self._changed = threading.Condition()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.send(**first)
        method = channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=types.StreamingPullResponse.pb().FromString,
        )
        self._call = method(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._call.cancel()
        self._requests.put(None)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def send(self, **fields: Any) -> None:
        self._requests.put(types.StreamingPullRequest.pb()(**fields))

    def ack(self, messages: Iterable[Any]) -> None:
        self.send(ack_ids=[message.ack_id for message in messages])

    def nack(self, messages: Sequence[Any]) -> None:
        self.send(
            modify_deadline_ack_ids=[message.ack_id for message in messages],
            modify_deadline_seconds=[0] * len(messages),
        )

    def half_close(self) -> None:
        self._requests.put(None)

    def ids(self) -> list[str]:
        return [received.message.message_id for received in self.messages]

    def wait_for(self, count: int, timeout: float = 60.0) -> list[Any]:
        """The messages once there are at least ``count``."""
        self._wait(lambda: len(self.messages) >= count, timeout)
        return list(self.messages)

    def wait_for_end(self, timeout: float = 60.0) -> grpc.StatusCode | None:
        self._wait(lambda: self.status is not None, timeout)
        return self.status

    def _wait(self, condition: Callable[[], bool], timeout: float) -> None:
        with self._changed:
            arrived = self._changed.wait_for(lambda: condition() or self.status is not None, timeout)
        assert arrived, f"nothing new within {timeout} s: {len(self.messages)} messages, status {self.status}"
        assert condition(), f"the stream ended with {self.status}: {self.details}"

    def _collect(self) -> None:
        status, details = grpc.StatusCode.OK, ""
        try:
            for response in self._call:
                with self._changed:
                    self.responses.append(response)
                    self.messages.extend(response.received_messages)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            status, details = error.code(), error.details() or ""
        with self._changed:
            self.status, self.details = status, details
            self._changed.notify_all()


class PubSubCalls:
    """One channel to a server, and the calls on it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.channel = grpc.insecure_channel(endpoint, options=OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()

    def call(self, method: str, timeout: float = CALL_SECONDS, **fields: Any) -> Any:
        """Call ``Publisher/...`` or ``Subscriber/...`` with the fields of its request."""
        answer = ANSWERS.get(method)
        stub = self.channel.unary_unary(
            f"/google.pubsub.v1.{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.pb().FromString if answer else bytes,
        )
        return stub(REQUESTS[method].pb()(**fields), timeout=timeout)

    def refusal(self, method: str, **fields: Any) -> grpc.StatusCode:
        """The status with which a call is refused; the call must fail."""
        try:
            answer = self.call(method, **fields)
        except grpc.RpcError as error:
            return error.code()
        message = f"{method} was not refused: {answer}"
        raise AssertionError(message)

    def create(self, topic: str, *subscriptions: str, **settings: Any) -> None:
        """A topic with subscriptions."""
        self.call("Publisher/CreateTopic", name=topic)
        for subscription in subscriptions:
            self.subscribe(subscription, topic, **settings)

    def subscribe(self, subscription: str, topic: str, **settings: Any) -> Any:
        return self.call("Subscriber/CreateSubscription", name=subscription, topic=topic, **settings)

    def publish(self, topic: str, *payloads: bytes) -> list[str]:
        return self.publish_messages(topic, [{"data": payload} for payload in payloads])

    def publish_messages(self, topic: str, messages: Iterable[dict[str, Any]]) -> list[str]:
        answer = self.call("Publisher/Publish", topic=topic, messages=messages)
        return list(answer.message_ids)

    def pull(self, subscription: str, count: int = 1, timeout: float = 60.0) -> list[Any]:
        """Pull until there are ``count`` messages; fails when they do not come."""
        received: list[Any] = []
        give_up_at = time.monotonic() + timeout
        while len(received) < count:
            seconds = give_up_at - time.monotonic()
            assert seconds > 0, f"{len(received)} of {count} messages came within {timeout} s"
            received += self.pull_once(subscription, count - len(received), timeout=max(0.5, seconds))
        return received

    def pull_once(self, subscription: str, max_messages: int = 1000, timeout: float = CALL_SECONDS) -> list[Any]:
        answer = self.call("Subscriber/Pull", timeout, subscription=subscription, max_messages=max_messages)
        return list(answer.received_messages)

    def pull_what_is_there(self, subscription: str) -> list[Any]:
        answer = self.call("Subscriber/Pull", subscription=subscription, max_messages=1000, return_immediately=True)
        return list(answer.received_messages)

    def ack(self, subscription: str, received: Iterable[Any]) -> None:
        self.call("Subscriber/Acknowledge", subscription=subscription, ack_ids=[each.ack_id for each in received])

    def modify_deadline(self, subscription: str, received: Iterable[Any], seconds: int) -> None:
        self.call(
            "Subscriber/ModifyAckDeadline",
            subscription=subscription,
            ack_ids=[each.ack_id for each in received],
            ack_deadline_seconds=seconds,
        )

    def update_subscription(self, name: str, paths: Sequence[str], **fields: Any) -> Any:
        return self.call(
            "Subscriber/UpdateSubscription",
            subscription=types.Subscription.pb()(name=name, **fields),
            update_mask=field_mask_pb2.FieldMask(paths=paths),
        )

    def stream(self, subscription: str, deadline: int = 60, **fields: Any) -> Stream:
        return Stream(self.channel, {"subscription": subscription, "stream_ack_deadline_seconds": deadline, **fields})


def message_ids(received: Iterable[Any]) -> list[str]:
    return [each.message.message_id for each in received]
