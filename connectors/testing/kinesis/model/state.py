"""The streams of a Kinesis server, and what all its operations need; all of it is used by one thread."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from connectors.testing.clock import SECOND, Schedule, ServerClock
from connectors.testing.kinesis.faults.plan import FaultPlan
from connectors.testing.kinesis.model.rules import ACCOUNT, Arguments, ServiceError
from connectors.testing.kinesis.model.streams import HASH_KEYS, Stream

__all__ = ["KinesisState", "read_token", "write_token"]


def write_token(*values: str | int) -> str:
    """An opaque text for a client to send back: an iterator, or the next page of a list."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def read_token(text: str, length: int) -> list[Any] | None:
    """The values of `write_token`; None for any other text."""
    try:
        values = json.loads(base64.urlsafe_b64decode(text.encode()))
    except ValueError:
        return None
    return values if isinstance(values, list) and len(values) == length else None


class KinesisState:
    """See the top of this module.

    Args:
        clock: server time.
        region: stands in ARNs.
        faults: the rules in force.
    """

    def __init__(self, clock: ServerClock, region: str, faults: FaultPlan) -> None:
        self.clock = clock
        self.region = region
        self.faults = faults
        self.schedule = Schedule()
        self.streams: dict[str, Stream] = {}
        self.transition_ns = 0
        """Server time that a stream is CREATING, UPDATING or DELETING."""
        self._created = 0
        self._last_created: dict[str, int] = {}

    def arn(self, stream: str) -> str:
        """The ARN of a stream."""
        return f"arn:aws:kinesis:{self.region}:{ACCOUNT}:stream/{stream}"

    def create(self, name: str, now: int, shards: int, *, on_demand: bool, max_record_kib: int) -> Stream:
        """Make a stream; it must be absent."""
        # Whole seconds, as the service shows them: a stream that is made again is to be told apart all the same.
        created = max(now // SECOND, self._last_created.get(name, 0) + 1)
        self._last_created[name] = created
        self._created += 1
        stream = Stream(name, self.arn(name), self._created, created, on_demand, max_record_kib)
        self.streams[name] = stream

        def activate(now: int) -> None:
            edges = [HASH_KEYS * place // shards for place in range(shards + 1)]
            for first, after in pairwise(edges):
                stream.add_shard(now, first, after - 1)
            stream.shards_changed()
            stream.status = "ACTIVE"

        self.after_transition(now, activate)
        return stream

    def delete(self, stream: Stream, now: int) -> None:
        """Delete a stream and all that it holds."""
        stream.status = "DELETING"

        def vanish(_now: int) -> None:
            if self.streams.get(stream.name) is stream:
                self.remove(stream)

        self.after_transition(now, vanish)

    def remove(self, stream: Stream) -> None:
        """Forget a stream; its subscriptions end."""
        del self.streams[stream.name]
        for consumer in stream.consumers.values():
            for subscription in list(consumer.subscriptions.values()):
                subscription.fail("ResourceNotFoundException", f"Stream {stream.name} was deleted.")

    def after_transition(self, now: int, action: Callable[[int], None]) -> None:
        """Run what ends a transition: at once, unless these take time."""
        if self.transition_ns:
            self.schedule.at(now + self.transition_ns, action)
        else:
            action(now)

    def stream(self, arguments: Arguments, now: int) -> Stream:
        """The stream that a call is about, without what is past its retention."""
        return self.stream_named(arguments.stream(), now)

    def stream_named(self, name: str, now: int) -> Stream:
        """A stream by its name, without what is past its retention."""
        stream = self.streams.get(name)
        if stream is None:
            raise ServiceError("ResourceNotFoundException", f"Stream {name} under account {ACCOUNT} not found.")
        stream.trim(now)
        return stream

    def active_stream(self, arguments: Arguments, now: int) -> Stream:
        """The stream that a call is about, which must be ACTIVE."""
        stream = self.stream(arguments, now)
        if stream.status != "ACTIVE":
            message = f"Stream {stream.name} under account {ACCOUNT} not ACTIVE, instead in state {stream.status}"
            raise ServiceError("ResourceInUseException", message)
        return stream
