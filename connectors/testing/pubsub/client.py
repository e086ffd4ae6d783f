"""A small Pub/Sub client for tests: makes topics and subscriptions, and publishes.

It speaks to any endpoint without TLS: the server of `connectors.testing.pubsub.server`, or an emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from google.pubsub_v1.types import pubsub as types

__all__ = ["PubSubTestClient"]

_MOST_MESSAGES = 1000
_MOST_BYTES = 5_000_000
_TIMEOUT = 30.0


class PubSubTestClient:
    """A client of one endpoint and project.

    Args:
        endpoint: ``host:port``.
        project: id of the project.
    """

    def __init__(self, endpoint: str, project: str) -> None:
        self.project = project
        self._channel = grpc.insecure_channel(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def topic(self, topic: str) -> str:
        """The full name of a topic."""
        return f"projects/{self.project}/topics/{topic}"

    def subscription(self, subscription: str) -> str:
        """The full name of a subscription."""
        return f"projects/{self.project}/subscriptions/{subscription}"

    def create(self, topic: str, subscription: str, ack_deadline_seconds: int = 10) -> None:
        """Make a topic and a subscription of it; they must be absent."""
        self.call("Publisher/CreateTopic", types.Topic(name=self.topic(topic)), types.Topic)
        self.subscribe(topic, subscription, ack_deadline_seconds)

    def subscribe(self, topic: str, subscription: str, ack_deadline_seconds: int = 10) -> None:
        """Make a subscription of a topic that is there."""
        request = types.Subscription(
            name=self.subscription(subscription),
            topic=self.topic(topic),
            ack_deadline_seconds=ack_deadline_seconds,
        )
        self.call("Subscriber/CreateSubscription", request, types.Subscription)

    def publish(self, topic: str, messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> list[str]:
        """Publish (payload, attributes) pairs in order, in as many requests as it takes; the ids they got."""
        ids: list[str] = []
        batch: list[types.PubsubMessage] = []
        size = 0
        for payload, attributes in messages:
            if len(batch) == _MOST_MESSAGES or (batch and size + len(payload) > _MOST_BYTES):
                ids += self._publish(topic, batch)
                batch, size = [], 0
            batch.append(types.PubsubMessage(data=payload, attributes=dict(attributes)))
            size += len(payload)
        return ids + (self._publish(topic, batch) if batch else [])

    def call(self, method: str, request: Any, response_type: Any) -> Any:
        """Call ``google.pubsub.v1.<method>`` with a message, and give its answer as plain protobuf."""
        stub: Callable[..., Any] = self._channel.unary_unary(
            f"/google.pubsub.v1.{method}",
            request_serializer=type(request).serialize,
            response_deserializer=response_type.pb().FromString,
        )
        return stub(request, timeout=_TIMEOUT, wait_for_ready=True)

    def _publish(self, topic: str, batch: list[types.PubsubMessage]) -> list[str]:
        request = types.PublishRequest(topic=self.topic(topic), messages=batch)
        return list(self.call("Publisher/Publish", request, types.PublishResponse).message_ids)
