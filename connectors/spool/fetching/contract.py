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

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import write_error
from connectors.spool.fetching.messages import FetchPlan, Health
from connectors.spool.fetching.room import FetcherEndedError, FetcherFolder
from connectors.spool.segments.id_keys import OtherIds, keys_of, no_keys
from connectors.spool.segments.segment import PublishTimes, SegmentInfo, SegmentWriter, Sizes, segment_name
from connectors.spool.store.disk_space import require_free_space

_log = logging.getLogger(__name__)

_BLOCK_BYTES: Final = 4 << 20
_PROBE_BYTES: Final = 8 << 20
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 5.0

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
    """The state of a target's streams: how many it wants, and how many are open and answered.

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
        """Send pending acks and nacks, until `deadline` (`time.monotonic`) at most, then release everything."""


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


class IntakeObserver(Protocol):
    """Receives what happens in an `Intake`, in its threads."""

    def published(self, segment: SegmentInfo) -> None:
        """Note that a segment is durable; its rows are not acked yet."""

    def disk_changed(self, error: OSError | None) -> None:
        """Note why the disk refuses data; None if it accepts data again."""

    def failed(self, error: BaseException) -> None:
        """End this process: a thread has ended with an error."""


class Intake(Generic[Delivery, Token]):
    """Where a target puts what it receives: from there one thread writes segments, and one publishes them.

    A target calls `put`, `wait`, `paused_seconds` and `wake`; the rest is for the process around it.

    Everything held is in one of four stages, which follow one another in the order of arrival::

        publishing (a closed segment) < writing (the open segment) < decoding < queue

    so "everything held after it" (rule R1) is a matter of joining lists. While one segment is synced, the next is
    received and written; number n+1 is published only after n. When a segment cannot be stored, everything held after
    it is given up too, in the order of arrival, and fetching pauses until the disk takes data again, without help
    (rule R10).

    Reading pauses at either cap of the plan, and when all that was received uses up the allowance: bytes of rows that
    this process may fetch in all, or None for no limit. What is not decoded counts with its bytes as received, which
    are more than those of its rows. Once admitted, a reader may add one more delivery of any size, so a delivery larger
    than every limit still gets through.
    """

    def __init__(self, plan: FetchPlan, observer: IntakeObserver, allowance: int | None = None) -> None:
        self._plan = plan
        self._observer = observer
        self._allowance = allowance
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._may_read = threading.Condition(self._lock)
        self._queue: deque[Held[Delivery]] = deque()
        self._decoding: list[Held[Delivery]] = []
        self._writing: list[Held[Token]] = []
        self._publishing: list[Held[Token]] = []
        self._queued_bytes = self._held_bytes = self._held_rows = 0
        self._fetched_bytes = self._fetched_rows = 0
        self._undecoded_bytes = self._decoded_bytes = 0
        self._last_open = time.monotonic()
        self._block_bytes = min(_BLOCK_BYTES, plan.segment_bytes)
        self._segment: SegmentWriter | None = None
        self._segment_since = 0.0
        self._rolled_at = -math.inf
        self._to_publish: SegmentWriter | None = None
        self._publish_error: OSError | None = None
        self._published = 0
        self._pause = 0.0
        self._receiving = threading.Lock()
        self._acking = self._stopping = self._closing = self._abandoned = False

    # What targets call, in any thread.

    def put(self, delivery: Delivery, wire_bytes: int, rows: int) -> None:
        """Add one delivery; never waits. `rows` is an estimate, which decoding corrects."""
        held = Held(delivery, wire_bytes, rows, time.monotonic())
        with self._lock:
            before = self._queued_bytes
            self._queue.append(held)
            self._queued_bytes += wire_bytes
            self._undecoded_bytes += wire_bytes
            self._held_bytes += wire_bytes
            self._held_rows += rows
            self._fetched_bytes += wire_bytes
            # Waking the writer for every delivery would cost more than the delivery.
            if len(self._queue) == 1 or before < self._block_bytes <= self._queued_bytes or self._is_full:
                self._work.notify_all()

    def wait(self, timeout: float, cancelled: Callable[[], bool]) -> bool:
        """Wait until reading may continue; False after `timeout` seconds, or as soon as `cancelled` is true."""
        with self._lock:
            self._may_read.wait_for(lambda: self._is_open or cancelled(), timeout)
            if self._is_open:
                self._last_open = time.monotonic()
            return self._is_open and not cancelled()

    def paused_seconds(self) -> float:
        """Return for how long `wait` has let nobody in; 0 while reading may continue."""
        with self._lock:
            return 0.0 if self._is_open else time.monotonic() - self._last_open

    def wake(self) -> None:
        """Make every `wait` call its `cancelled` now."""
        with self._lock:
            self._may_read.notify_all()
            self._work.notify_all()

    # What the process calls, in any thread.

    def start(self, folder: FetcherFolder, target: FetchTarget[Delivery, Token]) -> None:
        """Start both threads, and receiving."""
        self._folder, self._target = folder, target
        for name, step in (("write", self._write_next), ("publish", self._publish_next)):
            threading.Thread(target=self._run, args=(step,), name=name, daemon=True).start()
        self._receive()

    def allow(self, allowance: int) -> None:
        """Change the allowance."""
        with self._lock:
            self._allowance = allowance
            self._may_read.notify_all()

    def health(self, status: TargetStatus, error: ConnectorError | None) -> Health:
        """Return what to report: the state of the target, what is held, and what is wrong."""
        with self._lock:
            stages = (self._publishing, self._writing, self._decoding, self._queue)
            return Health(
                held_bytes=self._held_bytes,
                held_rows=self._held_rows,
                fetched_bytes=self._fetched_bytes,
                fetched_rows=self._fetched_rows,
                paused=not self._is_open,
                settled_at=next((stage[0].received_at for stage in stages if stage), time.monotonic()),
                streams=status.streams,
                streams_open=status.streams_open,
                error=error,
                counters=status.counters,
            )

    def stop_receiving(self) -> None:
        """Stop the target, for good."""
        with self._receiving:
            self._stopping = True
            self._target.stop()

    def close(self, deadline: float) -> bool:
        """Publish what is held, after `stop_receiving`; False if `deadline` (`time.monotonic`) passed before."""
        with self._lock:
            self._closing = True
            self._work.notify_all()
            self._work.wait_for(lambda: self._abandoned or self._is_done, deadline - time.monotonic())
            return self._is_done

    def abandon(self) -> None:
        """Give up everything that is not durable, and ack nothing more that was under way."""
        with self._lock:
            self._closing = self._abandoned = True
            lost = self._give_up_held()
        self._hand_back(lost)

    # What is called with the lock held.

    @property
    def _is_full(self) -> bool:
        return self._held_bytes >= self._plan.max_held_bytes or self._held_rows >= self._plan.max_held_rows

    @property
    def _is_open(self) -> bool:
        used = self._decoded_bytes + self._undecoded_bytes
        return not self._is_full and (self._allowance is None or used < self._allowance)

    @property
    def _is_empty(self) -> bool:
        return not (self._queue or self._decoding or self._writing or self._publishing)

    @property
    def _is_done(self) -> bool:
        return self._is_empty and not self._acking

    def _take(self) -> list[Held[Delivery]]:
        """Move deliveries from the queue to decoding: at least one, if there is one, and up to a block."""
        taken = 0
        while self._queue and (not self._decoding or taken + self._queue[0].wire_bytes <= self._block_bytes):
            held = self._queue.popleft()
            taken += held.wire_bytes
            self._decoding.append(held)
        self._queued_bytes -= taken
        return list(self._decoding)

    def _give_up_held(self) -> list[Held[Delivery] | Held[Token]]:
        """Release everything, and return it in order of arrival."""
        lost: list[Held[Delivery] | Held[Token]] = [*self._publishing, *self._writing, *self._decoding, *self._queue]
        self._publishing, self._writing = [], []
        self._decoding.clear()
        self._queue.clear()
        self._queued_bytes = 0
        for held in lost:
            if held.row_bytes is None:
                self._undecoded_bytes -= held.wire_bytes
            else:
                self._decoded_bytes -= held.row_bytes
        self._release(lost)
        return lost

    def _release(self, held: Sequence[Held[Delivery] | Held[Token]]) -> None:
        self._held_bytes -= sum(one.wire_bytes for one in held)
        self._held_rows -= sum(one.rows for one in held)
        self._may_read.notify_all()
        self._work.notify_all()

    # Both threads.

    def _receive(self) -> None:
        with self._receiving:
            if not self._stopping:
                self._target.start(self)

    def _run(self, step: Callable[[], bool]) -> None:
        try:
            while step():
                pass
        except Exception as error:  # noqa: BLE001 - it is reported, and ends this process
            with self._lock:
                self._closing = self._abandoned = True
                self._work.notify_all()
            self._observer.failed(error)

    # The writing thread.

    def _write_next(self) -> bool:
        taken, roll = self._wait_for_work()
        if self._abandoned:
            return False
        try:
            if self._publish_error is not None:
                raise self._publish_error
            if taken:
                self._append(taken)
            segment, plan = self._segment, self._plan
            if segment is not None and (
                roll or segment.bytes >= plan.segment_bytes or segment.rows >= plan.segment_rows
            ):
                self._hand_over(segment)
        except OSError as error:
            self._give_up(error)
            self._recover(error)
        with self._lock:
            return not (self._closing and self._is_empty)

    def _wait_for_work(self) -> tuple[list[Held[Delivery]], bool]:
        """Wait until a block can be filled or a segment is due; return deliveries to decode and whether to roll."""
        with self._lock:
            while not self._closing and self._publish_error is None:
                # When the oldest row that is not in a closed segment arrived.
                oldest = self._queue[0].received_at if self._queue else None
                if self._segment is not None:
                    oldest = self._segment_since
                # While the one before is being published a segment may grow beyond its time: it could not go anyway.
                due_at = None if oldest is None else max(oldest, self._rolled_at + self._plan.publish_period)
                wait = None if due_at is None or self._publishing else due_at - time.monotonic()
                if wait is not None and (wait <= 0 or self._is_full):
                    return self._take(), True
                if self._queued_bytes >= self._block_bytes:
                    return self._take(), False
                self._work.wait(wait)
            if not self._queue and self._segment is None:
                self._work.wait_for(lambda: self._is_empty or self._publish_error or self._abandoned)
            if self._publish_error is not None or self._abandoned:
                return [], False
            return self._take(), not self._queue

    def _append(self, taken: list[Held[Delivery]]) -> None:
        failpoint("fetch.before_decode")
        block = self._target.decode([held.item for held in taken])
        wire_bytes = sum(held.wire_bytes for held in taken)
        rows, row_bytes = len(block.rows) + block.more_rows, int(block.sizes.sum()) + block.more_bytes
        held = Held(block.token, wire_bytes, rows, taken[0].received_at, row_bytes)
        with self._lock:
            if self._abandoned:
                return
            # Register it first: if the write fails, the block must be handed back, because it owns the leases now.
            self._held_rows += rows - sum(delivery.rows for delivery in taken)
            self._fetched_rows += rows
            self._undecoded_bytes -= wire_bytes
            self._decoded_bytes += row_bytes
            self._decoding.clear()
            if rows:
                self._writing.append(held)
                self._may_read.notify_all()
            else:
                self._release([held])
            number = self._published + bool(self._publishing)  # of a segment that begins now
        if rows:
            if self._segment is None:
                store, plan, fetcher = self._folder.store, self._plan, self._folder.fetcher
                self._segment = SegmentWriter(
                    store, plan.spool, fetcher, number, block.rows.schema, plan.source, compression=plan.compression
                )
                self._segment_since = taken[0].received_at
            ids = block.ids
            keys = no_keys(len(block.rows)) if ids is None else keys_of(ids, self._plan.hash_key, block.other_ids)
            self._segment.append(block.rows, keys, block.sizes, block.published, dict(block.counters), block.notes)
            for more, sizes in block.more:
                self._segment.append(more, no_keys(len(more)), sizes, None)
        else:
            self._target.on_durable(held.item)

    def _hand_over(self, segment: SegmentWriter) -> None:
        """Pass the open segment to the publishing thread, when that has finished the one before."""
        with self._lock:
            self._work.wait_for(lambda: not self._publishing or self._publish_error or self._abandoned)
            if self._publish_error is not None:
                raise self._publish_error
            if not self._abandoned:
                self._publishing, self._writing = self._writing, []
                self._rolled_at = time.monotonic()
                self._to_publish, self._segment = segment, None
                self._work.notify_all()

    # The publishing thread.

    def _publish_next(self) -> bool:
        with self._lock:
            self._work.wait_for(lambda: self._to_publish or self._abandoned or (self._closing and self._is_empty))
            segment, self._to_publish = self._to_publish, None
        if segment is None:
            return False
        try:
            self._folder.check()
            failpoint("fetch.before_publish")
            if self._abandoned:
                return False
            require_free_space(self._folder.store)
            info = segment.publish()
        except OSError as error:
            _discard(segment)
            with self._lock:
                self._publish_error = error
                self._work.notify_all()
            return True
        self._acknowledge(info)
        return not self._abandoned

    def _acknowledge(self, info: SegmentInfo) -> None:
        with self._lock:
            self._published += 1
            self._pause = 0.0
            self._acking = True
            # What was abandoned is handed back already and redelivered; the ledger drops the duplicate.
            durable: list[Held[Token]] = []
            if not self._abandoned:
                durable, self._publishing = self._publishing, []
                self._release(durable)
        try:
            self._observer.published(info)
            failpoint("fetch.after_publish_before_ack")
            for held in durable:
                self._target.on_durable(held.item)
        finally:
            with self._lock:
                self._acking = False
                self._work.notify_all()

    # When a segment cannot be stored.

    def _give_up(self, error: OSError) -> None:
        """Give up everything held, after the segment that may still be on its way to the disk."""
        self._observer.disk_changed(error)
        with self._receiving:
            self._target.stop()
        with self._lock:
            if self._publish_error is None:
                # The open segment failed; the one before may yet be published, and goes first.
                self._work.wait_for(lambda: not self._publishing or self._publish_error or self._abandoned)
            self._publish_error = None
            lost = self._give_up_held()
        segment, self._segment = self._segment, None
        if segment is not None:
            _discard(segment)
        self._hand_back(lost)
        if self._folder.store.exists(segment_name(self._folder.fetcher, self._published)):
            # It has its name, yet perhaps not durably: the number can be neither used again nor skipped.
            raise FetcherEndedError("a segment may or may not be durable")

    def _hand_back(self, lost: list[Held[Delivery] | Held[Token]]) -> None:
        failpoint("fetch.before_nack")
        if lost:
            self._target.on_given_up([held.item for held in lost])

    def _recover(self, error: OSError) -> None:
        """Wait until the disk takes data, then receive again."""
        _log.warning("%s The messages received went back to the service.", write_error(error, self._plan.root))
        while not self._closing:
            self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
            with self._lock:
                if self._work.wait_for(lambda: self._closing, self._pause):
                    return
            self._folder.check()
            if self._disk_takes_data():
                self._observer.disk_changed(None)
                self._receive()
                return

    def _disk_takes_data(self) -> bool:
        try:
            with self._folder.store.writer(f"{self._folder.name}/probe") as probe:
                probe.write(bytes(_PROBE_BYTES))
                require_free_space(self._folder.store)
        except OSError:
            return False
        return True


def _discard(segment: SegmentWriter) -> None:
    with contextlib.suppress(OSError):
        # Its temporary file, if it cannot even be removed, goes when the next writer opens the spool.
        segment.discard()
