"""Compaction of a spool: writing id runs, freeing segments, forgetting fetchers and old ids (rules R2, R6 and R8).

The order is always: make durable, record, delete. A crash in between leaves files that the next start deletes.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connectors.core.errors import SpoolFullError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.recovery import clear_temporary
from connectors.spool.ledger.segment_log import SegmentEntry
from connectors.spool.ledger.state import COMMITS_RETAINED, LedgerState
from connectors.spool.segments.dedup_index import PORTIONS, IdRun, RunEntry, merge_runs, run_name
from connectors.spool.store.base import Store

Clock = Callable[[], float]
"""Seconds that only grow, as `time.monotonic`."""

_MAX_COMMITS_NOTED: Final = 1000
"""In the time for which rows are kept; a batch is kept that much longer."""
_MICROSECONDS: Final = 1_000_000
_PATIENCE: Final = 600.0
"""How long an empty folder is left to a fetcher that claims it and cannot be checked from here: it may only have had
nothing to do, and closing its folder would hand back what it receives next."""
_CLEARING_SECONDS: Final = 60.0


class FileAges:
    """Ages of files that existed when their folder was first listed.

    They come from times of the store alone: the file's, and that of the newest record, which was written a moment ago;
    from then on from a monotonic clock. So no two clocks are compared, and an age is never too high.
    """

    def __init__(self, store: Store, epoch: int, clock: Clock) -> None:
        self._store = store
        self._epoch = epoch
        self._clock = clock
        self._folders: dict[str, tuple[float, dict[str, float]]] = {}

    def age(self, name: str) -> float:
        """Return the seconds since a file was written; 0 if it did not exist. OSError: the store is silent."""
        folder, _, file = name.rpartition("/")
        if folder not in self._folders:
            # Before the list, so that an age is rather too low.
            newest = max(self._store.written(f"ledger/{self._epoch}").values(), default=0.0)
            now = self._clock()
            times = self._store.written(folder)
            self._folders[folder] = now, {other: newest - at for other, at in times.items()}
        listed_at, ages = self._folders[folder]
        return max(ages[file] + self._clock() - listed_at, 0.0) if file in ages else 0.0


class Retention:
    """Which segments were committed long enough ago (option ``spoolRetention``).

    A commit has no time in the ledger, so this notes when it sees one. What was committed before the start is out of
    retention when its file is that old: else a query that runs for a while each hour would never free anything.
    """

    def __init__(self, retention: float, committed: int, files: FileAges, clock: Clock) -> None:
        self._retention = retention
        self._before = committed
        self._files = files
        self._clock = clock
        self._noted: deque[tuple[float, int]] = deque()
        self._passed = 0

    def note(self, state: LedgerState) -> None:
        """Note what is committed by now; to be called often."""
        now, committed = self._clock(), state.committed
        while self._noted and self._noted[0][0] <= now - self._retention:
            self._passed = self._noted.popleft()[1]
        newest_at, newest = self._noted[-1] if self._noted else (float("-inf"), self._passed)
        if committed > newest and now - newest_at >= self._retention / _MAX_COMMITS_NOTED:
            self._noted.append((now, committed))

    def is_over(self, entry: SegmentEntry) -> bool:
        """Whether all rows of a segment are out of retention. OSError: the store does not answer."""
        if not self._retention or entry.end <= self._passed:
            return True
        return entry.end <= self._before and self._files.age(entry.name) >= self._retention


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """What stays in a spool, and for how long.

    Rows stay for `retention` seconds after their commit, ids for `horizon` seconds: by publish time, and also since
    they were admitted. Committed segments are freed `free_segments` together, or as soon as they hold `free_bytes`, so
    that one run holds their ids. Ids in memory are written as a run when they are `recent_ids`; `merge` runs of one
    size become one, of at most `merged_ids` or a quarter of all ids, because while it is written its ids are on disk
    twice. At `max_id_bytes` of runs the query stops; no id is forgotten early.
    """

    retention: float = 0.0
    horizon: float = 31 * 86_400.0  # a query replaces it by its own, which its start returns
    free_segments: int = 16
    free_bytes: int = 256 << 20
    recent_ids: int = 1 << 20
    merge: int = 4
    merged_ids: int = 1 << 25
    max_id_bytes: int = 64 << 30


class Compaction:
    """Compaction of one ledger, by its writer; no call of Spark and no admission waits for it.

    `merge` may run beside the other methods, and these beside admission; they wait for one another.
    """

    def __init__(self, ledger: Ledger, settings: CompactionSettings, clock: Clock = time.monotonic) -> None:
        self._ledger = ledger
        self._settings = settings
        files = FileAges(ledger.store, ledger.claim.epoch, clock)
        self._retention = Retention(settings.retention, ledger.state.committed, files, clock)
        self._files, self._clock = files, clock
        # When the last id of each run that was written since the start was admitted.
        self._admitted_at: dict[str, float] = {}
        self._names = itertools.count()
        self._next_check = -math.inf
        self._next_clearing = clock() + _CLEARING_SECONDS
        self._last_freed: dict[str, int] | None = None
        self._idle_since: dict[str, float] = {}
        self._all_admitted: tuple[int | None, float] = (None, -math.inf)
        self._step = threading.Lock()
        ledger.index.set_horizon(settings.horizon)

    def step(self, *, urgent: bool = False, read_from: int | None = None) -> None:
        """Do what is due: write ids, free segments, forget fetchers, delete temporary files.

        On a full disk it is urgent: free what may be freed, however little it is. `read_from` is the lowest position
        that a query may still read; None where nothing reads. Raises `SpoolFullError` if the ids take more than
        `max_id_bytes`; after an `OSError` the next step tries again.
        """
        with self._step:
            self._ledger.settle()
            self._ledger.clean()
            # Before the ids: they are those of all segments in this state, and maybe of later ones.
            state, settings = self._ledger.state, self._settings
            self._retention.note(state)
            due = freeable(state, self._retention.is_over, read_from)
            recent = sum(len(recent) for _, recent in self._ledger.index.recent())
            enough = len(due) >= settings.free_segments or sum(entry.bytes for entry in due) >= settings.free_bytes
            enough = enough or (urgent and bool(due))
            if enough or recent >= settings.recent_ids:
                self._write_recent(state)
                self._free(due if enough else [])
            self._forget_fetchers()
            if self._clock() >= self._next_clearing:
                # What killed fetchers had half written; a start does it too, but a query may run for months.
                self._next_clearing = self._clock() + _CLEARING_SECONDS
                clear_temporary(self._ledger.store)
            self._check_size()

    def note_admitted(self) -> None:
        """Note that all that was published is admitted; called by the admitting thread, before it admits more."""
        self._all_admitted = (self._ledger.state.published, self._clock())

    def expire(self) -> None:
        """Drop the ids that cannot be redelivered, as of when all was admitted.

        By publish times alone, those of a backlog would go at once: it spans hours, and is read in seconds. So they
        also stay for the horizon after their admission.
        """
        with self._step:
            self._expire()

    def _expire(self) -> None:
        (published, at), horizon = self._all_admitted, self._settings.horizon
        if published is None:
            return
        oldest, long_ago = published - int(horizon * _MICROSECONDS), at - horizon
        runs = self._ledger.state.runs
        expired = [run for run in runs if run.published is not None and run.published[1] < oldest]
        if gone := [run for run in expired if self._run_admitted_at(run) <= long_ago]:
            self._swap([], gone, None)
        self._ledger.index.drop_recent(oldest, long_ago)

    def _run_admitted_at(self, run: RunEntry) -> float:
        """Return when the last id of a run was admitted; for a run from before the start, when it was written."""
        at = self._admitted_at.get(run.name)
        return self._clock() - self._files.age(run_name(run.name)) if at is None else at

    def merge(self) -> bool:
        """Merge runs of one size, if there are enough; return whether that was so. All else continues meanwhile."""
        ledger = self._ledger
        chosen = runs_to_merge(ledger.state.runs, self._settings)
        loaded = {run.entry.name: run for space in {run.space for run in chosen} for run in ledger.index.runs(space)}
        if not chosen or any(run.name not in loaded for run in chosen):  # one has just expired
            return False
        entry = merge_runs(ledger.store, self._name(), [loaded[run.name] for run in chosen])
        self._admitted_at[entry.name] = max(map(self._run_admitted_at, chosen))
        self._swap([entry], chosen, IdRun.load(ledger.store, entry))
        return True

    def _swap(self, add: Sequence[RunEntry], gone: Sequence[RunEntry], new: IdRun | None) -> None:
        """Record that runs are replaced, and use the new one from then on; then delete the old ones."""
        ledger, names = self._ledger, [run.name for run in gone]

        def change(state: LedgerState) -> Mapping[str, Any]:
            # Some may have expired while they were merged.
            present = [run for run in state.runs if run.name in names]
            return {"runs": _change(add, present, state.runs_through)}

        def use() -> None:
            for space in {run.space for run in (*gone, *add)}:
                ledger.index.swap(space, names, new)
            ledger.discard([run_name(name) for name in names])

        failpoint("ids.before_swap_record")
        ledger.append(change, use)
        failpoint("ids.after_swap_record")
        ledger.clean()
        for name in names:
            self._admitted_at.pop(name, None)

    def _write_recent(self, state: LedgerState) -> None:
        """Write the ids of all segments in a state as runs. Those that are admitted meanwhile stay in memory."""
        ledger = self._ledger
        recent = ledger.index.hand_over()
        if not recent and state.runs_through == state.ordinal:
            return
        entries = [portion.write(ledger.store, self._name(), space) for space, portion in recent]
        self._admitted_at |= {entry.name: portion.added_at for entry, (_, portion) in zip(entries, recent, strict=True)}
        # Before the record: a store that does not answer must not leave runs that the record knows and the index not.
        runs = [IdRun.load(ledger.store, entry) for entry in entries]
        ledger.append({"runs": _change(entries, [], state.ordinal)}, lambda: ledger.index.take(runs))
        failpoint("ids.after_record")

    def _free(self, due: Sequence[SegmentEntry]) -> None:
        """Record that segments are freed, then delete them; their ids are in runs that a record names."""
        ledger = self._ledger
        if due:
            failpoint("free.before_record")
            free = {"free": [due[-1].ordinal + 1, due[-1].end]}
            ledger.append(free, lambda: ledger.discard([entry.name for entry in due]))
            failpoint("free.after_record")
            ledger.clean()
            failpoint("free.after_delete")
            if self._last_freed is not None:
                self._last_freed |= {entry.fetcher: entry.number for entry in due}

    def _forget_fetchers(self) -> None:
        """Remove the folders of fetchers that have ended, once all their segments are freed."""
        ledger, state = self._ledger, self._ledger.state
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + ledger.store.look_seconds
        if self._last_freed is None:
            done = state.fetchers.keys() - state.segments.fetchers()
            self._last_freed = {fetcher: state.fetchers[fetcher] for fetcher in done}
        last = self._last_freed
        busy = {fetcher for fetcher, number in state.fetchers.items() if last.get(fetcher) != number}
        names = set(ledger.store.list("inbox")) if state.fetchers.keys() - busy else set()
        idle = (names & state.fetchers.keys()) - busy
        self._idle_since = {fetcher: self._idle_since.get(fetcher, now) for fetcher in idle}
        for fetcher, since in self._idle_since.items():
            folder = f"inbox/{fetcher}"
            if now - since < _PATIENCE and ledger.store.held_elsewhere(folder):
                continue
            if ledger.store.close_folder(folder, ledger.next_segment(fetcher)):
                ledger.store.remove_unlocked_folder(folder)
        gone = [fetcher for fetcher in state.fetchers if fetcher not in busy and fetcher not in names]
        if gone:
            # Else a loss of power could bring back a folder, with freed segments in it, that no record names any more.
            ledger.store.sync_folder("inbox")
            ledger.append(lambda now: {"forget": [one for one in gone if now.fetchers[one] == state.fetchers[one]]})

    def _check_size(self) -> None:
        most = self._settings.max_id_bytes
        if self._run_bytes() > most:
            self._expire()
        if (size := self._run_bytes()) > most:
            raise SpoolFullError(
                "SPOOL_ID_INDEX_FULL",
                f"The ids of admitted messages take {size} bytes. The limit is {most}",
                f"{self._ledger.store.root}/ids",
            )

    def _run_bytes(self) -> int:
        return sum(run.bytes for run in self._ledger.state.runs)

    def _name(self) -> str:
        return f"{self._ledger.claim.epoch}-{next(self._names)}"


def freeable(
    state: LedgerState, out_of_retention: Callable[[SegmentEntry], bool], read_from: int | None = None
) -> list[SegmentEntry]:
    """Return the oldest segments that may be freed (rule R6).

    They lie wholly below the last two committed batches and what is still read, and are out of retention. A query with
    an older checkpoint, or from the earliest row, reads below what an earlier one has committed.
    """
    limit = state.commits[0] if len(state.commits) == COMMITS_RETAINED else 0
    limit = limit if read_from is None else min(limit, read_from)
    return list(itertools.takewhile(lambda entry: entry.end <= limit and out_of_retention(entry), state.segments))


def runs_to_merge(runs: Sequence[RunEntry], settings: CompactionSettings) -> list[RunEntry]:
    """Choose runs of one name space and size class that expire within one portion of the horizon.

    A run expires with its last message, so how old its first one is does not matter: a late duplicate keeps no run
    apart from the others.
    """
    count, portion = settings.merge, settings.horizon * _MICROSECONDS / PORTIONS
    most = max(settings.merged_ids, sum(run.ids for run in runs) // 4)
    classes: dict[tuple[str, int], list[RunEntry]] = {}
    for run in sorted(runs, key=_last_published):
        size = 0
        while count ** (size + 1) <= run.ids:
            size += 1
        classes.setdefault((run.space, size), []).append(run)
    for same in classes.values():
        for first in range(len(same) - count + 1):
            chosen = same[first : first + count]
            span = _last_published(chosen[-1]) - _last_published(chosen[0])
            if span <= portion and sum(run.ids for run in chosen) <= most:
                return chosen
    return []


def _last_published(run: RunEntry) -> int:
    return 0 if run.published is None else run.published[1]


def _change(add: Sequence[RunEntry], remove: Sequence[RunEntry], through: int) -> dict[str, Any]:
    return {"add": [run.to_json() for run in add], "remove": [run.name for run in remove], "through": through}
