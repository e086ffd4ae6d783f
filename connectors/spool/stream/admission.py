"""The background work of a stream: start the fetchers, admit what they publish, compact the spool.

Three threads, beside the one that puts records: one admits, one compacts, one starts the fetchers and then merges id
runs. None waits for another, but for its records. An error that a retry cannot fix is raised to Spark by the next call;
a full disk, and a store that does not answer, are waited out. An error of the source ends the fetching, and is raised
only when all that came before was served, because the spool has the only copy of it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    ServiceUnavailableError,
    SourceGoneError,
    SpoolError,
    SpoolFullError,
)
from connectors.core.retry import Outage
from connectors.spool.errors import full_disk_error, no_room
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.ledger.data_loss import DataLossPolicy
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.records import while_newest
from connectors.spool.ledger.state import COMMITS_RETAINED
from connectors.spool.options import SpoolOptions
from connectors.spool.store.disk_space import DiskReserve
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.spool.stream.slices import bytes_between
from connectors.spool.stream.waiting import DuplicateWatch, Freshness, OutageLog, ServiceWatch

_log = logging.getLogger(__name__)

SOURCE_ERRORS: Final = (AccessDeniedError, CredentialsError, SourceGoneError)
"""What ends the fetching, and is no reason not to serve what was fetched before."""
_RETRY_SECONDS: Final = 1.0
"""How long a disk without room, or a store that does not answer, is waited for."""
_MERGE_EVERY: Final = 1.0
_MERGE_LATER: Final = 60.0
_LONGEST_END: Final = 5.0
"""Seconds in which a fetcher ends for sure when its reader is gone; those of ``fetch=external`` need not end."""
_POLL: Final = 0.1
_COMPACT_EVERY: Final = 0.1
_EXPIRE_EVERY: Final = 5.0


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


StartedFetching: TypeAlias = tuple[Fetching, float]
"""The fetchers that were started, and for how many seconds ids are retained."""
StartFetching: TypeAlias = Callable[[Ledger, Callable[[], None]], StartedFetching]
"""Starts the fetchers of a ledger's spool; the second argument is to be called when a segment was published.

It is called in a thread of its own, because it calls the service; again in an outage of the service, and when a full
disk or a store that does not answer ends it with `OSError`.
"""


class Backlog:
    """The positions that Spark asks from, and the rows above them: how much more may be fetched (rule R6).

    Calls of Spark write, one at a time; the admitting thread reads. Each attribute is replaced as a whole.
    """

    def __init__(self, ledger: Ledger, max_spool_bytes: int, wake: Callable[[], None]) -> None:
        self._ledger = ledger
        self._max_spool_bytes = max_spool_bytes
        self._wake = wake
        self._highest_asked = 0
        self._last_asked: tuple[int, ...] = ()

    def seen_start(self, position: int) -> None:
        """Note that Spark asks from this position on: rows below it are no backlog any more."""
        if position not in self._last_asked[-1:]:
            self._last_asked = (*self._last_asked, position)[-COMMITS_RETAINED:]
        if position > self._highest_asked:
            self._highest_asked = position
            self._wake()

    @property
    def is_unread(self) -> bool:
        """Whether there are rows above the highest start that Spark has asked for."""
        return self._ledger.state.head > self._highest_asked

    def read_from(self) -> int:
        """Return the position from which on Spark may still read: of the newest batch and the two before.

        It is 0, for all rows, until Spark has asked for a batch.
        """
        return min(self._last_asked, default=0)

    def free_bytes(self) -> int:
        """Return how many bytes more may be fetched: at least one when nothing is above the highest start (rule R6)."""
        state = self._ledger.state
        start = min(max(self._highest_asked, state.oldest), state.head)
        if start == state.head:
            return max(self._max_spool_bytes, 1)
        used = bytes_between(state, start, state.head, self._ledger.row_sizes)
        return max(self._max_spool_bytes - used, 0)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What a stream reads, and with which options.

    Attributes:
        by_message_id: whether duplicates are recognised by the source's own ids; else producers may publish them.
    """

    options: SpoolOptions
    connector: str
    sources: tuple[str, ...]
    compaction: CompactionSettings
    by_message_id: bool = True

    @property
    def root(self) -> str:
        return str(self.options.spool_folder)


class Background:
    """The background threads of one stream, as its calls see them; `check` raises their errors.

    What more than one thread uses: `freshness`, with a lock; the positions of `backlog`, which calls of Spark write;
    and the attributes here.

    Attributes:
        compaction: None before the start of the fetchers has ended, well or with an error of the source; set once,
            after `fetching`.
        fetching: None before, and where the source did not let the fetchers start.
        complete: all that the source ever delivered is admitted: there is an error of the source, and nobody fetches.
            Set within `Freshness.changing`, and then for good.
        error: the first one that a retry cannot fix; set within `Freshness.changing`, and then for good.
    """

    def __init__(self, settings: StreamSettings, ledger: Ledger, start_fetching: StartFetching) -> None:
        options = settings.options
        self.compaction: Compaction | None = None
        self.fetching: Fetching | None = None
        self.complete = False
        self.error: ConnectorError | None = None
        self.backlog = Backlog(ledger, options.max_spool_bytes, self.wake)
        self.losses = DataLossPolicy(ledger, fail=options.fail_on_data_loss)
        self.freshness = Freshness(options.available_now_quiet, options.available_now_max_wait)
        self._ledger = ledger
        self._start_fetching = start_fetching
        self._settings = settings.compaction
        self._start_error: ConnectorError | None = None
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._reported = threading.Event()  # a fetcher has published, so the inbox is to be listed
        self._reserve = DiskReserve(ledger.store)
        self._disk_is_full = False  # work of a thread had no room, and no round of admission has ended well since
        self._start_outage = Outage(options.outage_rule)
        # Of the admitting thread alone.
        self._duplicates = DuplicateWatch(ledger.store.root, by_message_id=settings.by_message_id)
        self._service = ServiceWatch(options.outage_rule)
        self._outages = OutageLog(ledger.store.root)
        self._next_list = 0.0
        self._fetching_ended: float | None = None
        self._next_expiry = 0.0  # of the compacting thread alone
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (
                ("spool-admission", self._admit_in_rounds),
                ("spool-start", self._start_and_merge),
                ("spool-compaction", self._compact_in_rounds),
            )
        ]

    def start(self) -> None:
        """Admit all that earlier fetchers left, then start the threads; on a full disk they admit it."""
        try:
            self.losses.quarantining(self._ledger.admit)
        except OSError as error:
            if not no_room(error):
                raise
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the fetchers and the threads; nothing is admitted any more when this returns."""
        self._stopping.set()
        self.wake()
        if self.fetching is not None:
            self.fetching.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        with contextlib.suppress(OSError, SpoolError):
            # The next writer clears it away.
            self._reserve.release()

    def wake(self) -> None:
        self._woken.set()

    def check(self) -> None:
        """Raise the error that ended the background work or the fetchers, unless it is about the source alone."""
        self._ledger.check()
        if self.error is not None:
            raise self.error
        error = self._terminal_error()
        if error is not None and not isinstance(error, SOURCE_ERRORS):
            raise error

    def source_error(self) -> ConnectorError | None:
        """Return why the source delivers nothing more, if so; to be raised when all that came before was served."""
        error = self._terminal_error()
        return error if isinstance(error, SOURCE_ERRORS) else None

    def _terminal_error(self) -> ConnectorError | None:
        """Return the error that ended the fetchers, or did not let them start."""
        return self._start_error if self.fetching is None else self.fetching.terminal_error()

    # Every thread.

    def _run(self, work: Callable[[], None]) -> bool:
        """Do background work; False if it ended with an error that a retry cannot fix, which is `error` then."""
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
                _log.warning("[SPOOL_STORE_NO_ANSWER] %s. The query waits for the store.", error)
                self._stopping.wait(_RETRY_SECONDS)
                return True
            what = f"The background work of the spool ended with {type(error).__name__}: {error}"
            wrapped = SpoolError("SPOOL_BACKGROUND_FAILED", what, self._ledger.store.root)
            wrapped.__cause__ = error
            self._fail(wrapped)
        return self.error is None

    def _make_room(self) -> None:
        """Release the reserve, so that the next round can record what it frees; wait when that is not enough."""
        if not self._disk_is_full:
            _log.warning("%s", full_disk_error(self._ledger.store.root))
            self._disk_is_full = True
            self._reserve.release()
            self.wake()
        else:
            self._stopping.wait(_RETRY_SECONDS)

    def _fail(self, error: ConnectorError) -> None:
        with self.freshness.changing():
            self.error = self.error or error

    # The thread that starts the fetchers and then merges.

    def _start_and_merge(self) -> None:
        while self._run(self._start) and self.compaction is None:
            # A full disk, or a store that does not answer: it is waited out, and nothing is fetched before.
            if self._stopping.wait(0.0 if self._start_outage.failures else _RETRY_SECONDS):
                return
        while self.error is None and not self._stopping.wait(_MERGE_EVERY):
            if not self._run(self._merge):
                return

    def _start(self) -> None:
        def report() -> None:
            self._reported.set()
            self.wake()

        try:
            fetching, horizon = self._start_fetching(self._ledger, report)
        except SOURCE_ERRORS as error:
            self._start_error = error
            # How long ids count is unknown, so the longest time there is.
            self.compaction = Compaction(self._ledger, self._settings)
        except ServiceUnavailableError as error:
            self._stopping.wait(self._start_outage.next_delay_seconds(error))
        else:
            self._start_outage.reset()
            compaction = Compaction(self._ledger, replace(self._settings, horizon=horizon))
            self.fetching = fetching
            self.compaction = compaction
            if self._stopping.is_set():
                fetching.stop()
        self.wake()

    def _merge(self) -> None:
        try:
            while not self._stopping.is_set() and self.compaction is not None and self.compaction.merge():
                pass
        except OSError as error:
            if not no_room(error):
                raise
            # Merged runs are searched faster, and nothing depends on that.
            self._stopping.wait(_MERGE_LATER)

    # The compacting thread.

    def _compact_in_rounds(self) -> None:
        while not self._stopping.wait(_COMPACT_EVERY) and self._run(self._compact):
            pass

    def _compact(self) -> None:
        if self.compaction is None:
            return
        now = time.monotonic()
        self.compaction.step(read_from=self.backlog.read_from())
        if now >= self._next_expiry:
            self._next_expiry = now + _EXPIRE_EVERY
            self.compaction.expire()

    # The admitting thread.

    def _admit_in_rounds(self) -> None:
        while not self._stopping.is_set():
            self._woken.wait(_POLL)
            self._woken.clear()
            if not self._run(self._do_round):
                return

    def _do_round(self) -> None:
        """Do the steps of one round: admit, report, grant."""
        ended, fetching, compaction = self._fetching_has_ended(), self.fetching, self.compaction
        # Before admission: what these report as durable is there to be admitted.
        fetchers = () if fetching is None else fetching.status()
        full = self._disk_is_full or any(isinstance(fetcher.error, SpoolFullError) for fetcher in fetchers)
        if full and compaction is not None:
            # First, and in this thread: it makes the room that the records of what is admitted need.
            compaction.step(urgent=True, read_from=self.backlog.read_from())
        head = self._ledger.state.head
        admitted_at = self._admit()
        healthy = fetching is not None and all(fetcher.healthy and not fetcher.paused for fetcher in fetchers)
        self._report(fetchers, admitted_at, healthy=healthy, ended=ended)
        if compaction is not None and admitted_at is not None:
            compaction.note_admitted()
        if fetching is not None:
            fetching.allow(self.losses.quarantining(self.backlog.free_bytes))
        # The disk takes data, so the reserve is taken again.
        self._disk_is_full = False
        self._reserve.keep()
        admitted = self._ledger.state.head > head
        self._service.see(time.monotonic(), fetchers, served=admitted or self.backlog.is_unread)

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
        with self.freshness.changing():
            admitted = self._ledger.state.since(before)
            for entry in admitted:
                self.freshness.admitted(now, entry.published, entry.admitted_rows)
                if not entry.quarantined:
                    self._duplicates.admitted(rows=entry.rows, new=entry.admitted_rows)
            self._duplicates.compare(admitted, newest)
        return now if listed else None

    def _report(
        self, fetchers: Sequence[FetcherStatus], admitted_at: float | None, *, healthy: bool, ended: bool
    ) -> None:
        now = time.monotonic()
        self._outages.see(now, fetchers)
        settled = 0.0
        if admitted_at is not None:
            times = (fetcher.settled_at for fetcher in fetchers if fetcher.settled_at is not None)
            settled = min(times, default=admitted_at)
        out = self._service.is_out or self._start_outage.failures > 0
        with self.freshness.changing():
            self.freshness.round_ended(now, healthy=healthy, settled=settled, out=out)
            self.complete = self.complete or (ended and admitted_at is not None)

    def _fetching_has_ended(self) -> bool:
        """End all fetchers when the source of one is lost, so that there is an end to what is served before its error.

        True if nobody publishes any more, here or in what is left of an earlier run of the query.
        """
        error = self.source_error()
        if self.complete or error is None:
            return self.complete
        if self._fetching_ended is None:
            _log.warning("%s The query first serves the rows in the spool, then stops.", error)
            if self.fetching is not None:
                self.fetching.stop()
            self._fetching_ended = time.monotonic()
        self._reported.set()
        store = self._ledger.store
        waited = time.monotonic() - self._fetching_ended
        return waited > _LONGEST_END or not any(store.is_locked(f"inbox/{name}") for name in store.list("inbox"))
