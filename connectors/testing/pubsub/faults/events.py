"""What happened in the Pub/Sub server, in order: the list that tests read."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Event", "EventKind", "EventLog"]


class EventKind(StrEnum):
    """The kinds of events; each value is the text that stands in `Event.kind`."""

    PUBLISH = "publish"
    """A message was published (one event per message, whatever the number of subscriptions)."""
    DELIVER = "deliver"
    """A message was handed to a stream or a Pull; written before its bytes leave the server."""
    ACK = "ack"
    """A message was acked."""
    ACK_LOST = "ack-lost"
    """An ack came in and was dropped, by `lose_acks`."""
    ACK_DEFERRED = "ack-deferred"
    """An ack came in and takes effect later, by `delay_acks`; ``ack`` or ``ack-stale`` follows then."""
    ACK_STALE = "ack-stale"
    """An ack came in for a delivery that is over; it changes nothing."""
    ACK_REFUSED = "ack-refused"
    """An Acknowledge call came in and was answered with an error, by `fail`; or an ack was, by `refuse_acks`."""
    NACK = "nack"
    """A message was nacked."""
    MODACK = "modack"
    """The deadline of a delivery was moved; `Event.detail` holds the seconds."""
    MODACK_STALE = "modack-stale"
    """A deadline was to be moved for a delivery that is over; it changes nothing."""
    EXPIRE = "expire"
    """The deadline of a delivery passed."""
    REDELIVER = "redeliver"
    """An acked message was put back, by `redeliver` or `redeliver_acked`."""
    DROP = "drop"
    """A message left the subscription unacked: its retention was over, or the subscription was detached."""
    DEAD_LETTER = "dead-letter"
    """A message was published to the dead-letter topic instead of coming again."""
    SEEK = "seek"
    """The subscription was sought; `Event.detail` says to what. One event for each message that is unacked then."""
    STREAM_OPEN = "stream-open"
    """A StreamingPull was accepted; `Event.detail` holds its client id."""
    STREAM_CLOSE = "stream-close"
    """A StreamingPull ended; `Event.detail` holds the status that the server gave, or ``CANCELLED``."""
    RPC_ERROR = "rpc-error"
    """A call was answered with an error by `fail`; `Event.detail` holds method and status."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Attributes:
        index: place in the order of events, from 0, without gaps.
        monotonic_ns: `time.monotonic_ns` when it happened; on Linux comparable between processes.
        server_ns: the server's own clock, nanoseconds since 1970.
        kind: a value of `EventKind`.
        message_id: the message, or "" when the event is about none or its message is not known any more.
        subscription: full name, or "" for ``publish``.
        stream: id of the stream or Pull, or "".
        detail: see `EventKind`.
    """

    index: int
    monotonic_ns: int
    server_ns: int
    kind: str
    message_id: str
    subscription: str
    stream: str
    detail: str

    def to_json(self) -> dict[str, object]:
        """The event as a JSON object with the attributes as keys."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _Record:
    """Events that happened together, kept as one: a batch costs one record, not one object per message."""

    first_index: int
    monotonic_ns: int
    server_ns: int
    kind: EventKind
    message_ids: Sequence[str]
    subscription: str
    stream: str
    detail: str

    def events(self, since: int) -> Iterator[Event]:
        skipped = max(0, since - self.first_index)
        for index, message_id in enumerate(self.message_ids[skipped:], self.first_index + skipped):
            yield Event(
                index,
                self.monotonic_ns,
                self.server_ns,
                self.kind.value,
                message_id,
                self.subscription,
                self.stream,
                self.detail,
            )


class EventLog:
    """The newest events in order, and counters of all there ever were; not thread-safe.

    Args:
        limit: how many events are kept, about; the oldest go first, and 0 keeps none. The counters go on.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: deque[_Record] = deque()
        self._next_index = 0
        self._counters: Counter[str] = Counter()

    def record(
        self,
        kind: EventKind,
        now: int,
        message_ids: Sequence[str] = ("",),
        *,
        subscription: str = "",
        stream: str = "",
        detail: str = "",
    ) -> None:
        """Add one event for each of ``message_ids``, which must not change afterwards; none when that is empty."""
        if not message_ids:
            return
        self._counters[kind.value] += len(message_ids)
        first = self._next_index
        self._next_index += len(message_ids)
        if self._limit:
            moment = time.monotonic_ns()
            self._records.append(_Record(first, moment, now, kind, message_ids, subscription, stream, detail))
            while self._next_index - self._records[0].first_index > self._limit and len(self._records) > 1:
                self._records.popleft()

    def first_kept(self) -> int:
        """The index of the oldest event that is still kept; the next index when none is."""
        return self._records[0].first_index if self._records else self._next_index

    def select(
        self, since: int = 0, kinds: Collection[str] | None = None, subscription: str | None = None
    ) -> Iterator[Event]:
        """The kept events with an index of at least ``since``, of the given kinds and subscription (None: all).

        What is found is settled before this returns: the events may be made from it without the lock.
        """
        found = [
            record
            for record in self._records
            if record.first_index + len(record.message_ids) > since
            and (kinds is None or record.kind.value in kinds)
            and (subscription is None or record.subscription == subscription)
        ]
        return (event for record in found for event in record.events(since))

    def counters(self) -> dict[str, int]:
        """How many events of each kind there were since the start; every kind is there."""
        return {kind.value: self._counters[kind.value] for kind in EventKind}
