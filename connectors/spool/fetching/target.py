"""What a connector's fetcher and the process it runs in agree on.

A *target* is the part that knows the service: it receives, decodes, acknowledges. The process around it
(`connectors.spool.fetching.process`) keeps the order, writes segments and decides when something is durable. Between
the two, what was received travels as *deliveries* and *tokens*, which only the target can read:

    service --response--> target --put(delivery)--> intake --decode(deliveries)--> block (rows, token)
                                                               |
    service <---ack------ target <--on_durable(token)---- segment published
    service <---nack----- target <--on_given_up(held)---- or not

Everything that was put is returned exactly once: its block's token by `on_durable`, or the token or the delivery itself
by `on_given_up`, in the order of arrival.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.spool.segments.id_keys import OtherIds
from connectors.spool.segments.segment import PublishTimes, Sizes

Delivery = TypeVar("Delivery")
"""What a target receives and puts into the intake."""
Token = TypeVar("Token")
"""What stands for the deliveries that a block was decoded from."""
Item = TypeVar("Item")


@dataclass(slots=True)
class Block(Generic[Token]):
    """Decoded rows, ready to be written.

    Attributes:
        rows: always of the same schema.
        ids: strings without nulls; None where rows have none.
        sizes: bytes of each row as limits count them.
        token: stands for the deliveries that these rows came from; only the target reads it.
        notes: JSON values for the footer of the segment.
        more: further rows and their sizes, for rows without ids; made while they are written, so that few are in
            memory at a time. `more_rows` and `more_bytes` are their totals.
    """

    rows: pa.RecordBatch
    ids: pa.Array | None
    sizes: Sizes
    published: PublishTimes
    token: Token
    counters: Mapping[str, int] = field(default_factory=dict)
    other_ids: OtherIds | None = None
    notes: Sequence[Any] = ()
    more: Iterable[tuple[pa.RecordBatch, Sizes]] = ()
    more_rows: int = 0
    more_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """The state of a target's streams, those wanted and those open and answered.

    `error` is present trouble, which may pass; `counters` are for people.
    """

    streams: int
    streams_open: int
    error: ConnectorError | None
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Held(Generic[Item]):
    """A delivery, or the token of the block that some became; `row_bytes` is None for a delivery.

    The rows of a delivery are an estimate. `received_at` is the `time.monotonic` of the (first) arrival.
    """

    item: Item
    wire_bytes: int
    rows: int
    received_at: float
    row_bytes: int | None = None


class Intake(Generic[Delivery, Token]):
    """Where a target puts what it receives, and the stages behind it.

    Everything held is in one of four stages, which follow one another in the order of arrival::

        publishing (a closed segment) < writing (the open segment) < decoding < queue

    so "everything held after it" (rule R1) is a matter of joining lists.

    Reading pauses at either cap, and when all that was received uses up the allowance: bytes of rows that this process
    may fetch in all, or None for no limit. What is not decoded counts with its bytes as received, which are more than
    those of its rows. A reader that is let in may bring one more delivery, however large: so one that is larger than
    every limit still passes.
    """

    def __init__(self, max_bytes: int, max_rows: int, allowance: int | None) -> None:
        self.lock = threading.Lock()
        self.work = threading.Condition(self.lock)
        self._may_read = threading.Condition(self.lock)
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._allowance = allowance
        self.wake_at_bytes = 0
        """So many bytes in the queue notify `work`."""
        self.queue: deque[Held[Delivery]] = deque()
        self.decoding: list[Held[Delivery]] = []
        self.writing: list[Held[Token]] = []
        self.publishing: list[Held[Token]] = []
        self.queued_bytes = self.held_bytes = self.held_rows = 0
        self.fetched_bytes = self.fetched_rows = 0
        self._undecoded_bytes = self._decoded_bytes = 0
        self._last_open = time.monotonic()

    # What targets call, in any thread.

    def put(self, delivery: Delivery, wire_bytes: int, rows: int) -> None:
        """Add one delivery; never waits. `rows` is an estimate, which decoding corrects."""
        held = Held(delivery, wire_bytes, rows, time.monotonic())
        with self.lock:
            before = self.queued_bytes
            self.queue.append(held)
            self.queued_bytes += wire_bytes
            self._undecoded_bytes += wire_bytes
            self.held_bytes += wire_bytes
            self.held_rows += rows
            self.fetched_bytes += wire_bytes
            # Waking the writer for every delivery would cost more than the delivery.
            if len(self.queue) == 1 or before < self.wake_at_bytes <= self.queued_bytes or self.full:
                self.work.notify_all()

    def wait(self, timeout: float, cancelled: Callable[[], bool]) -> bool:
        """Wait until reading may continue; False after `timeout` seconds, or as soon as `cancelled` is true."""
        with self.lock:
            self._may_read.wait_for(lambda: self.open or cancelled(), timeout)
            if self.open:
                self._last_open = time.monotonic()
            return self.open and not cancelled()

    def paused_seconds(self) -> float:
        """Return for how long `wait` has let nobody in; 0 while reading may continue."""
        with self.lock:
            return 0.0 if self.open else time.monotonic() - self._last_open

    def wake(self) -> None:
        """Make every `wait` call its `cancelled` now."""
        with self.lock:
            self._may_read.notify_all()
            self.work.notify_all()

    # What the process calls, in any thread.

    def allow(self, allowance: int) -> None:
        """Change the allowance."""
        with self.lock:
            self._allowance = allowance
            self._may_read.notify_all()

    # What is called by a thread that holds `lock`.

    def settled_at(self) -> float:
        """Return a time (`time.monotonic`) before which all that was received is durable or was handed back."""
        stages = (self.publishing, self.writing, self.decoding, self.queue)
        return next((stage[0].received_at for stage in stages if stage), time.monotonic())

    @property
    def full(self) -> bool:
        """Whether a cap is reached."""
        return self.held_bytes >= self._max_bytes or self.held_rows >= self._max_rows

    @property
    def exhausted(self) -> bool:
        """Whether the allowance is used up."""
        return self._allowance is not None and self._decoded_bytes + self._undecoded_bytes >= self._allowance

    @property
    def open(self) -> bool:
        """Whether reading may continue."""
        return not self.full and not self.exhausted

    @property
    def empty(self) -> bool:
        """Whether nothing is held."""
        return not (self.queue or self.decoding or self.writing or self.publishing)

    def take(self, max_bytes: int) -> list[Held[Delivery]]:
        """Move deliveries from the queue to decoding: at least one, if there is one, and up to so many bytes."""
        taken = 0
        while self.queue and (not self.decoding or taken + self.queue[0].wire_bytes <= max_bytes):
            held = self.queue.popleft()
            taken += held.wire_bytes
            self.decoding.append(held)
        self.queued_bytes -= taken
        return list(self.decoding)

    def decoded(self, block: Held[Token]) -> None:
        """Replace what is in decoding by its block, which is being written, or released if it has no rows."""
        self.held_rows += block.rows - sum(held.rows for held in self.decoding)
        self.fetched_rows += block.rows
        self._undecoded_bytes -= block.wire_bytes
        self._decoded_bytes += block.row_bytes or 0
        self.decoding.clear()
        if block.rows:
            self.writing.append(block)
            self._may_read.notify_all()
        else:
            self._release([block])

    def hand_over(self) -> None:
        """Move what was written to publishing, which must be empty."""
        self.publishing, self.writing = self.writing, []

    def published(self) -> list[Held[Token]]:
        """Release what was published, and return it."""
        durable, self.publishing = self.publishing, []
        self._release(durable)
        return durable

    def give_up(self) -> list[Held[Delivery] | Held[Token]]:
        """Release everything, and return it in order of arrival."""
        lost: list[Held[Delivery] | Held[Token]] = [*self.publishing, *self.writing, *self.decoding, *self.queue]
        self.publishing, self.writing = [], []
        self.decoding.clear()
        self.queue.clear()
        self.queued_bytes = 0
        for held in lost:
            if held.row_bytes is None:
                self._undecoded_bytes -= held.wire_bytes
            else:
                self._decoded_bytes -= held.row_bytes
        self._release(lost)
        return lost

    def _release(self, held: Sequence[Held[Delivery] | Held[Token]]) -> None:
        self.held_bytes -= sum(one.wire_bytes for one in held)
        self.held_rows -= sum(one.rows for one in held)
        self._may_read.notify_all()
        self.work.notify_all()


class FetchTarget(Protocol[Delivery, Token]):
    """The part of a fetcher that knows a service. One thread at a time calls each method.

    It passes the failpoint ``fetch.after_ack`` after each successful call that acknowledges, ``fetch.after_nack``
    likewise.
    """

    def start(self, intake: Intake[Delivery, Token]) -> None:
        """Begin to receive, in threads of its own; returns at once. Called again after `stop`, to continue."""

    def stop(self) -> None:
        """Stop receiving; nothing is put any more when this returns, which takes well under a second."""

    def decode(self, deliveries: Sequence[Delivery]) -> Block[Token]:
        """Return the rows of these deliveries, in order; their leases now belong to the block's token."""

    def on_durable(self, token: Token) -> None:
        """Acknowledge a block, which is durable. May wait while too many acks are under way."""

    def on_given_up(self, held: Sequence[Delivery | Token]) -> None:
        """Return to the service, in this order, what will not be stored: tokens of blocks, and deliveries."""

    def status(self) -> TargetStatus:
        """Return its state, from memory; called often."""

    def close(self, deadline: float) -> None:
        """Send the acks and nacks that wait, until `deadline` (`time.monotonic`) at most, then release everything."""


class Orders:
    """What the source process wants of a fetcher now, by name; `FetcherGroup.order` sets it."""

    def __init__(self, orders: Mapping[str, Any] | None = None) -> None:
        self._orders = dict(orders or {})
        self._lock = threading.Lock()
        self._listener: Callable[[str, Any], None] | None = None

    def listen(self, listener: Callable[[str, Any], None]) -> None:
        """Call a function with each present order, and then with each that is set or, by None, withdrawn.

        It is called by one thread at a time, and must not wait. A `ConnectorError` that it raises ends the process.
        """
        with self._lock:
            self._listener = listener
            for name, order in self._orders.items():
                listener(name, order)

    def set(self, name: str, order: Any) -> None:
        """Note an order; None withdraws it."""
        with self._lock:
            self._orders[name] = order
            if order is None:
                del self._orders[name]
            if self._listener is not None:
                self._listener(name, order)


@dataclass(frozen=True, slots=True)
class FetchContext:
    """What the process offers to a target.

    Attributes:
        index: place of this fetcher among those of the spool, from 0.
        changed: call it when `status` has changed in a way that cannot wait half a second.
        fail: call it with an error that ends this process: the whole query stops with a permanent `ConnectorError`;
            after any other error another process is started.
        orders: what the source process wants, beyond the settings.
        note: sends a JSON value to the source process; it is lost if that does not read.
    """

    index: int
    changed: Callable[[], None]
    fail: Callable[[BaseException], None]
    orders: Orders = field(default_factory=Orders)
    note: Callable[[Any], None] = lambda _value: None
