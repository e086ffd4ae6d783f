"""Snapshots: what was unacked in a subscription at a moment, and what was published since."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import grpc
from google.pubsub_v1 import types

from connectors.testing.clock import SECOND
from connectors.testing.pubsub.model.messages import Message
from connectors.testing.pubsub.model.rules import ProtoMessage, StatusError, check_name
from connectors.testing.pubsub.model.subscription import Subscription

__all__ = ["Snapshots"]

_LIFE_NS = 7 * 86_400 * SECOND


@dataclass
class _Snapshot:
    config: ProtoMessage
    messages: list[Message]


class Snapshots:
    """The snapshots of a server, by name; not thread-safe. They are kept for ever here, past their expiration."""

    def __init__(self) -> None:
        self._snapshots: dict[str, _Snapshot] = {}

    def create(self, now: int, name: str, subscription: Subscription) -> ProtoMessage:
        """Take a snapshot of a subscription."""
        check_name(name, "snapshots")
        if name in self._snapshots:
            raise StatusError(grpc.StatusCode.ALREADY_EXISTS, "Snapshot already exists")
        messages = subscription.backlog()
        oldest = min((message.published_ns for message in messages), default=now)
        config = types.Snapshot.pb()(name=name, topic=subscription.config.topic)
        config.expire_time.FromNanoseconds(oldest + _LIFE_NS)
        self._snapshots[name] = _Snapshot(config, messages)
        return config

    def get(self, name: str) -> ProtoMessage:
        """A snapshot; raises NOT_FOUND."""
        return self._find(name).config

    def names(self) -> list[str]:
        """All there are."""
        return list(self._snapshots)

    def delete(self, name: str) -> None:
        """Forget one."""
        self._find(name)
        del self._snapshots[name]

    def published(self, topic: str, messages: Iterable[Message]) -> None:
        """Messages were published: they belong to every snapshot of the topic."""
        found = list(messages)
        for snapshot in self._snapshots.values():
            if snapshot.config.topic == topic:
                snapshot.messages += found

    def messages(self, name: str, subscription: Subscription) -> Sequence[Message]:
        """What is unacked after a seek of a subscription to a snapshot."""
        snapshot = self._find(name)
        if snapshot.config.topic != subscription.config.topic:
            message = "The snapshot and the subscription are not of the same topic."
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, message)
        return snapshot.messages

    def _find(self, name: str) -> _Snapshot:
        check_name(name, "snapshots")
        if name not in self._snapshots:
            message = f"Snapshot not found (resource={name.rpartition('/')[2]})."
            raise StatusError(grpc.StatusCode.NOT_FOUND, message)
        return self._snapshots[name]
