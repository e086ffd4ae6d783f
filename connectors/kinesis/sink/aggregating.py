"""The sink of aggregates of the Kinesis Producer Library (KPL): packs rows by shard, and repairs what a reshard moved.

Readers of the format drop an aggregate if any row has a hash key outside its shard's range. The service says which
shard took a record; if that shard doesn't take all its rows, they are packed and put again.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from connectors.core.errors import ServiceUnavailableError
from connectors.core.retry import wait_out
from connectors.kinesis.aggregates import AggregateBuilder
from connectors.kinesis.shards import HashRange
from connectors.kinesis.sink.requests import LANES, Answered, Attempts, RequestEntry, Requests, Sleep, put_in_order

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.shards import HashRange
    from connectors.kinesis.sink.requests import WriteSettings
    from connectors.kinesis.sink.rows import Rows

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
    """The rows of a shard that become one record of at most ``limit`` bytes of data and key.

    ``shard`` is None where no listed shard takes its row. A row that is ``alone`` is put as it is, and right in any
    shard.
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


class _Elsewhere(NamedTuple):
    """An aggregate with the shard that took it, and what waits for it."""

    packing: Packing
    shard: str
    behind: Sequence[Packing] = ()


class _Packers:
    """The packers of a task by stream, and what becomes of aggregates that a reshard has led elsewhere."""

    def __init__(self, client: KinesisClient, settings: WriteSettings, attempts: Callable[[], Attempts]) -> None:
        self._client = client
        self._settings = settings
        self._new_attempts = attempts
        self._packers: dict[str, Packer] = {}
        self._attempts: dict[str, Attempts] = {}
        """By stream, since an aggregate was where it belongs."""

    @property
    def are_empty(self) -> bool:
        return all(packer.is_empty for packer in self._packers.values())

    def of(self, stream: str) -> Packer:
        packer = self._packers.get(stream)
        if packer is None:
            packer = self._packers[stream] = Packer(self._ranges(stream), _aggregate_bytes(self._settings))
        return packer

    def flush(self) -> Iterator[tuple[str, Iterator[Packing]]]:
        for stream, packer in self._packers.items():
            yield stream, packer.flush()

    def note_progress(self, stream: str) -> None:
        self._attempts.pop(stream, None)

    def repack(self, stream: str, elsewhere: Iterable[_Elsewhere]) -> Iterator[Packing]:
        """Pack by new ranges what no reader takes, what waits behind it, and what is not full."""
        packer = self.of(stream)
        waiting = packer.reshard(self._ranges(stream))
        rows: list[RequestEntry] = []
        lost: list[RequestEntry] = []
        for packing, shard, behind in elsewhere:
            wrong = [] if packer.map.covers(shard, packing.hash_keys) else packing.rows
            lost += wrong
            rows += wrong
            rows += [row for later in behind for row in later.rows]
        if lost:
            self._attempts.setdefault(stream, self._new_attempts()).wait(_misplaced(stream), lost)
        return packer.add([*rows, *waiting])

    def _ranges(self, stream: str) -> list[HashRange]:
        return wait_out(lambda: self._client.hash_ranges(stream), self._settings.client.outage_rule)


class AggregateWriter:
    """Puts aggregates by PutRecords; rows of one key may change places."""

    def __init__(self, client: KinesisClient, settings: WriteSettings, sleep: Sleep | None) -> None:
        self._requests = Requests(client, settings, sleep, lambda record: self._sent[id(record)].rows)
        self._packers = _Packers(client, settings, self._requests.attempts)
        self._limits: dict[str, int] = {}
        self._sent: dict[int, Packing] = {}
        """By the identity of the record."""
        self._elsewhere: dict[str, list[_Elsewhere]] = defaultdict(list)
        """By stream."""

    def put(self, rows: Rows, limit: int) -> None:
        self._limits.setdefault(rows.stream, limit)
        self._send(rows.stream, self._packers.of(rows.stream).add(rows.records))
        self._repack()

    def finish(self) -> None:
        while self._sent or not self._packers.are_empty:
            for stream, packings in self._packers.flush():
                self._send(stream, packings)
            self._note(self._requests.flush())
            self._repack()

    def close(self) -> None:
        self._requests.close()

    def _send(self, stream: str, packings: Iterable[Packing]) -> None:
        for packing in packings:
            record = packing.record()
            self._sent[id(record)] = packing
            size = len(record.Data) + len(record.PartitionKey.encode())
            self._note(self._requests.add(stream, [record], [size], self._limits[stream]))

    def _note(self, answers: Iterable[Answered]) -> None:
        for answered in answers:
            placed = [
                _Elsewhere(self._sent.pop(id(record)), result.ShardId or "")
                for record, result in zip(answered.records, answered.results, strict=True)
            ]
            elsewhere = [one for one in placed if one.packing.is_misplaced(one.shard)]
            self._elsewhere[answered.stream] += elsewhere
            if len(elsewhere) < len(placed):
                self._packers.note_progress(answered.stream)

    def _repack(self) -> None:
        """Put again what is in a shard that does not take all its rows."""
        while noted := [item for item in self._elsewhere.items() if item[1]]:
            self._elsewhere.clear()
            for stream, elsewhere in noted:
                self._send(stream, self._packers.repack(stream, elsewhere))


class OrderedAggregateWriter:
    """Puts aggregates by PutRecord, one after the other per shard, so that the rows of a key keep their order.

    When a reshard moves an aggregate, it is packed again with what follows it in its shard: none of that was put
    before.
    """

    def __init__(self, client: KinesisClient, settings: WriteSettings, sleep: Sleep | None) -> None:
        self._client = client
        self._failed = threading.Event()
        self._attempts = partial(Attempts, settings.client, sleep or self._failed.wait)
        self._packers = _Packers(client, settings, self._attempts)
        self._numbers: dict[tuple[str, str | None], str] = {}
        """The last sequence number of each shard of each stream."""

    def put(self, rows: Rows, limit: int) -> None:
        del limit
        self._send(rows.stream, self._packers.of(rows.stream).add(rows.records))

    def finish(self) -> None:
        while not self._packers.are_empty:
            for stream, packings in self._packers.flush():
                self._send(stream, packings)

    def close(self) -> None:
        self._failed.set()

    def _send(self, stream: str, packings: Iterable[Packing]) -> None:
        while True:
            lanes: dict[str | None, list[Packing]] = defaultdict(list)
            for packing in packings:
                lanes[packing.shard].append(packing)
            with ThreadPoolExecutor(LANES, thread_name_prefix="kinesis-put") as pool:
                done = [*zip(lanes.values(), pool.map(partial(self._put, stream), lanes.values()), strict=True)]
            elsewhere = [one for _, one in done if one is not None]
            if any(one is None or one.packing is not lane[0] for lane, one in done):
                self._packers.note_progress(stream)
            if not elsewhere:
                return
            packings = self._packers.repack(stream, elsewhere)

    def _put(self, stream: str, lane: Sequence[Packing]) -> _Elsewhere | None:
        """Put aggregates of a shard until one comes to another shard; return that one."""
        for number, packing in enumerate(lane, 1):
            if self._failed.is_set():
                break
            key = stream, packing.shard
            try:
                before = self._numbers.get(key)
                record = packing.record()
                shard, put = put_in_order(self._client, stream, record, before, self._attempts(), packing.rows)
            except BaseException:
                self._failed.set()
                raise
            self._numbers[key] = put
            if packing.is_misplaced(shard):
                return _Elsewhere(packing, shard, lane[number:])
        return None


def _aggregate_bytes(settings: WriteSettings) -> int:
    if settings.aggregate_bytes is None:
        raise ValueError("these settings ask for no aggregates")
    return settings.aggregate_bytes


def _misplaced(stream: str) -> ServiceUnavailableError:
    what = "Kinesis stored aggregates in other shards than ListShards names for their hash keys"
    return ServiceUnavailableError("KINESIS_AGGREGATE_MISPLACED", what, stream)
