"""The writer of aggregates: it knows which shard takes which row, and puts again what a reshard has led elsewhere.

The service says where it has put a record. An aggregate in another shard than the one it was packed for counts only if
that shard takes all its rows; if not, readers of the format drop it, and its rows are packed and put again.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from connectors.core.errors import ServiceUnavailableError
from connectors.kinesis.client.shared import patiently
from connectors.kinesis.sink.aggregates import Packer, Packing
from connectors.kinesis.sink.requests import LANES, Answered, Attempts, Requests, Sleep, put_in_order

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.shards import HashRange
    from connectors.kinesis.sink.requests import Record, WriteSettings
    from connectors.kinesis.sink.rows import Rows

__all__ = ["AggregateWriter", "OrderedAggregateWriter"]


class AggregateWriter:
    """Puts aggregates by PutRecords; rows of one key may change places."""

    def __init__(self, client: KinesisClient, settings: WriteSettings, sleep: Sleep | None) -> None:
        self._client = client
        self._settings = settings
        self._requests = Requests(client, settings, sleep, lambda record: self._sent[id(record)].rows)
        self._packers: dict[str, Packer] = {}
        self._limits: dict[str, int] = {}
        self._sent: dict[int, Packing] = {}
        """By the identity of the record."""
        self._elsewhere: dict[str, list[tuple[Packing, str]]] = defaultdict(list)
        """By stream, with the shard that took it."""
        self._attempts: dict[str, Attempts] = {}

    def put(self, rows: Rows, limit: int) -> None:
        """Pack rows, and put what is full."""
        stream = rows.stream
        packer = self._packers.get(stream)
        if packer is None:
            ranges = _ranges(self._client, self._settings, stream)
            packer = self._packers[stream] = Packer(ranges, _aggregate_bytes(self._settings))
            self._limits[stream] = limit
        self._send(stream, packer.add(rows.records))
        self._repack()

    def finish(self) -> None:
        """Put the rest, and return when all rows are where readers take them."""
        while self._sent or not all(packer.is_empty for packer in self._packers.values()):
            for stream, packer in self._packers.items():
                self._send(stream, packer.flush())
            self._note(self._requests.flush())
            self._repack()

    def close(self) -> None:
        """Give up what is not put."""
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
                (self._sent.pop(id(record)), result.ShardId or "")
                for record, result in zip(answered.records, answered.results, strict=True)
            ]
            elsewhere = [(packing, shard) for packing, shard in placed if packing.is_misplaced(shard)]
            self._elsewhere[answered.stream] += elsewhere
            if len(elsewhere) < len(placed):
                self._attempts.pop(answered.stream, None)

    def _repack(self) -> None:
        """Put again what is in a shard that does not take all its rows."""
        while noted := [(stream, found) for stream, found in self._elsewhere.items() if found]:
            self._elsewhere.clear()
            for stream, elsewhere in noted:
                packer = self._packers[stream]
                waiting = packer.reshard(_ranges(self._client, self._settings, stream))
                lost = [packing for packing, shard in elsewhere if not packer.map.covers(shard, packing.hash_keys)]
                rows = [row for packing in lost for row in packing.rows]
                if rows:
                    attempts = self._attempts.setdefault(stream, self._requests.attempts())
                    attempts.wait(_misplaced(stream), rows)
                self._send(stream, packer.add([*rows, *waiting]))


class _Put(NamedTuple):
    """What a lane has put: ``left`` begins with what came to another shard than its own, ``shard``."""

    right: int
    left: Sequence[Packing] = ()
    shard: str = ""


class OrderedAggregateWriter:
    """Puts aggregates by PutRecord, those of a shard one after the other, so that rows of one key keep their order.

    The rows of a key have one shard. When a reshard leads one of its aggregates elsewhere, what comes after it in that
    shard is packed again with it, and nothing of it has been put before.
    """

    def __init__(self, client: KinesisClient, settings: WriteSettings, sleep: Sleep | None) -> None:
        self._client = client
        self._settings = settings
        self._failed = threading.Event()
        self._sleep = sleep or self._failed.wait
        self._packers: dict[str, Packer] = {}
        self._numbers: dict[tuple[str, str | None], str] = {}
        """The last sequence number of each shard of each stream."""
        self._misplaced: dict[str, Attempts] = {}
        """By stream, since an aggregate was in its shard."""

    def put(self, rows: Rows, limit: int) -> None:
        """Pack rows, and put what is full."""
        del limit
        packer = self._packers.get(rows.stream)
        if packer is None:
            ranges = _ranges(self._client, self._settings, rows.stream)
            packer = self._packers[rows.stream] = Packer(ranges, _aggregate_bytes(self._settings))
        self._send(rows.stream, packer, packer.add(rows.records))

    def finish(self) -> None:
        """Put the rest, and return when all rows are where readers take them."""
        for stream, packer in self._packers.items():
            while not packer.is_empty:
                self._send(stream, packer, packer.flush())

    def close(self) -> None:
        """Give up what is not put."""
        self._failed.set()

    def _send(self, stream: str, packer: Packer, packings: Iterable[Packing]) -> None:
        while True:
            lanes: dict[str | None, list[Packing]] = defaultdict(list)
            for packing in packings:
                lanes[packing.shard].append(packing)
            with ThreadPoolExecutor(LANES, thread_name_prefix="kinesis-put") as pool:
                done = list(pool.map(partial(self._put, stream), lanes.values()))
            if any(one.right for one in done):
                self._misplaced.pop(stream, None)
            if not any(one.left for one in done):
                return
            packings = packer.add(self._repacked(stream, packer, done))

    def _put(self, stream: str, lane: Sequence[Packing]) -> _Put:
        """Put aggregates of a shard until one comes to another shard."""
        for number, packing in enumerate(lane):
            if self._failed.is_set():
                break
            key = stream, packing.shard
            try:
                attempts = Attempts(self._settings.client, self._sleep)
                before = self._numbers.get(key)
                shard, put = put_in_order(self._client, stream, packing.record(), before, attempts, packing.rows)
            except BaseException:
                self._failed.set()
                raise
            self._numbers[key] = put
            if packing.is_misplaced(shard):
                return _Put(number, lane[number:], shard)
        return _Put(len(lane))

    def _repacked(self, stream: str, packer: Packer, done: Iterable[_Put]) -> list[Record]:
        """Return the rows to pack by new ranges: what is in a wrong shard, what comes after it, what is not full."""
        waiting = packer.reshard(_ranges(self._client, self._settings, stream))
        rows: list[Record] = []
        wrong: list[Record] = []
        for put in done:
            for packing in put.left[:1]:
                lost = [] if packer.map.covers(put.shard, packing.hash_keys) else packing.rows
                wrong += lost
                rows += lost
            rows += [row for packing in put.left[1:] for row in packing.rows]
        if wrong:
            attempts = self._misplaced.setdefault(stream, Attempts(self._settings.client, self._sleep))
            attempts.wait(_misplaced(stream), wrong)
        return [*rows, *waiting]


def _ranges(client: KinesisClient, settings: WriteSettings, stream: str) -> list[HashRange]:
    return patiently(lambda: client.hash_ranges(stream), settings.client)


def _aggregate_bytes(settings: WriteSettings) -> int:
    if settings.aggregate_bytes is None:
        raise ValueError("these settings ask for no aggregates")
    return settings.aggregate_bytes


def _misplaced(stream: str) -> ServiceUnavailableError:
    what = "Aggregates are in other shards than ListShards names for their hash keys"
    action = "Wait until the stream is not resharded any more, or leave aggregation out."
    return ServiceUnavailableError("KINESIS_AGGREGATE_MISPLACED", what, stream, action)
