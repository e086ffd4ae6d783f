"""The background work of a stream: start the fetchers, admit what they publish, keep the spool in order.

Two threads, so that long merges of id runs never hold up admission. An error that a retry cannot fix is raised to Spark
by the next call; a full disk is waited out. An error of the source ends the fetching, and is raised only when all that
came before was served, because the spool has the only copy of it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    SourceGoneError,
    SpoolError,
    SpoolFullError,
)
from connectors.core.retry import WaitLog
from connectors.spool.errors import full_disk_error, no_room
from connectors.spool.fetching.child import FetcherStatus
from connectors.spool.ledger.data_loss import Losses
from connectors.spool.ledger.fencing import while_newest
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.segment_log import SegmentEntry, unpack_mask
from connectors.spool.ledger.state import COMMITS_KEPT
from connectors.spool.store.base import StoreAccess
from connectors.spool.store.disk_space import DiskReserve
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.spool.stream.outages import OutageLog
from connectors.spool.stream.slices import bytes_between

__all__ = ["Background", "DuplicateWatch", "Fetching", "Freshness", "Reason", "StartFetching", "StreamSettings"]

_log = logging.getLogger(__name__)
_SOURCE_ERRORS: Final = (AccessDeniedError, CredentialsError, SourceGoneError)
"""What ends the fetching, and is no reason not to serve what was fetched before."""
_LONGEST_END: Final = 5.0
"""Seconds in which a fetcher whose reader is gone has ended, for sure; those of ``fetch=external`` need not end."""
_POLL: Final = 0.1
_FULL_DISK_POLL: Final = 1.0
_EXPIRE_EVERY: Final = 5.0
_MERGE_EVERY: Final = 1.0
_MERGE_LATER: Final = 60.0
_WAIT_STEP: Final = 0.5
_LONG_WAIT: Final = 1.0
_DUPLICATE_ROWS: Final = 1000
_DUPLICATE_FRACTION: Final = 0.9


class Fetching(Protocol):
    """The fetchers of a spool, as the stream sees them."""

    def allow(self, free_bytes: int) -> None:
        """Let the fetchers fetch this many bytes more, in all, from now."""

    def status(self) -> Sequence[FetcherStatus]:
        """Return the state of each, from memory."""

    def terminal_error(self) -> ConnectorError | None:
        """Return the error that stops the query, if there is one."""

    def stop(self) -> None:
        """End the fetchers; what they hold is published or handed back."""


StartFetching = Callable[[Ledger, Callable[[], None]], tuple[Fetching, float]]
"""Starts the fetchers of a ledger's spool; returns them, and the seconds for which ids are kept.

The second argument is to be called when a segment was published.
"""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of a stream; sizes in bytes, times in seconds.

    Attributes:
        fail_on_data_loss: whether rows that are gone stop the query; else they are given up, and recorded (rule R9).
        starting_position: where a new checkpoint begins: ``committed``, ``earliest`` or ``latest``.
        partition_bytes, max_partitions: how batches are cut (rule R5).
        max_spool_bytes: fetching pauses when the rows after the start of the newest batch have so many bytes (rule R6).
        publish_period: see `FetchPlan`.
        start_timeout: longest wait of the first answer.
        by_message_id: whether duplicates are recognised by the source's own ids; else producers may publish them.
        take_over: take the lease of a spool on an object store at once, whoever holds it (rule R7).
    """

    root: str
    connector: str
    sources: tuple[str, ...]
    fail_on_data_loss: bool
    starting_position: str
    partition_bytes: int
    max_partitions: int
    max_bytes_per_trigger: int | None
    max_spool_bytes: int
    publish_period: float
    start_timeout: float
    available_now_quiet: float
    available_now_max_wait: float
    compaction: CompactionSettings
    by_message_id: bool = True
    access: StoreAccess | None = None
    take_over: bool = False


class Reason(StrEnum):
    """Why a call of Spark need not wait any longer."""

    NEW_ROWS = "there are new rows"
    QUIET = "the streams are open, and brought nothing"
    ALL_CAME = "all that was published before the run began has come"
    SPOOL_FULL = "the spool is full"
    SOURCE_LOST = "the source delivers nothing more"
    TIMEOUT = "the time is over"


class Freshness:
    """What has come in, noted by the admitting thread under `changed`; calls of Spark wait for it.

    A bounded run ends after `quiet` seconds without old rows, or after `longest` if streams are unhealthy. Times are
    seconds of the monotonic clock; publish times are microseconds of the service.

    Attributes:
        healthy_since: when all streams were last seen to become healthy; None while they are not.
        bound_time: publish time that separates old rows from new ones; None before any bounded run.
    """

    def __init__(self, quiet: float, longest: float) -> None:
        self.changed = threading.Condition()
        self.healthy_since: float | None = None
        self.bound_time: int | None = None
        self._quiet = quiet
        self._longest = longest
        self._began = 0.0
        self._settled = 0.0
        self._old: float | None = None

    def begin(self, now: float, bound_time: int) -> None:
        """Begin a bounded run, at this time of the service as far as it is known."""
        self._began, self.bound_time = now, bound_time

    def round_ended(self, now: float, *, healthy: bool, settled: float) -> None:
        """Note a round of admission: whether streams were healthy, and before when all that came is admitted."""
        self._settled = max(self._settled, settled)
        if not healthy:
            self.healthy_since = None
        elif self.healthy_since is None:
            self.healthy_since = now

    def admitted(self, now: float, published: tuple[int, int] | None, rows: int) -> None:
        """Note an admitted segment with so many new rows, published between two times."""
        if self.bound_time is not None and published is not None:
            # Seen now, so the service's clock was at least so far when the run began, whatever the clock here said.
            self.bound_time = max(self.bound_time, published[1] - int((now - self._began) * 1e6))
        if rows and self.bound_time is not None and (published is None or published[0] < self.bound_time):
            self._old = now

    def all_came(self, now: float) -> bool:
        """Whether all messages published before a bounded run began have come, so that its end may be fixed.

        Healthy streams must have brought nothing old for a while; what a fetcher still holds may be old.
        """
        last = max(self._began, self._old or self._began)
        if now - last >= self._longest:
            return True
        since = self.healthy_since
        return since is not None and self._settled - max(last, since) >= self._quiet

    def wait(
        self,
        reason: Callable[[], Reason | None],
        check: Callable[[], None],
        deadline: float = float("inf"),
        what: str = "fetched messages",
    ) -> Reason:
        """Wait until there is a reason to answer, or the deadline; return the reason. Raises what `check` raises.

        ``what`` says in the log what is waited for, when that takes long.
        """
        began = time.monotonic()
        log = WaitLog(lambda: what)
        with self.changed:
            while (result := reason()) is None and time.monotonic() <= deadline:
                check()
                log.tick()
                self.changed.wait(_WAIT_STEP)
        check()
        result = result or Reason.TIMEOUT
        if time.monotonic() - began >= _LONG_WAIT:
            _log.info("A call of Spark has waited %.1f s: %s.", time.monotonic() - began, result)
        return result


class DuplicateWatch:
    """Warns once that delivered messages give no rows, and what that may mean.

    With `by_message_id` a duplicate is a message that the source delivers again; else producers may publish duplicates.
    """

    def __init__(self, root: str, *, by_message_id: bool = True) -> None:
        self._root = root
        self._by_message_id = by_message_id
        self._warned_reused = False
        self._warned_duplicates = False
        self._rows = self._duplicates = 0

    def admitted(self, *, rows: int, kept: int) -> None:
        """Note a segment of so many rows, so many of them new."""
        self._rows += rows
        self._duplicates += rows - kept
        if self._rows < _DUPLICATE_ROWS:
            return
        if self._duplicates >= _DUPLICATE_FRACTION * self._rows and not self._warned_duplicates:
            self._warned_duplicates = True
            _log.warning(
                "[SPOOL_ONLY_COPIES] %d of the last %d messages were read before and give no rows (%s). That is right "
                "after lost acks or a crash. If the source was moved back from outside, to read again, set the option "
                "dedupEpoch to another number.",
                self._duplicates,
                self._rows,
                self._root,
            )
        self._rows = self._duplicates = 0

    def compare(self, admitted: Iterable[SegmentEntry], newest: int | None) -> None:
        """Warn if ids are used again for other messages: then each message is lost, and nothing else shows it.

        A redelivered message has the publish time that it had. So where all messages of a segment were published after
        those before it (`newest`, in microseconds), none of them can be one. Within a segment only the first row
        counts: a later one may be a duplicate of that.
        """
        if not self._by_message_id or self._warned_reused:
            return
        for entry in admitted:
            if entry.published is None:
                continue
            lowest, highest = entry.published
            if newest is not None and lowest > newest and entry.struck is not None:
                self._warned_reused |= bool(unpack_mask(entry.struck, entry.rows)[0])
            newest = max(newest or 0, highest)
        if self._warned_reused:
            _log.warning(
                "[SPOOL_IDS_REUSED] New messages have ids that were read before, and are dropped as duplicates (%s): "
                "the source restarts its ids, as the Pub/Sub emulator does after a restart. Begin with a new "
                "spoolLocation and checkpointLocation, or set the option dedupEpoch to another number.",
                self._root,
            )


class Background:
    """The background threads of one stream.

    `start_fetching` is called in a thread, because it calls the service; again where a full disk or a store that does
    not answer ends it with `OSError`.
    """

    def __init__(self, settings: StreamSettings, ledger: Ledger, start_fetching: StartFetching) -> None:
        # All that the source ever delivered is admitted: there is a `source_error`, and nobody fetches.
        self.complete = False
        self._settings = settings
        self._ledger = ledger
        self._start_fetching = start_fetching
        self.losses = Losses(ledger, fail=settings.fail_on_data_loss)
        self.freshness = Freshness(settings.available_now_quiet, settings.available_now_max_wait)
        self._compaction: Compaction | None = None
        self._fetching: Fetching | None = None
        self._highest_asked = 0
        self._last_asked: tuple[int, ...] = ()
        self._error: ConnectorError | None = None
        self._source_error: ConnectorError | None = None
        self._fetching_ended: float | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._next_expiry = 0.0
        self._reserve = DiskReserve(ledger.store)
        self._disk_is_full = False
        self._outages = OutageLog(ledger.store.root)
        self._duplicates = DuplicateWatch(ledger.store.root, by_message_id=settings.by_message_id)
        self._reported = threading.Event()
        self._next_list = 0.0

    def start(self) -> None:
        """Admit all that earlier fetchers left, then start the threads; on a full disk they admit it."""
        try:
            self.losses.going_on(self._ledger.admit)
        except OSError as error:
            if not no_room(error):
                raise
        for name, target in (("spool-admission", self._admit_until_stopped), ("spool-start", self._start_and_merge)):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End the fetchers and the threads; nothing is admitted any more when this returns."""
        self._stopping.set()
        self._wake.set()
        if self._fetching is not None:
            self._fetching.stop()
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(OSError, SpoolError):
            # The next writer clears it away.
            self._reserve.release()

    def wake(self) -> None:
        """Begin the next round now."""
        self._wake.set()

    def _segment_reported(self) -> None:
        """List the inbox now: a fetcher reports that it has published."""
        self._reported.set()
        self._wake.set()

    def seen_start(self, position: int) -> None:
        """Note that Spark asks from this position on: rows below it are no backlog any more (rule R6)."""
        if position not in self._last_asked[-1:]:
            self._last_asked = (*self._last_asked, position)[-COMMITS_KEPT:]
        if position > self._highest_asked:
            self._highest_asked = position
            self._wake.set()

    def check(self) -> None:
        """Raise the error that ended the background work or the fetchers, unless it is about the source alone."""
        self._ledger.check()
        if self._error is not None:
            raise self._error
        error = None if self._fetching is None else self._fetching.terminal_error()
        if error is not None and not isinstance(error, _SOURCE_ERRORS):
            raise error

    def source_error(self) -> ConnectorError | None:
        """Return why the source delivers nothing more, if so; to be raised when all that came before was served."""
        if self._source_error is not None or self._fetching is None:
            return self._source_error
        error = self._fetching.terminal_error()
        return error if isinstance(error, _SOURCE_ERRORS) else None

    def free_bytes(self) -> int:
        """Return how many bytes more may be fetched: at least one when nothing is above the highest start (rule R6)."""
        with self._ledger.lock:
            state = self._ledger.state
            start = min(max(self._highest_asked, state.oldest), state.head)
            if start == state.head:
                return max(self._settings.max_spool_bytes, 1)
            used = bytes_between(state, start, state.head, self._ledger.row_sizes)
            return max(self._settings.max_spool_bytes - used, 0)

    # The thread that merges.

    def _start_and_merge(self) -> None:
        while self._guarded(self._start) and self._fetching is None and self._source_error is None:
            # A full disk, or a store that does not answer: it is waited out, and nothing is fetched before.
            if self._stopping.wait(_FULL_DISK_POLL):
                return
        while self._compaction is not None and not self._stopping.wait(_MERGE_EVERY):
            if not self._guarded(self._merge):
                return

    def _start(self) -> None:
        try:
            fetching, horizon = self._start_fetching(self._ledger, self._segment_reported)
        except _SOURCE_ERRORS as error:
            # How long ids count is unknown, so the longest time there is.
            self._compaction = Compaction(self._ledger, self._settings.compaction)
            self._source_error = error
            self._wake.set()
            return
        self._compaction = Compaction(self._ledger, replace(self._settings.compaction, horizon=horizon))
        self._fetching = fetching
        if self._stopping.is_set():
            fetching.stop()
        self._wake.set()

    def _merge(self) -> None:
        try:
            while self._compaction is not None and not self._stopping.is_set() and self._compaction.merge():
                pass
        except OSError as error:
            if not no_room(error):
                raise
            # Merged runs are searched faster, and nothing depends on that.
            self._stopping.wait(_MERGE_LATER)

    # The thread that admits.

    def _admit_until_stopped(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(_POLL)
            self._wake.clear()
            if not self._guarded(self._do_round):
                return

    def _do_round(self) -> None:
        """Do the steps of one round: free, admit, report, compact, grant."""
        ended, fetching = self._fetching_has_ended(), self._fetching
        # Before admission: what these report as durable is there to be admitted.
        fetchers = () if fetching is None else fetching.status()
        if self._disk_is_full or any(isinstance(one.error, SpoolFullError) for one in fetchers):
            # First: it makes the room that the records of what is admitted need.
            self._compact(urgent=True)
        admitted_at = self._admit()
        healthy = fetching is not None and all(one.healthy and not one.paused for one in fetchers)
        self._report(fetchers, admitted_at, healthy=healthy, ended=ended)
        self._compact(urgent=False)
        self._expire(admitted_at)
        if fetching is not None:
            fetching.allow(self.losses.going_on(self.free_bytes))
        self._disk_is_full = False
        self._reserve.keep()

    def _admit(self) -> float | None:
        """Admit what is published; return when all of it was, None if it is not time to list the inbox."""
        state, now = self._ledger.state, time.monotonic()
        before, newest = state.ordinal, state.published
        listed = self._reported.is_set() or now >= self._next_list
        if listed:
            self._reported.clear()
            self._ledger.admit()
            self._next_list = now + self._ledger.store.look_seconds
        now = time.monotonic()
        with self.freshness.changed:
            admitted = self._ledger.admitted_since(before)
            for entry in admitted:
                self.freshness.admitted(now, entry.published, entry.admitted_rows)
                if not entry.quarantined:
                    self._duplicates.admitted(rows=entry.rows, kept=entry.admitted_rows)
            self._duplicates.compare(admitted, newest)
        return now if listed else None

    def _report(
        self, fetchers: Sequence[FetcherStatus], admitted_at: float | None, *, healthy: bool, ended: bool
    ) -> None:
        """Report to the log and to the waiting calls of Spark."""
        now = time.monotonic()
        self._outages.see(now, fetchers)
        settled = 0.0
        if admitted_at is not None:
            settled = min((one.settled_at for one in fetchers if one.settled_at is not None), default=admitted_at)
        with self.freshness.changed:
            self.freshness.round_ended(now, healthy=healthy, settled=settled)
            self.complete = self.complete or (ended and admitted_at is not None)
            self.freshness.changed.notify_all()

    def _compact(self, *, urgent: bool) -> None:
        if self._compaction is not None:
            # Spark may still read a batch and the two before; all until it has asked for one.
            self._compaction.step(urgent=urgent, read_from=min(self._last_asked, default=0))

    def _expire(self, admitted_at: float | None) -> None:
        """Drop old ids now and then; only when all that was published is admitted."""
        if self._compaction is not None and admitted_at is not None and admitted_at >= self._next_expiry:
            self._next_expiry = admitted_at + _EXPIRE_EVERY
            self._compaction.expire()

    def _fetching_has_ended(self) -> bool:
        """End all fetchers when the source of one is lost, so that there is an end to what is served before its error.

        True if nobody publishes any more, here or in what is left of an earlier run of the query.
        """
        error = self.source_error()
        if error is None or self.complete:
            return self.complete
        if self._fetching_ended is None:
            _log.warning("%s The rows in the spool are served first; then the query stops.", error)
            if self._fetching is not None:
                self._fetching.stop()
            self._fetching_ended = time.monotonic()
        self._reported.set()
        store = self._ledger.store
        waited = time.monotonic() - self._fetching_ended
        return waited > _LONGEST_END or not any(store.is_locked(f"inbox/{name}") for name in store.list("inbox"))

    # Errors of both threads.

    def _guarded(self, work: Callable[[], None]) -> bool:
        """Do background work; False if it ended with an error that a retry cannot fix, which `check` raises."""
        try:
            with while_newest(self._ledger.store, self._ledger.claim):
                work()
        except ConnectorError as error:
            self._fail(error)
        except BaseException as error:  # noqa: BLE001 - nothing may end in silence in a thread; it is raised to Spark
            if isinstance(error, OSError) and no_room(error):
                self._make_room()
                return True
            if isinstance(error, OSError) and error.errno == errno.ETIMEDOUT:  # an object store that does not answer
                _log.warning("[SPOOL_STORE_NO_ANSWER] %s; waiting.", error)
                self._stopping.wait(_FULL_DISK_POLL)
                return True
            wrapped = SpoolError(
                "SPOOL_BACKGROUND_FAILED",
                f"The background work of the spool ended with {type(error).__name__}: {error}",
                self._ledger.store.root,
                "Restart the query. If it happens again, report it with the driver's log.",
            )
            wrapped.__cause__ = error
            self._fail(wrapped)
        return self._error is None

    def _make_room(self) -> None:
        """Release the reserve, so that the next round can record what it frees; wait when that is not enough."""
        if not self._disk_is_full:
            _log.warning("%s", full_disk_error(self._ledger.store.root))
            self._disk_is_full = True
            self._reserve.release()
            self._wake.set()
        else:
            self._stopping.wait(_FULL_DISK_POLL)

    def _fail(self, error: ConnectorError) -> None:
        with self.freshness.changed:
            self._error = self._error or error
            self.freshness.changed.notify_all()
