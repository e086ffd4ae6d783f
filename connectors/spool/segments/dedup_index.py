"""The ids already admitted, and the sorted files that hold them (rule R8).

Per name space the index has sorted arrays: the runs on disk, in mapped memory, and the keys of segments that are in no
run yet, in arrays that are merged as they grow.

A run is a sealed file: sections ``numbers`` (little-endian uint64, ascending over all of them), then sections
``hashes`` (16 bytes each, ascending), so that each part is one array in mapped memory.

Ids are grouped by publish time: a group (a run, or a `RecentIds` in memory) spans a portion of the horizon, an eighth,
and expires as a whole, after its newest message. A search skips arrays whose last message was published longer than the
horizon before the first message that is searched for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from connectors.core.processes.failpoints import failpoint
from connectors.spool.segments.id_keys import HASH_TYPE, Hashes, IdKeys, Numbers
from connectors.spool.segments.segment import PublishTimes, SealedKind, SealedReader, SealedWriter, published_of, wider
from connectors.spool.segments.shapes import is_time_range
from connectors.spool.store.base import Store

RUN = SealedKind(
    b"SPOOLIDS",
    "A run of admitted ids",
    "SPOOL_ID_RUN_DAMAGED",
    "SPOOL_ID_RUN_VERSION",
    "without it, messages would be delivered a second time",
    {"space": str, "numbers": int, "hashes": int, "published": is_time_range},
)
_CHUNK = 1 << 20
_NUMBER_TYPE = np.dtype("<u8")
_Key = TypeVar("_Key", np.uint64, np.bytes_)

PORTIONS = 8
"""Portions per horizon."""
_SHORTEST_HORIZON = 600.0
_MICROSECONDS = 1_000_000

_SAMPLED = 32
"""A guide has one key in this many: a quarter of a byte per key."""

Mask = npt.NDArray[np.bool_]
Guide = npt.NDArray[np.uint64]
"""A sample of a sorted array, which does most steps of a search in memory that fits into the processor's cache."""
_Keys = npt.NDArray[Any]
_Places = npt.NDArray[np.intp]
_Guided = tuple[_Keys, Guide]
"""A sorted array, and its guide."""


def guide_of(array: _Keys) -> Guide:
    return _prefixes(array[::_SAMPLED])


def places_of(keys: _Keys, array: _Keys, guide: Guide) -> _Places:
    """Return what `numpy.searchsorted(array, keys)` returns, faster; fastest if the keys ascend.

    That takes one key after the other: twenty branches a key that the processor cannot predict, and for hashes a call
    each. Here each step of the search is one step for all keys. The array is not empty.
    """
    wanted, last = _prefixes(keys), len(array) - 1

    def at(places: _Places) -> Guide:
        return _prefixes(array[np.minimum(places, last)])

    places: _Places = np.maximum(np.searchsorted(guide, wanted) - 1, 0) * _SAMPLED
    step = _SAMPLED // 2
    while step:
        places += step * (at(places + (step - 1)) < wanted)
        step //= 2
    places += at(places) < wanted
    places = np.minimum(places, len(array))
    if array.dtype == HASH_TYPE:
        # Hashes that begin with the same eight bytes: hardly ever by chance.
        tied = (at(places) == wanted) & (array[np.minimum(places, last)] != keys)
        if tied.any():
            places[tied] = np.searchsorted(array, keys[tied])
    return places


def _prefixes(keys: _Keys) -> Guide:
    """Return numbers unchanged, and the first eight bytes of hashes as numbers of the same order."""
    if keys.dtype != HASH_TYPE:
        return keys.astype(np.uint64)
    return np.ascontiguousarray(keys).view(np.uint64)[::2].byteswap()


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run, as the ledger records it.

    `name` is within ``ids/``, `space` the name space of the ids (index of the source, a dot, its dedup epoch),
    `numbers` and `hashes` are counts.
    """

    name: str
    space: str
    numbers: int
    hashes: int
    published: PublishTimes
    digest: str

    @property
    def ids(self) -> int:
        return self.numbers + self.hashes

    @property
    def bytes(self) -> int:
        return self.numbers * _NUMBER_TYPE.itemsize + self.hashes * HASH_TYPE.itemsize

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunEntry:
        return cls(**{**value, "published": published_of(value["published"])})


@dataclass(frozen=True, slots=True)
class IdRun:
    """A run in mapped memory: two sorted arrays, and their guides."""

    entry: RunEntry
    numbers: Numbers
    hashes: Hashes
    number_guide: Guide
    hash_guide: Guide

    @classmethod
    def load(cls, store: Store, entry: RunEntry) -> IdRun:
        """Map a run and check every byte; raises `SpoolDamagedError` if it is missing, damaged or another one."""
        file = SealedReader(store, run_name(entry.name), RUN, entry.digest)
        file.verify()
        stated = tuple(file.footer[name] for name in ("space", "numbers", "hashes"))
        if stated != (entry.space, entry.numbers, entry.hashes):
            file.damaged("has other ids than the ledger says")
        split = entry.numbers * _NUMBER_TYPE.itemsize
        numbers = np.frombuffer(file.data[:split], _NUMBER_TYPE)
        hashes = np.frombuffer(file.data[split : split + entry.hashes * HASH_TYPE.itemsize], HASH_TYPE)
        return cls(entry, numbers, hashes, guide_of(numbers), guide_of(hashes))


def run_name(name: str) -> str:
    return f"ids/{name}"


def write_run(
    store: Store, name: str, space: str, numbers: Iterable[Numbers], hashes: Iterable[Hashes], published: PublishTimes
) -> RunEntry:
    """Write a run durably; `name` is one within ``ids/`` that was never used.

    Numbers and hashes come in chunks, ascending over all of them, without repeats. OSError: nothing was published.
    """
    failpoint("ids.before_write")
    with SealedWriter(store, run_name(name), RUN) as file:
        counts = [_write_chunks(file, "numbers", numbers), _write_chunks(file, "hashes", hashes)]
        digest = file.publish({"space": space, "numbers": counts[0], "hashes": counts[1], "published": published})
    failpoint("ids.after_write")
    return RunEntry(name, space, counts[0], counts[1], published, digest)


def merge_runs(store: Store, name: str, runs: Sequence[IdRun]) -> RunEntry:
    """Merge runs of one name space into a new one, with some tens of MB of memory whatever their size."""
    published = reduce(wider, (run.entry.published for run in runs))
    numbers, hashes = _merged([run.numbers for run in runs]), _merged([run.hashes for run in runs])
    return write_run(store, name, runs[0].entry.space, numbers, hashes, published)


def union(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the distinct keys of some arrays, ascending. A stable sort uses sorted parts; `numpy.unique` would not."""
    if not arrays:
        return np.empty(0, np.uint64)
    merged = np.concatenate(arrays)
    merged.sort(kind="stable")
    return distinct(merged)


def distinct(ascending: npt.NDArray[Any]) -> npt.NDArray[Any]:
    keep = np.ones(len(ascending), np.bool_)
    keep[1:] = ascending[1:] != ascending[:-1]
    return ascending if keep.all() else ascending[keep]


def _write_chunks(file: SealedWriter, kind: str, chunks: Iterable[npt.NDArray[Any]]) -> int:
    count = 0
    for chunk in chunks:
        for start in range(0, len(chunk), _CHUNK):
            part = np.ascontiguousarray(chunk[start : start + _CHUNK])
            file.section(kind, part.tobytes())
            count += len(part)
    return count


def _merged(arrays: Sequence[npt.NDArray[_Key]]) -> Iterable[npt.NDArray[_Key]]:
    """Yield the union of sorted arrays, chunk by chunk, whatever the ranges of the arrays are.

    Every `step`-th key of every array is a bound, so an array has fewer than `step` keys between two bounds. Of all
    bounds one in as many as there are arrays is used: so a chunk has at most twice `_CHUNK` keys.
    """
    step = max(_CHUNK // len(arrays), 1)
    bounds = union([array[step::step] for array in arrays])[:: len(arrays)]
    edges = [np.concatenate([[0], np.searchsorted(array, bounds), [len(array)]]) for array in arrays]
    for index in range(len(bounds) + 1):
        parts = [array[edge[index] : edge[index + 1]] for array, edge in zip(arrays, edges, strict=True)]
        yield union(parts)


class RecentIds:
    """The keys of one portion of a name space that are in no run yet."""

    def __init__(self) -> None:
        self.numbers: list[_Keys] = []
        self.hashes: list[_Keys] = []
        self.published: PublishTimes = None
        self.added_at = float("-inf")
        """When the last of them was added, by the monotonic clock."""

    def __len__(self) -> int:
        return sum(map(len, self.numbers)) + sum(map(len, self.hashes))

    def add(self, keys: IdKeys, published: PublishTimes) -> None:
        # Unsorted as they come, so a stable sort, as `union` does it, would be slower.
        _push(self.numbers, distinct(keys.ascending_numbers))
        _push(self.hashes, distinct(np.sort(keys.hashes)))
        self.published = wider(self.published, published)
        self.added_at = time.monotonic()

    def absorb(self, other: RecentIds) -> None:
        for array in other.numbers:
            _push(self.numbers, array)
        for array in other.hashes:
            _push(self.hashes, array)
        self.published = wider(self.published, other.published)
        self.added_at = max(self.added_at, other.added_at)

    def write(self, store: Store, name: str, space: str) -> RunEntry:
        return write_run(store, name, space, [union(self.numbers)], [union(self.hashes)], self.published)


class DedupIndex:
    """All ids admitted, by name space; they count for `horizon` seconds of publish time, for ever while it is None.

    Threads may use it together. A lock guards which arrays it has, and is never held while they are searched, written
    or merged: arrays do not change. What is being written as runs is handed over, and searched until the runs replace
    it.
    """

    def __init__(self, horizon: float | None = None) -> None:
        self.horizon = horizon
        self._lock = threading.RLock()
        self._runs: dict[str, list[IdRun]] = {}
        self._recent: dict[str, dict[int, RecentIds]] = {}
        self._handed_over: list[tuple[str, RecentIds]] = []

    def set_horizon(self, seconds: float) -> None:
        with self._lock:
            before, self.horizon, self._recent = self._recent, seconds, {}
            for space, portions in before.items():
                for recent in portions.values():
                    self._portion(space, recent.published).absorb(recent)

    def recent(self) -> list[tuple[str, RecentIds]]:
        """Return the ids that are in no run yet, by name space and portion."""
        with self._lock:
            portions = [(space, recent) for space, parts in self._recent.items() for recent in parts.values()]
            return [*self._handed_over, *((space, recent) for space, recent in portions if len(recent))]

    def hand_over(self) -> list[tuple[str, RecentIds]]:
        """Return the ids that are in no run yet, to be written: these do not change any more, and new ones come apart.

        What was handed over before, and was not taken, is among them.
        """
        with self._lock:
            self._handed_over, self._recent = self.recent(), {}
            return list(self._handed_over)

    def runs(self, space: str) -> list[IdRun]:
        with self._lock:
            return list(self._runs.get(space, ()))

    def duplicates(self, space: str, keys: IdKeys, published: PublishTimes) -> Mask:
        """Return which rows are duplicates: those whose id is in the index, and all but the first of the same id."""
        arrays = self._arrays(space, published)
        numbers = [guided for numbers, _ in arrays for guided in numbers]
        if not len(keys.hash_rows):
            return _repeated(keys.numbers, keys.ascending_numbers, numbers)
        hashes = [guided for _, hashes in arrays for guided in hashes]
        numbered = keys.numbered()
        duplicates = np.zeros(len(keys), np.bool_)
        duplicates[numbered] = _repeated(keys.numbers[numbered], keys.ascending_numbers, numbers)
        duplicates[keys.hash_rows] |= _repeated(keys.hashes, np.sort(keys.hashes), hashes)
        return duplicates

    def add(self, space: str, keys: IdKeys, published: PublishTimes) -> None:
        with self._lock:
            self._portion(space, published).add(keys, published)

    def absorb(self, other: DedupIndex) -> None:
        with self._lock:
            for space, recent in other.recent():
                self._portion(space, recent.published).absorb(recent)

    def take(self, runs: Iterable[IdRun]) -> None:
        """Replace what was handed over by the runs that now have it."""
        with self._lock:
            self._handed_over = []
            for run in runs:
                self._runs.setdefault(run.entry.space, []).append(run)

    def drop_recent(self, before: int, added_before: float) -> None:
        """Forget the portions in memory that were published and added before these times.

        `before` is in microseconds since 1970, `added_before` of the monotonic clock. What was handed over stays.
        """
        with self._lock:
            for portions in self._recent.values():
                for number, recent in list(portions.items()):
                    if _is_before(recent.published, before) and recent.added_at <= added_before:
                        del portions[number]

    def clear(self) -> None:
        with self._lock:
            self._runs.clear()
            self._recent.clear()
            self._handed_over = []

    def load(self, store: Store, entries: Iterable[RunEntry]) -> None:
        for entry in entries:
            run = IdRun.load(store, entry)
            with self._lock:
                self._runs.setdefault(entry.space, []).append(run)

    def swap(self, space: str, old: Iterable[str], new: IdRun | None) -> None:
        """Replace runs by the one they were merged into, or drop them (None)."""
        gone = set(old)
        with self._lock:
            others = [run for run in self._runs.get(space, []) if run.entry.name not in gone]
            self._runs[space] = others if new is None else [new, *others]

    def _portion(self, space: str, published: PublishTimes) -> RecentIds:
        length = (_SHORTEST_HORIZON if self.horizon is None else self.horizon) * _MICROSECONDS // PORTIONS
        number = -1 if published is None else int(published[1] // length)
        return self._recent.setdefault(space, {}).setdefault(number, RecentIds())

    def _arrays(self, space: str, published: PublishTimes) -> list[tuple[list[_Guided], list[_Guided]]]:
        """Return the sorted numbers and the sorted hashes in which to search for ids published in this range."""
        oldest = None
        if self.horizon is not None and published is not None:
            oldest = published[0] - int(self.horizon * _MICROSECONDS)
        with self._lock:
            recent = [portion for other, portion in self.recent() if other == space]
            arrays = [(list(portion.numbers), list(portion.hashes), portion.published) for portion in recent]
            runs = self.runs(space)
        searched = [
            (_guided(numbers), _guided(hashes)) for numbers, hashes, last in arrays if not _is_before(last, oldest)
        ]
        return searched + [
            ([(run.numbers, run.number_guide)], [(run.hashes, run.hash_guide)])
            for run in runs
            if not _is_before(run.entry.published, oldest)
        ]


def _guided(arrays: Iterable[_Keys]) -> list[_Guided]:
    return [(array, guide_of(array)) for array in arrays]


def _is_before(published: PublishTimes, time: int | None) -> bool:
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
    # A stable sort: of the rows with one key the first is not a duplicate.
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
