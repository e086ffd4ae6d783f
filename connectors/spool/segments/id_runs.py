"""Id runs: sorted, immutable files of the keys of admitted ids (rule R8).

A run is a sealed file (see `connectors.spool.segments.sealed_file`): sections ``numbers`` (little-endian uint64,
ascending over all of them), then sections ``hashes`` (16 bytes each, ascending), so that each part is one array in
mapped memory, searched in halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from connectors.core.failpoints import failpoint
from connectors.spool.segments.id_keys import HASH_TYPE, Hashes, Numbers
from connectors.spool.segments.sealed_file import (
    Published,
    SealedKind,
    SealedReader,
    SealedWriter,
    published_of,
    wider,
)
from connectors.spool.segments.sorted_search import Guide, guide_of
from connectors.spool.store.base import Blobs

__all__ = ["IdRun", "RunEntry", "distinct", "merge_runs", "run_name", "union", "write_run"]

RUN = SealedKind(
    b"SPOOLIDS",
    "A run of admitted ids",
    "SPOOL_ID_RUN",
    "without it messages that were delivered already would be delivered again",
    "Restore the file from a backup of the spool.",
)
_CHUNK = 1 << 20
_NUMBER_TYPE = np.dtype("<u8")
_Key = TypeVar("_Key", np.uint64, np.bytes_)


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run, as the ledger records it.

    `name` is within ``ids/``, `space` the name space of the ids (index of the subscription, a dot, its dedup epoch),
    `numbers` and `hashes` are counts.
    """

    name: str
    space: str
    numbers: int
    hashes: int
    published: Published
    digest: str

    @property
    def ids(self) -> int:
        """The number of its ids."""
        return self.numbers + self.hashes

    @property
    def bytes(self) -> int:
        """The bytes that its ids take."""
        return self.numbers * _NUMBER_TYPE.itemsize + self.hashes * HASH_TYPE.itemsize

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunEntry:
        """Return the entry that `to_json` wrote."""
        return cls(**{**value, "published": published_of(value["published"])})


@dataclass(frozen=True, slots=True)
class IdRun:
    """A run in mapped memory: two sorted arrays, and their guides (see `connectors.spool.segments.sorted_search`)."""

    entry: RunEntry
    numbers: Numbers
    hashes: Hashes
    number_guide: Guide
    hash_guide: Guide

    @classmethod
    def load(cls, store: Blobs, entry: RunEntry) -> IdRun:
        """Map a run and check every byte; raises `SpoolDamagedError` if it is missing, damaged or another one."""
        file = SealedReader(store, run_name(entry.name), RUN, entry.digest)
        file.verify()
        split = entry.numbers * _NUMBER_TYPE.itemsize
        numbers = np.frombuffer(file.data[:split], _NUMBER_TYPE)
        hashes = np.frombuffer(file.data[split : split + entry.hashes * HASH_TYPE.itemsize], HASH_TYPE)
        return cls(entry, numbers, hashes, guide_of(numbers), guide_of(hashes))


def run_name(name: str) -> str:
    """Return the name of a run in the store."""
    return f"ids/{name}"


def write_run(
    store: Blobs,
    name: str,
    space: str,
    numbers: Iterable[Numbers],
    hashes: Iterable[Hashes],
    published: Published,
) -> RunEntry:
    """Write a run durably; `name` is one within ``ids/`` that was never used.

    Numbers and hashes come in chunks, ascending over all of them, without repeats. Raises `OSError` if the disk
    refuses; then nothing was published.
    """
    failpoint("ids.before_write")
    file = SealedWriter(store, run_name(name), RUN)
    try:
        counts = [_write_chunks(file, "numbers", numbers), _write_chunks(file, "hashes", hashes)]
        digest = file.publish({"space": space, "numbers": counts[0], "hashes": counts[1], "published": published})
    finally:
        file.discard()
    if digest is None:
        raise FileExistsError(run_name(name))
    failpoint("ids.after_write")
    return RunEntry(name, space, counts[0], counts[1], published, digest)


def merge_runs(store: Blobs, name: str, runs: Sequence[IdRun]) -> RunEntry:
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
    """Return sorted keys without repeats."""
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
