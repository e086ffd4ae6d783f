"""How old files are, by the store's own clock: what a process must know of the time before its start."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from connectors.spool.state import LedgerState, SegmentEntry
from connectors.spool.stores import Store

__all__ = ["Clock", "CommittedAges", "FileAges"]

Clock = Callable[[], float]
"""Seconds that only grow, as `time.monotonic`."""

_STEPS: Final = 1000
"""So many commits are noted, at most, in the time for which rows are kept; a batch is held that much longer."""


class FileAges:
    """Ages of files that were there when their folder was first asked about.

    A file's age is told by times of the store alone: its own, and that of the newest record, which was written a moment
    ago; from then on by a monotonic clock. So no two clocks are compared, and an age is never too high.

    Args:
        store: where the spool is.
        epoch: of the writer.
        clock: see `Clock`.
    """

    def __init__(self, store: Store, epoch: int, clock: Clock = time.monotonic) -> None:
        self._store = store
        self._epoch = epoch
        self._clock = clock
        self._folders: dict[str, tuple[float, dict[str, float]]] = {}

    def age(self, name: str) -> float:
        """Seconds since a file was written; 0 for one that was not there.

        Raises:
            OSError: the store does not answer.
        """
        folder, _, file = name.rpartition("/")
        if folder not in self._folders:
            # Before the look, so that an age is rather too low.
            newest = max(self._store.written(f"ledger/{self._epoch}").values(), default=0.0)
            now = self._clock()
            times = self._store.written(folder)
            self._folders[folder] = now, {each: newest - at for each, at in times.items()}
        looked_at, ages = self._folders[folder]
        return max(ages[file] + self._clock() - looked_at, 0.0) if file in ages else 0.0


class CommittedAges:
    """Which segments were committed long enough ago (option ``spoolRetention``).

    A commit has no time in the ledger, so this notes when it sees one. What was committed before the start is out of
    retention when its file is that old: else a query that runs for a while each hour would never free anything.

    Args:
        retention: seconds for which rows are kept after their commit.
        committed: the highest position committed at the start.
        files: ages of the segments' files.
        clock: see `Clock`.
    """

    def __init__(self, retention: float, committed: int, files: FileAges, clock: Clock = time.monotonic) -> None:
        self._retention = retention
        self._before = committed
        self._files = files
        self._clock = clock
        self._noted: deque[tuple[float, int]] = deque()
        self._passed = 0

    def note(self, state: LedgerState) -> None:
        """Take note of what is committed by now; to be called often."""
        now, committed = self._clock(), state.committed
        while self._noted and self._noted[0][0] <= now - self._retention:
            self._passed = self._noted.popleft()[1]
        newest_at, newest = self._noted[-1] if self._noted else (float("-inf"), self._passed)
        if committed > newest and now - newest_at >= self._retention / _STEPS:
            self._noted.append((now, committed))

    def may_go(self, entry: SegmentEntry) -> bool:
        """Whether all rows of a segment were committed so long ago.

        Raises:
            OSError: the store does not answer.
        """
        if not self._retention or entry.end <= self._passed:
            return True
        return entry.end <= self._before and self._files.age(entry.name) >= self._retention
