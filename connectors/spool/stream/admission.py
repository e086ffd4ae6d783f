"""The background work of a stream: start the fetchers, admit what they publish, keep the spool in order.

Three threads, beside the one that puts records: one admits, one compacts, one starts the fetchers and then merges id
runs; see `Admission`, `Compaction` and `FetcherStart`. None waits for another, but for its records. An error that a
retry cannot fix is raised to Spark by the next call; a full disk is waited out. An error of the source ends the
fetching, and is raised only when all that came before was served, because the spool has the only copy of it.

What more than one thread uses: `Freshness`, with a lock; the positions of `Backlog`, which calls of Spark write;
`FetcherStart.started`, which is set once; the errors of `Guard`; and `Signals`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    ServiceUnavailableError,
    SourceGoneError,
    SpoolFullError,
)
from connectors.core.retry import Outage, OutageRule
from connectors.spool.errors import no_room
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.ledger.data_loss import DataLossPolicy
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.state import COMMITS_RETAINED
from connectors.spool.options import SpoolOptions
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.spool.stream.slices import bytes_between
from connectors.spool.stream.waiting import (
    RETRY_SECONDS,
    DuplicateWatch,
    Freshness,
    Guard,
    OutageLog,
    ServiceWatch,
    Signals,
)

_log = logging.getLogger(__name__)

SOURCE_ERRORS: Final = (AccessDeniedError, CredentialsError, SourceGoneError)
"""What ends the fetching, and is no reason not to serve what was fetched before."""
_MERGE_EVERY: Final = 1.0
_MERGE_LATER: Final = 60.0
_LONGEST_END: Final = 5.0
"""Seconds in which a fetcher whose reader is gone has ended, for sure; those of ``fetch=external`` need not end."""
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


@dataclass(frozen=True, slots=True)
class StartedFetching:
    """What the start of the fetchers returns.

    Attributes:
        fetching: the fetchers.
        dedup_horizon: seconds for which ids are retained.
    """

    fetching: Fetching
    dedup_horizon: float


StartFetching = Callable[[Ledger, Callable[[], None]], StartedFetching]
"""Starts the fetchers of a ledger's spool; returns them, and how long ids are retained.

The second argument is to be called when a segment was published.
"""


@dataclass(frozen=True, slots=True)
class Started:
    """What a start has made; either there are fetchers, or an error of the source that they could not start for."""

    compaction: Compaction
    fetching: Fetching | None = None
    source_error: ConnectorError | None = None

    def terminal_error(self) -> ConnectorError | None:
        """Return the error that ended the fetchers, or did not let them start."""
        return self.source_error if self.fetching is None else self.fetching.terminal_error()


class FetcherStart:
    """The work of the thread that starts fetchers and then merges; other threads only read `started`.

    `start_fetching` is called in this thread, because it calls the service; again in an outage of the service, and
    where a full disk or a store that does not answer ends it with `OSError`.

    Attributes:
        started: None before; set once, by this thread.
        outage_rule: when the service is given up.
    """

    def __init__(
        self,
        ledger: Ledger,
        start_fetching: StartFetching,
        compaction: CompactionSettings,
        guard: Guard,
        signals: Signals,
        outage_rule: OutageRule,
    ) -> None:
        self.started: Started | None = None
        self._ledger = ledger
        self._start_fetching = start_fetching
        self._settings = compaction
        self._guard = guard
        self._signals = signals
        self.outage_rule = outage_rule
        self._outage = Outage(outage_rule)

    def run(self) -> None:
        """Start the fetchers, then merge until this is stopped or fails."""
        stopping = self._signals.stopping
        while self._guard.run(self._start) and self.started is None:
            # A full disk, or a store that does not answer: it is waited out, and nothing is fetched before.
            if stopping.wait(0.0 if self.is_out else RETRY_SECONDS):
                return
        while self.started is not None and not stopping.wait(_MERGE_EVERY):
            if not self._guard.run(partial(self._merge, self.started.compaction)):
                return

    @property
    def is_out(self) -> bool:
        """Whether the fetchers could not be started yet, because of the service."""
        return self._outage.failures > 0

    def terminal_error(self) -> ConnectorError | None:
        """Return the error that ended the fetchers, or did not let them start; None also before the start."""
        return None if self.started is None else self.started.terminal_error()

    def stop(self) -> None:
        """End the fetchers; what they hold is published or handed back."""
        if self.started is not None and self.started.fetching is not None:
            self.started.fetching.stop()

    def _start(self) -> None:
        try:
            started = self._start_fetching(self._ledger, self._signals.segment_reported)
        except SOURCE_ERRORS as error:
            # How long ids count is unknown, so the longest time there is.
            self.started = Started(Compaction(self._ledger, self._settings), source_error=error)
        except ServiceUnavailableError as error:
            self._signals.stopping.wait(self._outage.next_delay_seconds(error))
        else:
            self._outage.reset()
            compaction = Compaction(self._ledger, replace(self._settings, horizon=started.dedup_horizon))
            self.started = Started(compaction, started.fetching)
            if self._signals.stopping.is_set():
                started.fetching.stop()
        self._signals.wake.set()

    def _merge(self, compaction: Compaction) -> None:
        try:
            while not self._signals.stopping.is_set() and compaction.merge():
                pass
        except OSError as error:
            if not no_room(error):
                raise
            # Merged runs are searched faster, and nothing depends on that.
            self._signals.stopping.wait(_MERGE_LATER)


class Backlog:
    """The positions that Spark asks from, and the rows above them: how much more may be fetched (rule R6).

    Calls of Spark write, one at a time; the admitting thread reads. Each attribute is replaced as a whole.
    """

    def __init__(self, ledger: Ledger, max_spool_bytes: int, signals: Signals) -> None:
        self._ledger = ledger
        self._max_spool_bytes = max_spool_bytes
        self._signals = signals
        self._highest_asked = 0
        self._last_asked: tuple[int, ...] = ()

    def seen_start(self, position: int) -> None:
        """Note that Spark asks from this position on: rows below it are no backlog any more."""
        if position not in self._last_asked[-1:]:
            self._last_asked = (*self._last_asked, position)[-COMMITS_RETAINED:]
        if position > self._highest_asked:
            self._highest_asked = position
            self._signals.wake.set()

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


class Admission:
    """The work of the admitting thread; what is no argument belongs to it alone, but for `complete`.

    Attributes:
        complete: all that the source ever delivered is admitted: there is an error of the source, and nobody fetches.
            Set within `Freshness.changing`, and then for good.
    """

    def __init__(
        self,
        ledger: Ledger,
        fetchers: FetcherStart,
        backlog: Backlog,
        *,
        losses: DataLossPolicy,
        freshness: Freshness,
        duplicates: DuplicateWatch,
        guard: Guard,
        signals: Signals,
    ) -> None:
        self.complete = False
        self._ledger = ledger
        self._fetchers = fetchers
        self._backlog = backlog
        self._losses = losses
        self._freshness = freshness
        self._duplicates = duplicates
        self._service = ServiceWatch(fetchers.outage_rule)
        self._guard = guard
        self._signals = signals
        self._outages = OutageLog(ledger.store.root)
        self._next_list = 0.0
        self._fetching_ended: float | None = None

    def run(self) -> None:
        """Do rounds until this is stopped or fails."""
        while not self._signals.stopping.is_set():
            self._signals.wake.wait(_POLL)
            self._signals.wake.clear()
            if not self._guard.run(self._do_round):
                return

    def _do_round(self) -> None:
        """Do the steps of one round: admit, report, grant."""
        ended, started = self._fetching_has_ended(), self._fetchers.started
        fetching = None if started is None else started.fetching
        # Before admission: what these report as durable is there to be admitted.
        fetchers = () if fetching is None else fetching.status()
        full = self._guard.disk_is_full or any(isinstance(one.error, SpoolFullError) for one in fetchers)
        if full and started is not None:
            # First, and in this thread: it makes the room that the records of what is admitted need.
            started.compaction.step(urgent=True, read_from=self._backlog.read_from())
        head = self._ledger.state.head
        admitted_at = self._admit()
        healthy = fetching is not None and all(one.healthy and not one.paused for one in fetchers)
        self._report(fetchers, admitted_at, healthy=healthy, ended=ended)
        if started is not None and admitted_at is not None:
            started.compaction.note_admitted()
        if fetching is not None:
            fetching.allow(self._losses.quarantining(self._backlog.free_bytes))
        self._guard.round_ended()
        admitted = self._ledger.state.head > head
        self._service.see(time.monotonic(), fetchers, served=admitted or self._backlog.is_unread)

    def _admit(self) -> float | None:
        """Admit what is published; return when all of it was, None if it is not time to list the inbox."""
        state, now = self._ledger.state, time.monotonic()
        before, newest = state.ordinal, state.published
        listed = self._signals.reported.is_set() or now >= self._next_list
        if listed:
            self._signals.reported.clear()
            self._ledger.admit()
            self._next_list = now + self._ledger.store.look_seconds
        now = time.monotonic()
        with self._freshness.changing():
            admitted = self._ledger.state.since(before)
            for entry in admitted:
                self._freshness.admitted(now, entry.published, entry.admitted_rows)
                if not entry.quarantined:
                    self._duplicates.admitted(rows=entry.rows, new=entry.admitted_rows)
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
        with self._freshness.changing():
            self._freshness.round_ended(
                now, healthy=healthy, settled=settled, out=self._service.is_out or self._fetchers.is_out
            )
            self.complete = self.complete or (ended and admitted_at is not None)

    def _fetching_has_ended(self) -> bool:
        """End all fetchers when the source of one is lost, so that there is an end to what is served before its error.

        True if nobody publishes any more, here or in what is left of an earlier run of the query.
        """
        error = self._fetchers.terminal_error()
        if self.complete or not isinstance(error, SOURCE_ERRORS):
            return self.complete
        if self._fetching_ended is None:
            _log.warning("%s The rows in the spool are served first; then the query stops.", error)
            self._fetchers.stop()
            self._fetching_ended = time.monotonic()
        self._signals.reported.set()
        store = self._ledger.store
        waited = time.monotonic() - self._fetching_ended
        return waited > _LONGEST_END or not any(store.is_locked(f"inbox/{name}") for name in store.list("inbox"))


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What a stream reads, and by which options.

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
        """Where the spool is."""
        return str(self.options.spool_folder)


class Background:
    """The background threads of one stream, as its calls see them; `check` raises their errors."""

    def __init__(self, settings: StreamSettings, ledger: Ledger, start_fetching: StartFetching) -> None:
        options = settings.options
        self._ledger = ledger
        self._signals = Signals()
        self.backlog = Backlog(ledger, options.max_spool_bytes, self._signals)
        self.losses = DataLossPolicy(ledger, fail=options.fail_on_data_loss)
        self.freshness = Freshness(options.available_now_quiet, options.available_now_max_wait)
        self._guard = Guard(ledger, self._signals, self.freshness)
        rule = options.outage_rule
        self.fetchers = FetcherStart(ledger, start_fetching, settings.compaction, self._guard, self._signals, rule)
        self.admission = Admission(
            ledger,
            self.fetchers,
            self.backlog,
            losses=self.losses,
            freshness=self.freshness,
            duplicates=DuplicateWatch(ledger.store.root, by_message_id=settings.by_message_id),
            guard=self._guard,
            signals=self._signals,
        )
        self._threads = [
            threading.Thread(target=self.admission.run, name="spool-admission", daemon=True),
            threading.Thread(target=self.fetchers.run, name="spool-start", daemon=True),
            threading.Thread(target=self._compact, name="spool-compaction", daemon=True),
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
        self._signals.stopping.set()
        self._signals.wake.set()
        self.fetchers.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._guard.close()

    def wake(self) -> None:
        """Begin the next round now."""
        self._signals.wake.set()

    @property
    def complete(self) -> bool:
        """Whether all that the source ever delivered is admitted: see `Admission`."""
        return self.admission.complete

    def check(self) -> None:
        """Raise the error that ended the background work or the fetchers, unless it is about the source alone."""
        self._ledger.check()
        if self._guard.error is not None:
            raise self._guard.error
        error = self.fetchers.terminal_error()
        if error is not None and not isinstance(error, SOURCE_ERRORS):
            raise error

    def source_error(self) -> ConnectorError | None:
        """Return why the source delivers nothing more, if so; to be raised when all that came before was served."""
        error = self.fetchers.terminal_error()
        return error if isinstance(error, SOURCE_ERRORS) else None

    def _compact(self) -> None:
        """Compact in rounds, until this is stopped or fails."""
        next_expiry = 0.0

        def do_round() -> None:
            nonlocal next_expiry
            if self.fetchers.started is None:
                return
            compaction, now = self.fetchers.started.compaction, time.monotonic()
            compaction.step(read_from=self.backlog.read_from())
            if now >= next_expiry:
                next_expiry = now + _EXPIRE_EVERY
                compaction.expire()

        while not self._signals.stopping.wait(_COMPACT_EVERY) and self._guard.run(do_round):
            pass
