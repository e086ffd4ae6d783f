"""A stream over a spool: what a reader returns to Spark, in terms of the ledger (rules R4 to R8).

Only the source process of a query has one. It holds the ledger and the fetchers; calls of Spark are answered from
memory, except where an answer must be fresh: the first one, and those of Trigger.AvailableNow and Trigger.Once.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from connectors.core.errors import ConnectorError, ServiceUnavailableError, SpoolInUseError
from connectors.core.offsets import START_KEY, Offset, is_sentinel, load_offset, ordered
from connectors.core.processes.failpoints import failpoint
from connectors.core.retry import WaitLog
from connectors.spool.errors import disk_errors
from connectors.spool.ledger.identity import open_identity, refuse_foreign_folder
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.records import while_newest
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.ledger.writer_lock import WriterLock, process_gone, spark_pid, writer_lock
from connectors.spool.segments.dedup_index import run_name
from connectors.spool.segments.segment import Slice
from connectors.spool.store import open_store
from connectors.spool.store.disk_space import release_reserves
from connectors.spool.stream.admission import Background, StartFetching, StreamSettings
from connectors.spool.stream.slices import check_range, cut_by_bytes, named_positions, offset_at, plan, position_of
from connectors.spool.stream.waiting import Reason

_log = logging.getLogger(__name__)
_WATCH_EVERY: Final = 0.5
_SETTLE: Final = 0.5
_OWNER_BYTES: Final = 8
_QUIET_SECONDS: Final = 1.0
"""Seconds without new rows until a call of Spark waits for some, since Spark asks again after 10 ms."""
_QUIET_WAIT: Final = 0.1
_SEEK_POLL: Final = 0.05
_SEEK_PATIENCE: Final = 60.0


class SpoolStream:
    """The stream of one query. Its methods are called by one thread, as Spark does.

    Raises `SpoolError` if the spool is in use, damaged, moved, or belongs to another source.
    """

    def __init__(self, settings: StreamSettings, start_fetching: StartFetching) -> None:
        self._settings = settings
        jvm = spark_pid()
        self._lock, self._ledger = _open(settings, jvm)
        self._stopped = threading.Event()
        threading.Thread(target=self._end_with, args=(process_gone(jvm),), name="parent-watch", daemon=True).start()
        self._background = Background(settings, self._ledger, start_fetching)
        self._losses, self._freshness = self._background.losses, self._background.freshness
        self._resolved: int | None = None
        self._answered = False
        self._new_at = time.monotonic()
        self._is_bounded = False
        self._bound: int | None = None
        try:
            with disk_errors(settings.root):
                self._background.start()
        except BaseException:
            self._stopped.set()
            self._lock.release()
            raise

    def prepare_for_available_now(self) -> None:
        """Let the stream end when everything published before now has been returned."""
        self._is_bounded = True
        published = self._ledger.state.published or 0
        with self._freshness.changing():
            self._freshness.begin(time.monotonic(), max(published, time.time_ns() // 1000))

    def latest_offset(self, start: Mapping[str, Any], max_rows: int | None) -> Offset:
        """Return the end of the next batch that begins at `start`; `start` itself if there is nothing new.

        A batch has at most `max_rows`; None means all rows that there are (Trigger.Once).

        Raises:
            OffsetError: the spool does not know the offset.
            DataLossError: rows above it were freed, and that is not given up.
            ConnectorError: what ended the fetchers or the background work; what is wrong with the source only when
                nothing that it delivered is left to be read.
        """
        self._check()
        first = self._losses.begin(self._start_position(start))
        self._background.backlog.seen_start(first)
        once = max_rows is None and not self._is_bounded
        if once:
            self.prepare_for_available_now()
        try:
            self._wait_until_fresh(first, everything=max_rows is None)
            self._drain_lost_source(first, everything=max_rows is None)
            return self._losses.quarantining(lambda: self._offset_of_end(start, first, max_rows))
        finally:
            if once:
                self._is_bounded, self._bound = False, None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[Slice]]:
        """Cut the batch between two offsets into partitions: a pure function of them and the ledger.

        Raises as `latest_offset`, and `SpoolFencedError` if another query took the spool over.
        """
        if is_sentinel(end):
            return []
        if is_sentinel(start):
            start = load_offset(end, self._settings.connector).get(START_KEY, {})
        with while_newest(self._ledger.store, self._ledger.claim):
            first, last = self._position(start), self._position(end)
            first = max(first, min(self._losses.begin(first), last))
            self._background.backlog.seen_start(first)
            self._losses.check(first, last)

            def planned() -> list[list[Slice]]:
                self._ledger.check()
                state = self._ledger.state
                check_range(state, first, last, self._where)
                return plan(state, first, last, self._ledger.row_sizes)

            return self._losses.quarantining(planned)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Record that Spark has committed all rows below an offset; they may be freed after the margin."""
        if is_sentinel(end):
            return
        position = self._position(end)
        self._check()
        try:
            self._ledger.commit(position)
        except OSError as error:
            _log.warning("The commit of position %d was not recorded: %s", position, error)
        self._background.wake()

    def report_latest_offset(self) -> Offset:
        state = self._ledger.state
        return ordered(offset_at(state, state.head))

    def stop(self) -> None:
        self._stopped.set()
        self._background.stop()
        self._lock.release()

    def _end_with(self, gone: Callable[[], bool]) -> None:
        """End this process when Spark's driver is gone, also while a call waits; the fetchers see it and clean up."""
        while not gone():
            if self._stopped.wait(_WATCH_EVERY):
                return
        os._exit(1)

    def _check(self) -> None:
        self._lock.check()
        self._background.check()

    @property
    def _where(self) -> str:
        return f"checkpoint against spool {self._settings.root}"

    def _position(self, offset: Mapping[str, Any]) -> int:
        return position_of(self._ledger.state, load_offset(offset, self._settings.connector), self._where)

    def _start_position(self, start: Mapping[str, Any]) -> int:
        """Return the position of a start offset; what the sentinel stands for is decided once."""
        if not is_sentinel(start):
            return self._position(start)
        if self._resolved is None:
            if self._settings.options.starting_position == "latest":
                self._wait_until_fresh(self._ledger.state.head, everything=False)
            self._resolved = named_positions(self._ledger.state)[str(self._settings.options.starting_position)]
        return self._resolved

    def _offset_of_end(self, start: Mapping[str, Any], first: int, max_rows: int | None) -> Offset:
        with while_newest(self._ledger.store, self._ledger.claim):
            state = self._ledger.state
            check_range(state, first, state.head, self._where)
            end = max(first, state.head if self._bound is None else min(state.head, self._bound))
            if max_rows is not None:
                end, max_bytes = min(end, first + max_rows), self._settings.options.max_bytes_per_trigger
                if max_bytes is not None:
                    end = cut_by_bytes(state, first, end, max_bytes, self._ledger.row_sizes)
            if end == first and not is_sentinel(start):
                return ordered(start)
            offset = offset_at(state, end)
            if is_sentinel(start):
                offset[START_KEY] = offset_at(state, first)
            return ordered(offset)

    def _wait_until_fresh(self, first: int, *, everything: bool) -> None:
        """Wait as the trigger asks for, as long as the source can deliver anything."""
        if self._is_bounded:
            what = "the messages published before the run began, at most availableNowMaxWait"
            self._freshness.wait(lambda: self._bounded_reason(first, everything=everything), self._check, what=what)
        elif not self._answered:
            deadline = time.monotonic() + self._settings.options.start_timeout
            what = "streams to open and to bring what there is, at most startTimeout"
            self._freshness.wait(lambda: self._first_reason(first), self._check, deadline, what)
            self._answered = True
        elif self._ledger.state.head > first:
            self._new_at = time.monotonic()
        elif time.monotonic() - self._new_at > _QUIET_SECONDS:
            self._freshness.wait(lambda: self._idle_reason(first), self._check, time.monotonic() + _QUIET_WAIT)

    def _first_reason(self, first: int) -> Reason | None:
        """Wait for all streams to be open, and for what they bring at once to be admitted, or for a full spool."""
        if self._background.source_error() is not None:
            return Reason.SOURCE_LOST
        if self._spool_is_full():
            return Reason.SPOOL_FULL
        healthy_since = self._freshness.healthy_since
        if healthy_since is None:
            return None
        if self._ledger.state.head > first:
            return Reason.NEW_ROWS
        settle = self._settings.options.max_fetch_period + _SETTLE
        return Reason.QUIET if time.monotonic() - healthy_since > settle else None

    def _idle_reason(self, first: int) -> Reason | None:
        """Wait for new rows, or for the end of the source."""
        if self._background.source_error() is not None:
            return Reason.SOURCE_LOST
        return Reason.NEW_ROWS if self._ledger.state.head > first else None

    def _bounded_reason(self, first: int, *, everything: bool) -> Reason | None:
        """Wait for the end of a bounded run, and fix it; or for new rows, or for a full spool if all are wanted."""
        if self._background.source_error() is not None:
            return Reason.SOURCE_LOST
        if self._bound is None and self._freshness.all_came(time.monotonic()):
            self._bound = self._ledger.state.head  # read after that, so it counts all that came
        if self._bound is not None:
            return Reason.ALL_CAME
        if everything:
            return Reason.SPOOL_FULL if self._spool_is_full() else None
        return Reason.NEW_ROWS if self._ledger.state.head > first else None

    def _spool_is_full(self) -> bool:
        return self._losses.quarantining(self._background.backlog.free_bytes) == 0

    def _drain_lost_source(self, first: int, *, everything: bool) -> None:
        """Continue while the spool has rows of a source that delivers no more; then raise why it does not.

        A bounded run whose bound was found before the source was lost ends there, without an error.
        """
        error = self._background.source_error()
        if error is None or self._bound is not None:
            return

        def reason() -> Reason | None:
            if self._background.complete:
                return Reason.SOURCE_LOST
            return Reason.NEW_ROWS if not everything and self._ledger.state.head > first else None

        self._freshness.wait(reason, self._check, what="fetchers to end and the ledger to take what they have written")
        rows = self._ledger.state.head
        if rows == 0:
            raise error
        if rows <= first:
            what = f"{error.what}. The spool is drained: all of its {rows} rows were read"
            action = error.action
            if len(self._settings.sources) > 1:
                action += " A query of the other sources continues with a new spool and a new checkpoint."
            raise type(error)(error.code, what, error.where, action)


def _open(settings: StreamSettings, jvm: int) -> tuple[WriterLock, Ledger]:
    """Take the lock, then the ledger; nothing is changed if the spool is in use."""
    options = settings.options
    store = open_store(settings.root, secrets.token_hex(_OWNER_BYTES), options.store_access)
    store.make_root()
    with disk_errors(settings.root):
        refuse_foreign_folder(store)
        lock = writer_lock(store, jvm, take_over=options.take_over)
        try:
            lock.acquire()
            release_reserves(store)
            identity = open_identity(store, settings.connector, settings.sources)
            ledger = open_ledger(store, identity, fail=options.fail_on_data_loss)
            ledger.set_layout(options.partition_bytes, options.max_partitions)
        except BaseException as error:
            lock.release()
            if isinstance(error, TimeoutError):
                raise ServiceUnavailableError(
                    "SPOOL_STORE_NO_ANSWER", str(error.strerror), str(error.filename)
                ) from None
            raise
    return lock, ledger


def carry_out_seek(ledger: Ledger, wanted: Mapping[str, Any], move: Callable[[Mapping[str, Any]], None]) -> bool:
    """Move the source if that is wanted and not done, before anything is fetched; return whether it was moved.

    The order is: record what is wanted; wait until another thread has admitted all that was received; move the source;
    record that it is done, and with it a new epoch of ids, so that dedup does not drop what is redelivered. After a
    crash in between the next start repeats it, and calls `move` again. What is done is not repeated until something
    else is wanted, so the options may stay in the script, and one may be removed and restored while another stays.

    What the service refuses is withdrawn, so that a start without it continues as if it had never been wanted. Whether
    an earlier start had moved the source by it is unknown then; ids stay known, so no row comes twice.

    Raises:
        SpoolInUseError: a fetcher of an earlier start does not end.
        ConnectorError: the service refuses what is wanted now, or cannot be reached.
    """
    ledger.settle()  # a full disk may have come between: this is called again then
    last = ledger.state.seek
    value = dict(wanted)
    if not value and last is not None and not last["done"]:
        # The options are gone, but the source may have been moved already: finish what was begun.
        value = last["value"]
    if not value or (last is not None and last["done"] and value.items() <= last["value"].items()):
        return False
    if last is None or last["done"] or last["value"] != value:
        failpoint("seek.before_intent")
        ledger.append({"seek": {"value": value, "done": False}})
        failpoint("seek.after_intent")
    _wait_for_earlier_fetchers(ledger)
    try:
        move(value)
    except ConnectorError as error:
        if error.transient:
            raise
        ledger.append({"seek": last if last is not None and last["done"] else {"value": {}, "done": True}})
        if wanted:
            raise
        _log.warning("[SPOOL_SEEK_GIVEN_UP] The query gives up a seek that it started with earlier options: %s", error)
        return False
    failpoint("seek.after_move")
    runs = [run.name for run in ledger.state.runs]

    def forget() -> None:
        ledger.index.clear()
        ledger.discard([run_name(name) for name in runs])

    done = {"value": value, "done": True}
    ledger.append(lambda state: {"seek": done, "dedup_epoch": state.dedup_epoch + 1}, forget)
    failpoint("seek.after_record")
    ledger.clean()
    failpoint("seek.after_forget")
    return True


def _wait_for_earlier_fetchers(ledger: Ledger) -> None:
    """Wait until all that was received before is in the ledger."""
    give_up_at = time.monotonic() + _SEEK_PATIENCE
    log = WaitLog(lambda: "fetchers of an earlier start to end, before a seek")
    while not ledger.earlier_fetchers_done():
        if time.monotonic() > give_up_at:
            raise SpoolInUseError(
                "SPOOL_FETCHERS_BUSY",
                f"A seek waits for fetchers of an earlier start, which did not end within {_SEEK_PATIENCE:g} s",
                f"{ledger.store.root}/inbox",
            )
        log.tick()
        time.sleep(_SEEK_POLL)
