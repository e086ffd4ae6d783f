"""The thread that admits what fetchers publish, and the backlog by which it grants them room.

In rounds: it admits, reports to the calls of Spark that wait, and grants the fetchers the room that is left. It never
waits for compaction, except on a full disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from connectors.core.errors import SpoolFullError
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.ledger.data_loss import Losses
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.state import COMMITS_KEPT
from connectors.spool.stream.fetchers import SOURCE_ERRORS, FetcherStart
from connectors.spool.stream.slices import bytes_between
from connectors.spool.stream.waiting import DuplicateWatch, Freshness, Guard, OutageLog, ServiceWatch, Signals

_log = logging.getLogger(__name__)
_LONGEST_END: Final = 5.0
"""Seconds in which a fetcher whose reader is gone has ended, for sure; those of ``fetch=external`` need not end."""
_POLL: Final = 0.1


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
            self._last_asked = (*self._last_asked, position)[-COMMITS_KEPT:]
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
        losses: Losses,
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
