"""The index of the ids already admitted (rule R8).

Per name space it holds sorted arrays: the runs on disk, in mapped memory, and in front of them the keys of segments
that no run holds yet, in arrays that are merged as they grow, so that there are few of them. A look-up of a segment's
ids sorts them once and searches each array. Nothing is ever forgotten here but by `swap` and `clear`, which are called
after a record says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from connectors.spool.keys import IdKeys
from connectors.spool.runs import IdRun, RunEntry, write_run
from connectors.spool.store import LocalStore

__all__ = ["DedupIndex", "RecentIds"]

Mask = npt.NDArray[np.bool_]
_Keys = npt.NDArray[Any]


class RecentIds:
    """The keys of one name space that are in no run yet: sorted arrays in memory."""

    def __init__(self) -> None:
        self.numbers: list[_Keys] = []
        self.hashes: list[_Keys] = []
        self.published: tuple[int, int] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.numbers)) + sum(map(len, self.hashes))

    def add(self, keys: IdKeys, published: tuple[int, int] | None) -> None:
        """Add the keys of a segment, whose messages were published between the two times (microseconds)."""
        _push(self.numbers, np.unique(keys.numbers[keys.numbered()]))
        _push(self.hashes, np.unique(keys.hashes))
        self._widen(published)

    def absorb(self, other: RecentIds) -> None:
        """Add the keys that another one holds."""
        for array in other.numbers:
            _push(self.numbers, array)
        for array in other.hashes:
            _push(self.hashes, array)
        self._widen(other.published)

    def _widen(self, published: tuple[int, int] | None) -> None:
        if published is not None:
            low, high = self.published or published
            self.published = (min(low, published[0]), max(high, published[1]))

    def write(self, store: LocalStore, name: str, space: str) -> RunEntry:
        """Write them all as one run."""
        return write_run(store, name, space, [_union(self.numbers)], [_union(self.hashes)], self.published)


class DedupIndex:
    """All ids admitted, by name space."""

    def __init__(self) -> None:
        self._runs: dict[str, list[IdRun]] = {}
        self._recent: dict[str, RecentIds] = {}

    def recent(self, space: str) -> RecentIds:
        """The ids of a name space that are in no run yet."""
        return self._recent.setdefault(space, RecentIds())

    def spaces(self) -> list[str]:
        """The name spaces that have ids in no run yet."""
        return [space for space, recent in self._recent.items() if len(recent)]

    def runs(self, space: str) -> list[IdRun]:
        """The runs of a name space, oldest first."""
        return list(self._runs.get(space, ()))

    def strike(self, space: str, keys: IdKeys) -> Mask:
        """Which rows to strike out: those whose id is known, and all but the first of the same id."""
        recent, runs = self.recent(space), self._runs.get(space, ())
        numbers = [*recent.numbers, *(run.numbers for run in runs)]
        if not len(keys.hash_rows):
            return _repeated(keys.numbers, numbers)
        numbered = keys.numbered()
        struck = np.empty(len(keys), np.bool_)
        struck[numbered] = _repeated(keys.numbers[numbered], numbers)
        struck[keys.hash_rows] = _repeated(keys.hashes, [*recent.hashes, *(run.hashes for run in runs)])
        return struck

    def add(self, space: str, keys: IdKeys, published: tuple[int, int] | None) -> None:
        """Add the ids of an admitted segment."""
        self.recent(space).add(keys, published)

    def absorb(self, other: DedupIndex) -> None:
        """Add the ids that another index has in memory."""
        for space, recent in other._recent.items():
            self.recent(space).absorb(recent)

    def take_recent(self, space: str, run: IdRun) -> None:
        """Replace the ids of a name space that are in no run yet by the run that now holds them."""
        self._recent[space] = RecentIds()
        self._runs.setdefault(space, []).append(run)

    def clear(self) -> None:
        """Forget everything: a new epoch of ids begins."""
        self._runs.clear()
        self._recent.clear()

    def load(self, store: LocalStore, entries: Iterable[RunEntry]) -> None:
        """Map and check the runs that the ledger names."""
        for entry in entries:
            self._runs.setdefault(entry.space, []).append(IdRun.load(store, entry))

    def swap(self, space: str, old: Iterable[str], new: IdRun | None) -> None:
        """Replace runs by the one they were merged into, or drop them (None)."""
        gone = set(old)
        kept = [run for run in self._runs.get(space, []) if run.entry.name not in gone]
        self._runs[space] = kept if new is None else [new, *kept]


def _repeated(keys: _Keys, known: Sequence[_Keys]) -> Mask:
    """Which of these keys are known, or repeat an earlier one among them."""
    order = np.argsort(keys, kind="stable")
    ascending = keys[order]
    found = np.zeros(len(keys), np.bool_)
    found[1:] = ascending[1:] == ascending[:-1]
    for array in known:
        if len(array) and len(ascending) and ascending[-1] >= array[0] and ascending[0] <= array[-1]:
            places = np.searchsorted(array, ascending)
            inside = places < len(array)
            found[inside] |= array[places[inside]] == ascending[inside]
    struck = np.empty(len(keys), np.bool_)
    struck[order] = found
    return struck


def _push(arrays: list[_Keys], new: _Keys) -> None:
    """Add a sorted array; an array is at least twice as long as the next one."""
    if not len(new):
        return
    while arrays and len(arrays[-1]) < 2 * len(new):
        new = _union([arrays.pop(), new])
    arrays.append(new)


def _union(arrays: Sequence[_Keys]) -> _Keys:
    if not arrays:
        return np.empty(0, np.uint64)
    merged = np.concatenate(arrays)
    merged.sort(kind="stable")
    keep = np.ones(len(merged), np.bool_)
    keep[1:] = merged[1:] != merged[:-1]
    unique: _Keys = merged[keep]
    return unique
