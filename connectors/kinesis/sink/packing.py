"""Packing rows into aggregates of the Kinesis Producer Library (KPL), each for one shard.

A reader that keeps to that format drops an aggregate when any row in it has a hash key outside of its shard's range, so
rows are packed by shard, and an aggregate that a reshard has put elsewhere is packed again.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from connectors.kinesis.aggregates import AggregateBuilder
from connectors.kinesis.shards import HashRange
from connectors.kinesis.sink.requests import RequestEntry

_MOST_OPEN_BYTES: Final = 64 << 20
"""Of rows that wait in aggregates for others of their shards; it matters for a stream of hundreds of shards."""
_MOST_KEYS: Final = 100_000
"""Keys whose hash is remembered."""


class ShardMap:
    """The shards of a stream by the hash keys that they take."""

    def __init__(self, ranges: Iterable[HashRange]) -> None:
        self._ranges = {one.shard: one for one in ranges}
        self._open = sorted((one for one in self._ranges.values() if not one.closed), key=lambda one: one.last)
        self._ends = [one.last for one in self._open]

    def shard_of(self, hash_key: int) -> str | None:
        """Return the open shard that takes a hash key; None if none is listed, as it may be during a reshard."""
        index = bisect_left(self._ends, hash_key)
        if index == len(self._open) or self._open[index].first > hash_key:
            return None
        return self._open[index].shard

    def covers(self, shard: str | None, hash_keys: Iterable[int]) -> bool:
        """Return whether a shard, open or closed, is listed and takes all these hash keys."""
        one = self._ranges.get(shard or "")
        return one is not None and all(one.first <= hash_key <= one.last for hash_key in hash_keys)


class Packing:
    """The rows of a shard that become one record; ``limit`` is the most bytes of its data and partition key.

    ``shard`` is where it belongs; None where no listed shard takes its row. A row that is ``alone`` is put as it is,
    and right in any shard.
    """

    def __init__(self, shard: str | None, limit: int, *, alone: bool = False) -> None:
        self.shard = shard
        self.alone = alone
        self.rows: list[RequestEntry] = []
        self.hash_keys: list[int] = []
        self._aggregate = AggregateBuilder(limit - len(shard or ""))
        self.size = 0
        """The bytes of data and partition key; 0 without rows."""

    def add(self, row: RequestEntry, hash_key: int) -> bool:
        """Add a row, unless it does not fit."""
        explicit = row.ExplicitHashKey
        if not self._aggregate.add(row.Data, row.PartitionKey, explicit if isinstance(explicit, str) else None):
            return False
        self.size = self._aggregate.size + len(self.shard or "")
        self.rows.append(row)
        self.hash_keys.append(hash_key)
        return True

    def is_misplaced(self, shard: str) -> bool:
        """Return whether it is not in the shard that it was packed for, and its rows may not be that one's."""
        return not self.alone and shard != self.shard

    def record(self) -> RequestEntry:
        """Return the record to put; its explicit hash key is that of the first row."""
        if self.alone or self.shard is None:
            return self.rows[0]
        return RequestEntry(self._aggregate.data(), self.shard, str(self.hash_keys[0]))


class Packer:
    """Packs the rows of one stream; ``limit`` is that of `Packing`."""

    def __init__(self, ranges: Iterable[HashRange], limit: int) -> None:
        self.map = ShardMap(ranges)
        self._limit = limit
        self._open: dict[str, Packing] = {}
        self._open_bytes = 0
        self._hash_keys: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether every row that was added has been yielded."""
        return not self._open

    def add(self, rows: Iterable[RequestEntry]) -> Iterator[Packing]:
        """Add rows, and yield what is full."""
        for row in rows:
            hash_key = self._hash_key(row)
            shard = self.map.shard_of(hash_key)
            if shard is None:
                yield _alone(row, hash_key, shard)
                continue
            if self._added(shard, row, hash_key):
                if self._open_bytes > _MOST_OPEN_BYTES:
                    yield from self.flush()
                continue
            if self._open[shard].rows:
                yield self._close(shard)
                if self._added(shard, row, hash_key):
                    continue
            self._open.pop(shard)
            yield _alone(row, hash_key, shard)

    def flush(self) -> Iterator[Packing]:
        """Yield what is not full yet."""
        for shard in list(self._open):
            yield self._close(shard)

    def reshard(self, ranges: Iterable[HashRange]) -> list[RequestEntry]:
        """Take new ranges; return the rows of what is not full yet, which has to be added again."""
        waiting = [row for packing in self._open.values() for row in packing.rows]
        self._open, self._open_bytes = {}, 0
        self.map = ShardMap(ranges)
        return waiting

    def _added(self, shard: str, row: RequestEntry, hash_key: int) -> bool:
        packing = self._open.get(shard)
        if packing is None:
            packing = self._open[shard] = Packing(shard, self._limit)
        before = packing.size
        added = packing.add(row, hash_key)
        if added:
            self._open_bytes += packing.size - before
        return added

    def _close(self, shard: str) -> Packing:
        packing = self._open.pop(shard)
        self._open_bytes -= packing.size
        packing.alone = len(packing.rows) == 1
        return packing

    def _hash_key(self, row: RequestEntry) -> int:
        if isinstance(row.ExplicitHashKey, str):
            return int(row.ExplicitHashKey)
        hash_key = self._hash_keys.get(row.PartitionKey)
        if hash_key is None:
            if len(self._hash_keys) >= _MOST_KEYS:
                self._hash_keys.clear()
            digest = hashlib.md5(row.PartitionKey.encode(), usedforsecurity=False).digest()
            hash_key = self._hash_keys[row.PartitionKey] = int.from_bytes(digest, "big")
        return hash_key


def _alone(row: RequestEntry, hash_key: int, shard: str | None) -> Packing:
    packing = Packing(shard, 0, alone=True)
    packing.rows, packing.hash_keys = [row], [hash_key]
    return packing
