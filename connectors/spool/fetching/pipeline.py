"""From what was received to what is durable: one thread writes segments, one publishes them (rule R1).

While one segment is synced, the next is received and written; number n+1 is published only after n. When a segment
cannot be stored, everything held after it is given up too, in the order of arrival, and fetching pauses until the disk
takes data again, without help (rule R10).
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol

from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import write_error
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.fetching.target import Delivery, FetchTarget, Held, Intake, Token
from connectors.spool.ledger.identity import check_identity
from connectors.spool.segments.id_keys import keys_of, no_keys
from connectors.spool.segments.segment import SegmentInfo, SegmentWriter, segment_name
from connectors.spool.store import open_store
from connectors.spool.store.base import FolderHold, StoreAccess
from connectors.spool.store.disk_space import require_free_space

_log = logging.getLogger(__name__)

_BLOCK_BYTES: Final = 4 << 20
_PROBE_BYTES: Final = 8 << 20
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 5.0
_LOCK_TRIES: Final = 200
_LOCK_POLL: Final = 0.005


class FetcherEndedError(Exception):
    """Raised when this process must end and another may replace it, though nothing is wrong."""


class FetcherFolder:
    """The folder of one fetcher process, with its lock (rule R2); `SpoolError` if the spool of this id is not there."""

    def __init__(self, root: str, access: StoreAccess | None = None, spool: str | None = None) -> None:
        self.fetcher = secrets.token_hex(8)
        self.store = open_store(root, self.fetcher, access)
        self.name = f"inbox/{self.fetcher}"
        if spool is not None:
            check_identity(self.store, spool)
        failpoint("fetch.before_folder")
        self.store.make_folder(self.name)
        failpoint("fetch.after_folder")
        self._hold = self._acquire()

    def _acquire(self) -> FolderHold:
        for _ in range(_LOCK_TRIES):
            # A reader that tests whether the lock is free holds it for a moment, and removes the folder if it can.
            try:
                hold = self.store.hold_folder(self.name)
            except FileNotFoundError:
                break
            if hold is not None:
                if hold.is_present():
                    return hold
                hold.release()
                break
            time.sleep(_LOCK_POLL)
        raise FetcherEndedError("the folder was removed before it could be locked")

    def check(self) -> None:
        """Raise `FetcherEndedError` if nothing more can be published in the folder."""
        if not self._hold.is_present():
            raise FetcherEndedError("its folder in the spool was removed or closed")

    def release(self) -> None:
        """Release the folder; the end of a process does that too."""
        self._hold.release()


class PipelineObserver(Protocol):
    """Receives what happens in a `Pipeline`, in its threads."""

    def published(self, segment: SegmentInfo) -> None:
        """Note that a segment is durable; its rows are not acked yet."""

    def disk_changed(self, error: OSError | None) -> None:
        """Note why the disk refuses data, or by None that it takes data again."""

    def failed(self, error: BaseException) -> None:
        """End this process: a thread has ended with an error."""


class Pipeline(Generic[Delivery, Token]):
    """The writing and the publishing thread of a fetcher; the target puts deliveries into the intake."""

    def __init__(
        self,
        plan: FetchPlan,
        folder: FetcherFolder,
        target: FetchTarget[Delivery, Token],
        intake: Intake[Delivery, Token],
        observer: PipelineObserver,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._target = target
        self._intake = intake
        self._observer = observer
        self._block_bytes = intake.wake_at_bytes = min(_BLOCK_BYTES, plan.segment_bytes)
        self._segment: SegmentWriter | None = None
        self._segment_since = 0.0
        self._rolled_at = -math.inf
        self._to_publish: SegmentWriter | None = None
        self._publish_error: OSError | None = None
        self._published = 0
        self._pause = 0.0
        self._receiving = threading.Lock()
        self._acking = self._stopping = self._closing = self._abandoned = False
        self._threads = [
            threading.Thread(target=self._run, args=(step,), name=name, daemon=True)
            for name, step in (("write", self._write_next), ("publish", self._publish_next))
        ]

    def start(self) -> None:
        """Start both threads, and receiving."""
        for thread in self._threads:
            thread.start()
        self._receive()

    def stop_receiving(self) -> None:
        """Stop the target, for good."""
        with self._receiving:
            self._stopping = True
            self._target.stop()

    def close(self, deadline: float) -> bool:
        """Publish what is held, after `stop_receiving`; False if `deadline` (`time.monotonic`) passed before."""
        with self._intake.lock:
            self._closing = True
            self._intake.work.notify_all()
            self._intake.work.wait_for(lambda: self._abandoned or self._done(), deadline - time.monotonic())
            return self._done()

    def abandon(self) -> None:
        """Give up everything that is not durable, and ack nothing more that was under way."""
        with self._intake.lock:
            self._closing = self._abandoned = True
            lost = self._intake.give_up()
            self._intake.work.notify_all()
        self._hand_back(lost)

    def _receive(self) -> None:
        with self._receiving:
            if not self._stopping:
                self._target.start(self._intake)

    def _run(self, step: Callable[[], bool]) -> None:
        """Run the steps of a thread until one returns False."""
        try:
            while step():
                pass
        except Exception as error:  # noqa: BLE001 - it is reported, and ends this process
            with self._intake.lock:
                self._closing = self._abandoned = True
                self._intake.work.notify_all()
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
        with self._intake.lock:
            return not (self._closing and self._intake.empty)

    def _wait_for_work(self) -> tuple[list[Held[Delivery]], bool]:
        """Wait until a block can be filled or a segment is due; return deliveries to decode and whether to roll."""
        intake = self._intake
        with intake.lock:
            while not self._closing and self._publish_error is None:
                # When the oldest row that is not in a closed segment arrived.
                oldest = intake.queue[0].received_at if intake.queue else None
                if self._segment is not None:
                    oldest = self._segment_since
                idle = not intake.publishing
                # While the one before is being published a segment may grow beyond its time: it could not go anyway.
                due_at = None if oldest is None else max(oldest, self._rolled_at + self._plan.publish_period)
                wait = None if due_at is None or not idle else due_at - time.monotonic()
                if wait is not None and (wait <= 0 or intake.full):
                    return intake.take(self._block_bytes), True
                if intake.queued_bytes >= self._block_bytes:
                    return intake.take(self._block_bytes), False
                intake.work.wait(wait)
            if not intake.queue and self._segment is None:
                intake.work.wait_for(lambda: intake.empty or self._publish_error or self._abandoned)
            if self._publish_error is not None or self._abandoned:
                return [], False
            return intake.take(self._block_bytes), not intake.queue

    def _append(self, taken: list[Held[Delivery]]) -> None:
        failpoint("fetch.before_decode")
        block = self._target.decode([held.item for held in taken])
        wire_bytes = sum(held.wire_bytes for held in taken)
        rows, row_bytes = len(block.rows) + block.more_rows, int(block.sizes.sum()) + block.more_bytes
        held = Held(block.token, wire_bytes, rows, taken[0].received_at, row_bytes)
        with self._intake.lock:
            if self._abandoned:
                return
            # Register it first: if the write fails, the block must be handed back, because it owns the leases now.
            self._intake.decoded(held)
            number = self._published + bool(self._intake.publishing)  # of a segment that begins now
        if held.rows:
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
        with self._intake.lock:
            self._intake.work.wait_for(lambda: not self._intake.publishing or self._publish_error or self._abandoned)
            if self._publish_error is not None:
                raise self._publish_error
            if not self._abandoned:
                self._intake.hand_over()
                self._rolled_at = time.monotonic()
                self._to_publish, self._segment = segment, None
                self._intake.work.notify_all()

    # The publishing thread.

    def _publish_next(self) -> bool:
        with self._intake.lock:
            self._intake.work.wait_for(
                lambda: self._to_publish or self._abandoned or (self._closing and self._intake.empty)
            )
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
            with self._intake.lock:
                self._publish_error = error
                self._intake.work.notify_all()
            return True
        self._acknowledge(info)
        return not self._abandoned

    def _acknowledge(self, info: SegmentInfo) -> None:
        with self._intake.lock:
            self._published += 1
            self._pause = 0.0
            self._acking = True
            # What was abandoned is handed back already and redelivered; the ledger drops the duplicate.
            durable = [] if self._abandoned else self._intake.published()
        try:
            self._observer.published(info)
            failpoint("fetch.after_publish_before_ack")
            for held in durable:
                self._target.on_durable(held.item)
        finally:
            with self._intake.lock:
                self._acking = False
                self._intake.work.notify_all()

    def _done(self) -> bool:
        return self._intake.empty and not self._acking

    # When a segment cannot be stored.

    def _give_up(self, error: OSError) -> None:
        """Give up everything held, after the segment that may still be on its way to the disk."""
        self._observer.disk_changed(error)
        with self._receiving:
            self._target.stop()
        with self._intake.lock:
            if self._publish_error is None:
                # The open segment failed; the one before may yet be published, and goes first.
                self._intake.work.wait_for(
                    lambda: not self._intake.publishing or self._publish_error or self._abandoned
                )
            self._publish_error = None
            lost = self._intake.give_up()
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
        _log.warning("%s What was received went back to the service.", write_error(error, self._plan.root))
        while not self._closing:
            self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
            with self._intake.lock:
                if self._intake.work.wait_for(lambda: self._closing, self._pause):
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
