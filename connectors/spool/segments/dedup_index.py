"""The index of the ids already admitted (rule R8).

Per name space it has sorted arrays: the runs on disk, in mapped memory, and the keys of segments that are in no run
yet, in arrays that are merged as they grow, so that there are few of them.

Ids expire in portions of an eighth of the horizon, by the publish time of their last message: a run, and a `RecentIds`
in memory, has the ids of one portion. A search skips arrays whose last message was published longer than the horizon
before the first message that is searched for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from connectors.spool.segments.id_keys import IdKeys
from connectors.spool.segments.id_runs import IdRun, RunEntry, distinct, union, write_run
from connectors.spool.segments.sealed_file import Published, wider
from connectors.spool.segments.sorted_search import Guide, guide_of, places_of
from connectors.spool.store.base import Blobs

__all__ = ["PORTIONS", "DedupIndex"]

PORTIONS = 8
"""So many portions has a horizon."""

_SHORTEST_HORIZON = 600.0
_MICROSECONDS = 1_000_000

Mask = npt.NDArray[np.bool_]
_Keys = npt.NDArray[Any]
_Guided = tuple[_Keys, Guide]
"""A sorted array, and its guide (see `connectors.spool.segments.sorted_search`)."""


class RecentIds:
    """The keys of one portion of a name space that are in no run yet."""

    def __init__(self) -> None:
        self.numbers: list[_Keys] = []
        self.hashes: list[_Keys] = []
        self.published: Published = None
        self.added_at = float("-inf")
        """When the last of them was added, by the monotonic clock."""

    def __len__(self) -> int:
        return sum(map(len, self.numbers)) + sum(map(len, self.hashes))

    def add(self, keys: IdKeys, published: Published) -> None:
        """Add the keys of a segment."""
        # Unsorted as they come, so a stable sort, as `union` does it, would be slower.
        _push(self.numbers, distinct(keys.ascending_numbers))
        _push(self.hashes, distinct(np.sort(keys.hashes)))
        self.published = wider(self.published, published)
        self.added_at = time.monotonic()

    def absorb(self, other: RecentIds) -> None:
        """Add all keys of another one."""
        for array in other.numbers:
            _push(self.numbers, array)
        for array in other.hashes:
            _push(self.hashes, array)
        self.published = wider(self.published, other.published)
        self.added_at = max(self.added_at, other.added_at)

    def write(self, store: Blobs, name: str, space: str) -> RunEntry:
        """Write all keys as one run."""
        return write_run(store, name, space, [union(self.numbers)], [union(self.hashes)], self.published)


class DedupIndex:
    """All ids admitted, by name space; they count for `horizon` seconds of publish time, for ever while it is None."""

    def __init__(self, horizon: float | None = None) -> None:
        self.horizon = horizon
        self._runs: dict[str, list[IdRun]] = {}
        self._recent: dict[str, dict[int, RecentIds]] = {}

    def set_horizon(self, seconds: float) -> None:
        """Set how long ids count."""
        before, self.horizon, self._recent = self._recent, seconds, {}
        for space, portions in before.items():
            for recent in portions.values():
                self._portion(space, recent.published).absorb(recent)

    def recent(self) -> list[tuple[str, RecentIds]]:
        """Return the ids that are in no run yet, by name space and portion."""
        return [
            (space, recent) for space, portions in self._recent.items() for recent in portions.values() if len(recent)
        ]

    def runs(self, space: str) -> list[IdRun]:
        """Return the runs of a name space, oldest first."""
        return list(self._runs.get(space, ()))

    def duplicates(self, space: str, keys: IdKeys, published: Published) -> Mask:
        """Return which rows are duplicates: those whose id is in the index, and all but the first of the same id."""
        arrays = list(self._arrays(space, published))
        numbers = [guided for numbers, _ in arrays for guided in numbers]
        if not len(keys.hash_rows):
            return _repeated(keys.numbers, keys.ascending_numbers, numbers)
        hashes = [guided for _, hashes in arrays for guided in hashes]
        numbered = keys.numbered()
        duplicates = np.zeros(len(keys), np.bool_)
        duplicates[numbered] = _repeated(keys.numbers[numbered], keys.ascending_numbers, numbers)
        duplicates[keys.hash_rows] |= _repeated(keys.hashes, np.sort(keys.hashes), hashes)
        return duplicates

    def add(self, space: str, keys: IdKeys, published: Published) -> None:
        """Add the ids of an admitted segment."""
        self._portion(space, published).add(keys, published)

    def absorb(self, other: DedupIndex) -> None:
        """Add the ids in memory of another index."""
        for space, recent in other.recent():
            self._portion(space, recent.published).absorb(recent)

    def take_recent(self, runs: Iterable[IdRun]) -> None:
        """Replace all ids that are in no run yet by the runs that now have them."""
        self._recent = {}
        for run in runs:
            self._runs.setdefault(run.entry.space, []).append(run)

    def drop_recent(self, before: int, added_before: float) -> None:
        """Forget the portions in memory that were published and added before these times.

        `before` is in microseconds since 1970, `added_before` of the monotonic clock.
        """
        for portions in self._recent.values():
            for number, recent in list(portions.items()):
                if _is_before(recent.published, before) and recent.added_at <= added_before:
                    del portions[number]

    def clear(self) -> None:
        """Forget everything: a new epoch of ids begins."""
        self._runs.clear()
        self._recent.clear()

    def load(self, store: Blobs, entries: Iterable[RunEntry]) -> None:
        """Map and check the runs that the ledger names."""
        for entry in entries:
            self._runs.setdefault(entry.space, []).append(IdRun.load(store, entry))

    def swap(self, space: str, old: Iterable[str], new: IdRun | None) -> None:
        """Replace runs by the one they were merged into, or drop them (None)."""
        gone = set(old)
        others = [run for run in self._runs.get(space, []) if run.entry.name not in gone]
        self._runs[space] = others if new is None else [new, *others]

    def _portion(self, space: str, published: Published) -> RecentIds:
        length = (_SHORTEST_HORIZON if self.horizon is None else self.horizon) * _MICROSECONDS // PORTIONS
        number = -1 if published is None else int(published[1] // length)
        return self._recent.setdefault(space, {}).setdefault(number, RecentIds())

    def _arrays(self, space: str, published: Published) -> Iterator[tuple[list[_Guided], list[_Guided]]]:
        """Yield the sorted numbers and the sorted hashes in which to search for ids published in this range."""
        oldest = None
        if self.horizon is not None and published is not None:
            oldest = published[0] - int(self.horizon * _MICROSECONDS)
        for recent in self._recent.get(space, {}).values():
            if not _is_before(recent.published, oldest):
                yield _guided(recent.numbers), _guided(recent.hashes)
        for run in self._runs.get(space, ()):
            if not _is_before(run.entry.published, oldest):
                yield [(run.numbers, run.number_guide)], [(run.hashes, run.hash_guide)]


def _guided(arrays: Iterable[_Keys]) -> list[_Guided]:
    return [(array, guide_of(array)) for array in arrays]


def _is_before(published: Published, time: int | None) -> bool:
    return time is not None and published is not None and published[1] < time


def _repeated(keys: _Keys, ascending: _Keys, arrays: Sequence[_Guided]) -> Mask:
    """Return which of these keys are in one of the arrays, or repeat an earlier one among them.

    `ascending` is the keys sorted: that is four times faster than to compute their order, which is needed only where a
    key is repeated.
    """
    marked = np.zeros(len(keys), np.bool_)
    marked[1:] = ascending[1:] == ascending[:-1]
    for array, guide in arrays:
        if len(array) and len(ascending) and ascending[-1] >= array[0] and ascending[0] <= array[-1]:
            _mark(marked, ascending, array, guide)
    if not marked.any():
        return marked
    repeated = np.empty(len(keys), np.bool_)
    # A stable sort: of the rows with one key the first is no duplicate.
    repeated[np.argsort(keys, kind="stable")] = marked
    return repeated


def _mark(marked: Mask, ascending: _Keys, array: _Keys, guide: Guide) -> None:
    """Mark the keys that are in a sorted array; the shorter array is searched for in the longer one."""
    if len(array) < len(ascending):
        # Of a repeated key only the first is not marked yet.
        places = places_of(array, ascending, guide_of(ascending))
        inside = places < len(ascending)
        places = places[inside]
        marked[places[ascending[places] == array[inside]]] = True
        return
    places = places_of(ascending, array, guide)
    inside = places < len(array)
    marked[inside] |= array[places[inside]] == ascending[inside]


def _push(arrays: list[_Keys], new: _Keys) -> None:
    """Add a sorted array; an array is at least twice as long as the next one."""
    if not len(new):
        return
    while arrays and len(arrays[-1]) < 2 * len(new):
        new = union([arrays.pop(), new])
    arrays.append(new)
