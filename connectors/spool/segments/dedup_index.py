"""The index of the ids already admitted (rule R8).

Per name space it holds sorted arrays: the runs on disk, in mapped memory, and in front of them the keys of segments
that no run holds yet, in arrays that are merged as they grow, so that there are few of them. A look-up of a segment's
ids sorts them once and searches each array.

Ids expire in portions of an eighth of the horizon by the publish time of their last message: what is in memory is held
by portion, and a run holds the ids of one portion. A look-up leaves out arrays whose last message was published longer
than the horizon before the first one that is looked up. `clear` forgets everything, when a new epoch of ids begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from connectors.spool.segments.id_keys import IdKeys
from connectors.spool.segments.id_runs import IdRun, RunEntry, distinct, union, write_run
from connectors.spool.segments.sorted_search import Guide, guide_of, places_of
from connectors.spool.store.base import Store

__all__ = ["PORTIONS", "DedupIndex", "RecentIds"]

PORTIONS = 8
"""In so many portions the ids of one horizon expire."""

_SHORTEST_HORIZON = 600.0
_MICROSECONDS = 1_000_000

Mask = npt.NDArray[np.bool_]
Published = tuple[int, int] | None
"""Lowest and highest publish time of some messages, microseconds since 1970; None if it is not known."""

_Keys = npt.NDArray[Any]
_Known = tuple[_Keys, Guide]
"""A sorted array, and its guide (see `connectors.spool.segments.sorted_search`)."""


class RecentIds:
    """The keys of one portion of a name space that are in no run yet: sorted arrays in memory."""

    def __init__(self) -> None:
        self.numbers: list[_Keys] = []
        self.hashes: list[_Keys] = []
        self.published: Published = None
        self.added_at = float("-inf")
        """When the last of them was added, by the monotonic clock."""

    def __len__(self) -> int:
        return sum(map(len, self.numbers)) + sum(map(len, self.hashes))

    def add(self, keys: IdKeys, published: Published) -> None:
        """Add the keys of a segment, whose messages were published between the two times."""
        # In no order as they come, so sorting must not look for one first, as `union` does.
        _push(self.numbers, distinct(keys.ascending_numbers))
        _push(self.hashes, distinct(np.sort(keys.hashes)))
        self._widen(published)
        self.added_at = time.monotonic()

    def absorb(self, other: RecentIds) -> None:
        """Add the keys that another one holds."""
        for array in other.numbers:
            _push(self.numbers, array)
        for array in other.hashes:
            _push(self.hashes, array)
        self._widen(other.published)
        self.added_at = max(self.added_at, other.added_at)

    def _widen(self, published: Published) -> None:
        if published is not None:
            low, high = self.published or published
            self.published = (min(low, published[0]), max(high, published[1]))

    def write(self, store: Store, name: str, space: str) -> RunEntry:
        """Write them all as one run."""
        return write_run(store, name, space, [union(self.numbers)], [union(self.hashes)], self.published)


class DedupIndex:
    """All ids admitted, by name space.

    Args:
        horizon: seconds, by publish time, for which ids count; None while it is not known, then all of them do.
    """

    def __init__(self, horizon: float | None = None) -> None:
        self.horizon = horizon
        self._runs: dict[str, list[IdRun]] = {}
        self._recent: dict[str, dict[int, RecentIds]] = {}

    def set_horizon(self, seconds: float) -> None:
        """Let ids count for so long."""
        before, self.horizon, self._recent = self._recent, seconds, {}
        for space, portions in before.items():
            for recent in portions.values():
                self._portion(space, recent.published).absorb(recent)

    def recent(self) -> list[tuple[str, RecentIds]]:
        """The ids that are in no run yet, by name space and portion."""
        return [
            (space, recent) for space, portions in self._recent.items() for recent in portions.values() if len(recent)
        ]

    def runs(self, space: str) -> list[IdRun]:
        """The runs of a name space, oldest first."""
        return list(self._runs.get(space, ()))

    def strike(self, space: str, keys: IdKeys, published: Published) -> Mask:
        """Which rows to strike out: those whose id is known, and all but the first of the same id.

        Args:
            space: their name space.
            keys: one row's after the other's.
            published: between which times they were published.
        """
        arrays = list(self._arrays(space, published))
        numbers = [known for numbers, _ in arrays for known in numbers]
        if not len(keys.hash_rows):
            return _repeated(keys.numbers, keys.ascending_numbers, numbers)
        numbered = keys.numbered()
        struck = np.zeros(len(keys), np.bool_)
        struck[numbered] = _repeated(keys.numbers[numbered], keys.ascending_numbers, numbers)
        struck[keys.hash_rows] |= _repeated(
            keys.hashes, np.sort(keys.hashes), [known for _, hashes in arrays for known in hashes]
        )
        return struck

    def add(self, space: str, keys: IdKeys, published: Published) -> None:
        """Add the ids of an admitted segment."""
        self._portion(space, published).add(keys, published)

    def absorb(self, other: DedupIndex) -> None:
        """Add the ids that another index has in memory."""
        for space, recent in other.recent():
            self._portion(space, recent.published).absorb(recent)

    def take_recent(self, runs: Iterable[IdRun]) -> None:
        """Replace all ids that are in no run yet by the runs that now hold them."""
        self._recent = {}
        for run in runs:
            self._runs.setdefault(run.entry.space, []).append(run)

    def drop_recent(self, before: int, added_before: float) -> None:
        """Forget the ids in memory whose last message was published, and whose last one was added, before these times.

        Args:
            before: microseconds since 1970.
            added_before: of the monotonic clock.
        """
        for portions in self._recent.values():
            for name, recent in list(portions.items()):
                if recent.published is None:
                    continue
                if recent.published[1] < before and recent.added_at <= added_before:
                    del portions[name]

    def clear(self) -> None:
        """Forget everything: a new epoch of ids begins."""
        self._runs.clear()
        self._recent.clear()

    def load(self, store: Store, entries: Iterable[RunEntry]) -> None:
        """Map and check the runs that the ledger names."""
        for entry in entries:
            self._runs.setdefault(entry.space, []).append(IdRun.load(store, entry))

    def swap(self, space: str, old: Iterable[str], new: IdRun | None) -> None:
        """Replace runs by the one they were merged into, or drop them (None)."""
        gone = set(old)
        kept = [run for run in self._runs.get(space, []) if run.entry.name not in gone]
        self._runs[space] = kept if new is None else [new, *kept]

    def _portion(self, space: str, published: Published) -> RecentIds:
        """The ids in memory that expire together with those of messages published between these times."""
        length = (_SHORTEST_HORIZON if self.horizon is None else self.horizon) * _MICROSECONDS // PORTIONS
        number = -1 if published is None else int(published[1] // length)
        return self._recent.setdefault(space, {}).setdefault(number, RecentIds())

    def _arrays(self, space: str, published: Published) -> Iterator[tuple[list[_Known], list[_Known]]]:
        """The sorted numbers and the sorted hashes to search for the ids of messages published between these times."""
        oldest = None
        if self.horizon is not None and published is not None:
            oldest = published[0] - int(self.horizon * _MICROSECONDS)
        for recent in self._recent.get(space, {}).values():
            if not _is_before(recent.published, oldest):
                yield _guided(recent.numbers), _guided(recent.hashes)
        for run in self._runs.get(space, ()):
            if not _is_before(run.entry.published, oldest):
                yield [(run.numbers, run.number_guide)], [(run.hashes, run.hash_guide)]


def _guided(arrays: Iterable[_Keys]) -> list[_Known]:
    return [(array, guide_of(array)) for array in arrays]


def _is_before(published: Published, time: int | None) -> bool:
    return time is not None and published is not None and published[1] < time


def _repeated(keys: _Keys, ascending: _Keys, known: Sequence[_Known]) -> Mask:
    """Which of these keys are known, or repeat an earlier one among them.

    They come sorted as well: values are sorted four times faster than their order is found, and that is needed only
    where one is repeated.
    """
    found = np.zeros(len(keys), np.bool_)
    found[1:] = ascending[1:] == ascending[:-1]
    for array, guide in known:
        if len(array) and len(ascending) and ascending[-1] >= array[0] and ascending[0] <= array[-1]:
            _mark(found, ascending, array, guide)
    if not found.any():
        return found
    struck = np.empty(len(keys), np.bool_)
    # Stable: of the rows with one key the first is kept.
    struck[np.argsort(keys, kind="stable")] = found
    return struck


def _mark(found: Mask, ascending: _Keys, array: _Keys, guide: Guide) -> None:
    """Mark the keys that are in a sorted array; the shorter one is searched for in the longer one."""
    if len(array) < len(ascending):
        # Of a key that is there several times only the first is not marked yet.
        places = places_of(array, ascending, guide_of(ascending))
        inside = places < len(ascending)
        places = places[inside]
        found[places[ascending[places] == array[inside]]] = True
        return
    places = places_of(ascending, array, guide)
    inside = places < len(array)
    found[inside] |= array[places[inside]] == ascending[inside]


def _push(arrays: list[_Keys], new: _Keys) -> None:
    """Add a sorted array; an array is at least twice as long as the next one."""
    if not len(new):
        return
    while arrays and len(arrays[-1]) < 2 * len(new):
        new = union([arrays.pop(), new])
    arrays.append(new)
