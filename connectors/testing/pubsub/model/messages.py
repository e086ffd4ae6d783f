"""The things that a Pub/Sub subscription is made of: messages, their entries, consumers, leases."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from connectors.testing.clock import Schedule
from connectors.testing.pubsub.faults.events import EventLog
from connectors.testing.pubsub.faults.plan import FaultPlan
from connectors.testing.pubsub.wire import frame_attempt

__all__ = ["AckedMessages", "Consumer", "Delivery", "Entry", "Lease", "Machinery", "Message"]


class Message:
    """A published message, shared by all subscriptions of its topic."""

    __slots__ = ("attributes", "framed", "id", "ordering_key", "published_ns", "size")

    def __init__(
        self,
        message_id: str,
        published_ns: int,
        ordering_key: str,
        framed: bytes,
        size: int,
        attributes: Mapping[str, str],
    ) -> None:
        self.id = message_id
        self.published_ns = published_ns
        self.ordering_key = ordering_key
        self.framed = framed
        """The field ``message`` of a ``ReceivedMessage``, as bytes."""
        self.size = size
        """Bytes of the serialised ``PubsubMessage``; what flow control counts."""
        self.attributes = attributes


class Entry:
    """A message in one subscription."""

    __slots__ = ("deliveries", "holder", "late_numbers", "live", "message", "numbers", "returned", "sequence")

    def __init__(self, message: Message, sequence: int) -> None:
        self.message = message
        self.sequence = sequence
        """Place in the order of publishing."""
        self.live = True
        """False once it is acked or dropped."""
        self.numbers: tuple[int, ...] = ()
        """Deliveries that are under way: one, or more when a fault doubles it."""
        self.late_numbers: tuple[int, ...] = ()
        """Deliveries that expired since it was last handed out."""
        self.deliveries = 0
        self.returned = 0
        """How often a fault brought it back after its ack."""
        self.holder = ""
        """Id of the consumer that had it last."""


class Consumer:
    """One receiver of messages, a stream or a Pull, and how much it may hold."""

    __slots__ = ("client_id", "deadline_ns", "held_bytes", "held_messages", "id", "max_bytes", "max_messages")

    def __init__(
        self, consumer_id: str, deadline_ns: int, max_messages: int = 0, max_bytes: int = 0, client_id: str = ""
    ) -> None:
        self.id = consumer_id
        self.client_id = client_id
        self.deadline_ns = deadline_ns
        """Server nanoseconds from a delivery to its deadline."""
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        """Limits of flow control; 0 or less means none."""
        self.held_messages = 0
        self.held_bytes = 0

    def has_room(self) -> bool:
        """True if flow control lets one more message through; the last one may go over the limit of bytes."""
        if 0 < self.max_messages <= self.held_messages:
            return False
        return not 0 < self.max_bytes <= self.held_bytes


class Lease:
    """One delivery that is under way."""

    __slots__ = ("consumer", "deadline", "entry")

    def __init__(self, entry: Entry, consumer: Consumer, deadline: int) -> None:
        self.entry = entry
        self.consumer = consumer
        self.deadline = deadline
        consumer.held_messages += 1
        consumer.held_bytes += entry.message.size

    def release(self) -> None:
        """Give its room back to the consumer."""
        self.consumer.held_messages -= 1
        self.consumer.held_bytes -= self.entry.message.size


@dataclass(slots=True)
class Delivery:
    """Messages that go out in one response; the delivery number of the i-th is ``first_number + i``."""

    consumer: Consumer
    max_messages: int
    max_bytes: int
    ignore_flow_control: bool
    first_number: int = 0
    messages: list[Message] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    """How often each was delivered, where a dead-letter policy counts that; else empty."""
    size: int = 0

    def framed(self) -> list[bytes]:
        """The fields of each ``ReceivedMessage`` but its ack id."""
        if not self.attempts:
            return [message.framed for message in self.messages]
        pairs = zip(self.messages, self.attempts, strict=True)
        return [message.framed + frame_attempt(attempt) for message, attempt in pairs]

    def fits(self, message: Message) -> bool:
        """True if a message may be added; the first one may be of any size."""
        if not self.ignore_flow_control and not self.consumer.has_room():
            return False
        count = len(self.messages)
        return not count or (count < self.max_messages and self.size + message.size <= self.max_bytes)


class AckedMessages:
    """The newest acked entries, so that a fault can bring them back."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._max_messages = max_messages
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[Entry]:
        """From the oldest ack to the newest; an entry that was acked twice comes twice."""
        return iter(self._entries)

    def clear(self) -> None:
        """Forget all of them."""
        self._entries.clear()
        self._bytes = 0

    def add(self, entry: Entry) -> None:
        """Keep an entry, and forget the oldest ones beyond the limits."""
        self._entries.append(entry)
        self._bytes += entry.message.size
        while self._entries and (len(self._entries) > self._max_messages or self._bytes > self._max_bytes):
            self._bytes -= self._entries.popleft().message.size


@dataclass
class Machinery:
    """What all subscriptions of a server share."""

    schedule: Schedule
    events: EventLog
    faults: FaultPlan
    keep_acked_messages: int = 100_000
    keep_acked_bytes: int = 64_000_000
    delivery_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    forward: Callable[[int, Entry, str], bool] = lambda _now, _entry, _subscription: False
    """Publishes an entry to the dead-letter topic of a subscription; says whether it could."""
