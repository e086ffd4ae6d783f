"""Id runs: sorted, immutable files of the keys of admitted ids (rule R8).

A run is a sealed file (see `connectors.spool.segments.sealed_file`): sections ``numbers`` (little-endian uint64,
ascending over all of them), then sections ``hashes`` (16 bytes each, ascending), so that each part is one array in
mapped memory and a look-up is a binary search. A run costs 8 bytes a number and 16 bytes a hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from connectors.core.failpoints import failpoint
from connectors.spool.segments.id_keys import HASH_TYPE, Hashes, Numbers
from connectors.spool.segments.sealed_file import SealedKind, SealedReader, SealedWriter
from connectors.spool.segments.sorted_search import Guide, guide_of
from connectors.spool.store.base import Store

__all__ = ["RUN", "IdRun", "RunEntry", "distinct", "merge_runs", "run_name", "union", "write_run"]

RUN = SealedKind(
    b"SPOOLIDS",
    "A run of admitted ids",
    "SPOOL_ID_RUN",
    "without it copies of messages that were delivered already would come again",
    "Restore the file from a backup of the spool.",
)
_CHUNK = 1 << 20
_NUMBER_TYPE = np.dtype("<u8")
_Key = TypeVar("_Key", np.uint64, np.bytes_)


@dataclass(frozen=True, slots=True)
class RunEntry:
    """What the ledger holds of a run.

    Attributes:
        name: of the file, within ``ids/``.
        space: name space of the ids: index of the subscription, a dot, and its dedup epoch.
        numbers: how many numbers it holds.
        hashes: how many hashes it holds.
        published: lowest and highest publish time of its messages, microseconds; None if unknown.
        digest: the digest of the file.
    """

    name: str
    space: str
    numbers: int
    hashes: int
    published: tuple[int, int] | None
    digest: str

    @property
    def ids(self) -> int:
        """How many ids it holds."""
        return self.numbers + self.hashes

    @property
    def bytes(self) -> int:
        """How many bytes its ids take."""
        return self.numbers * _NUMBER_TYPE.itemsize + self.hashes * HASH_TYPE.itemsize

    def to_json(self) -> dict[str, Any]:
        """The entry as a JSON object."""
        return {
            "name": self.name,
            "space": self.space,
            "numbers": self.numbers,
            "hashes": self.hashes,
            "published": self.published,
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunEntry:
        """The entry that `to_json` wrote."""
        published = value["published"]
        return cls(
            value["name"],
            value["space"],
            value["numbers"],
            value["hashes"],
            None if published is None else (published[0], published[1]),
            value["digest"],
        )


@dataclass(frozen=True, slots=True)
class IdRun:
    """A run in mapped memory: two sorted arrays. `load` checks every byte of it once.

    Attributes:
        entry: what the ledger holds of it.
        numbers, hashes: its ids.
        number_guide, hash_guide: what finds them soon (see `connectors.spool.segments.sorted_search`), in memory.
    """

    entry: RunEntry
    numbers: Numbers
    hashes: Hashes
    number_guide: Guide
    hash_guide: Guide

    @classmethod
    def load(cls, store: Store, entry: RunEntry) -> IdRun:
        """Map a run and check it.

        Raises:
            SpoolDamagedError: it is missing or damaged, or not the one that the ledger names.
        """
        file = SealedReader(store, run_name(entry.name), RUN, entry.digest)
        file.verify()
        split = entry.numbers * _NUMBER_TYPE.itemsize
        numbers = np.frombuffer(file.data[:split], _NUMBER_TYPE)
        hashes = np.frombuffer(file.data[split : split + entry.hashes * HASH_TYPE.itemsize], HASH_TYPE)
        return cls(entry, numbers, hashes, guide_of(numbers), guide_of(hashes))


def run_name(name: str) -> str:
    """The name of a run in the store."""
    return f"ids/{name}"


def write_run(
    store: Store,
    name: str,
    space: str,
    numbers: Iterable[Numbers],
    hashes: Iterable[Hashes],
    published: tuple[int, int] | None,
) -> RunEntry:
    """Write a run from chunks that ascend, durably.

    Args:
        store: where to.
        name: within ``ids/``; never used before.
        space: name space of the ids.
        numbers: chunks of numbers, ascending over all of them, without repeats.
        hashes: chunks of hashes, likewise.
        published: lowest and highest publish time of the messages, microseconds.

    Raises:
        OSError: the disk refused; nothing was published.
        FileExistsError: the name was used before.
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


def merge_runs(store: Store, name: str, runs: Sequence[IdRun]) -> RunEntry:
    """Merge runs of one name space into a new one, with some tens of MB of memory whatever their size."""
    ranges = [run.entry.published for run in runs if run.entry.published is not None]
    published = (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None
    return write_run(
        store,
        name,
        runs[0].entry.space,
        _merged([run.numbers for run in runs]),
        _merged([run.hashes for run in runs]),
        published,
    )


def union(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The keys of some arrays, ascending, each once. Sorting finds sorted parts; `numpy.unique` would hash them all."""
    if not arrays:
        return np.empty(0, np.uint64)
    merged = np.concatenate(arrays)
    merged.sort(kind="stable")
    return distinct(merged)


def distinct(ascending: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sorted keys, each once."""
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
    """The union of sorted arrays, chunk by chunk, whatever the ranges of the arrays are.

    Every array gives each of its so many keys as a bound. Between two bounds an array has less than that many, and of
    all bounds one in as many as there are arrays is taken: so a chunk has at most twice `_CHUNK` keys.
    """
    step = max(_CHUNK // len(arrays), 1)
    bounds = union([array[step::step] for array in arrays])[:: len(arrays)]
    edges = [np.concatenate([[0], np.searchsorted(array, bounds), [len(array)]]) for array in arrays]
    for index in range(len(bounds) + 1):
        parts = [array[edge[index] : edge[index + 1]] for array, edge in zip(arrays, edges, strict=True)]
        yield union(parts)
