"""Writers of aggregates: they know which shard takes which row, and put again what a reshard has led elsewhere.

The service says where it has put a record. An aggregate in another shard than the one it was packed for counts only if
that shard takes all its rows; if not, readers of the format drop it, and its rows are packed and put again.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from connectors.core.errors import ServiceUnavailableError
from connectors.kinesis.client.shared import patiently
from connectors.kinesis.sink.aggregates import Packer, Packing
from connectors.kinesis.sink.requests import Answered, Attempts, Record, Requests, Sleep, put_in_order

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.shards import HashRange
    from connectors.kinesis.sink.requests import WriteSettings
    from connectors.kinesis.sink.rows import Rows

__all__ = ["AggregateWriter", "OrderedAggregateWriter"]

_LANES: Final = 10
"""Shards that are put to at a time with ``ordered``."""


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


class OrderedAggregateWriter:
    """Puts the aggregates of a shard one after the other, some shards at a time: rows of a key keep their order."""

    def __init__(self, client: KinesisClient, settings: WriteSettings, sleep: Sleep | None) -> None:
        self._client = client
        self._settings = settings
        self._failed = threading.Event()
        self._sleep = sleep or self._failed.wait
        self._packers: dict[str, Packer] = {}
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], str] = {}
        """The number of the last record that was packed for a shard, by stream and shard."""
        self._newest: dict[tuple[str, str], int] = {}
        """The newest number in a shard, by stream and shard."""

    def put(self, rows: Rows, limit: int) -> None:
        """Pack rows, and put what is full."""
        del limit
        packer = self._packers.get(rows.stream)
        if packer is None:
            ranges = _ranges(self._client, self._settings, rows.stream)
            packer = Packer(ranges, _aggregate_bytes(self._settings), keeps_single=True)
            self._packers[rows.stream] = packer
        self._send(rows.stream, packer, packer.add(rows.records))

    def finish(self) -> None:
        """Put the rest, and return when all rows are where readers take them."""
        for stream, packer in self._packers.items():
            while not packer.is_empty:
                self._send(stream, packer, packer.flush())

    def close(self) -> None:
        """Let nothing be put any more."""
        self._failed.set()

    def _send(self, stream: str, packer: Packer, packings: Iterable[Packing]) -> None:
        """Put aggregates, and again what a reshard leaves of them, until every row is where readers take it."""
        attempts = Attempts(self._settings.client, self._sleep)
        while lanes := _lanes(packings):
            with ThreadPoolExecutor(_LANES, thread_name_prefix="kinesis-put") as pool:
                ended = list(pool.map(self._run, [stream] * len(lanes), lanes))
            left = [(lane, shard) for lane, shard in ended if lane]
            if not left:
                return
            waiting = packer.reshard(_ranges(self._client, self._settings, stream))
            rows: list[Record] = []
            for (first, *unsent), shard in left:
                lost = unsent if packer.map.covers(shard, first.hash_keys) else (first, *unsent)
                rows += [row for packing in lost for row in packing.rows]
            if rows:
                progress = sum(map(len, lanes)) > sum(len(lane) for lane, _ in left)
                attempts.wait(_misplaced(stream), rows, progress=progress)
            packings = packer.add([*rows, *waiting])

    def _run(self, stream: str, lane: Sequence[Packing]) -> tuple[Sequence[Packing], str]:
        """Put a lane up to the first aggregate that another shard took; return the rest with it, and that shard."""
        for number, packing in enumerate(lane):
            if self._failed.is_set():
                break
            try:
                shard = self._put(stream, packing)
            except BaseException:
                self._failed.set()
                raise
            if packing.is_misplaced(shard):
                return lane[number:], shard
        return (), ""

    def _put(self, stream: str, packing: Packing) -> str:
        lane = stream, packing.shard or ""
        newest = self._newest.get(lane)
        before = self._last.get(lane, None if newest is None else str(newest))
        attempts = Attempts(self._settings.client, self._sleep)
        number, shard = put_in_order(self._client, stream, packing.rows, packing.record(), before, attempts)
        self._last[lane] = number
        with self._lock:
            self._newest[stream, shard] = max(int(number), self._newest.get((stream, shard), 0))
        return shard


def _lanes(packings: Iterable[Packing]) -> list[list[Packing]]:
    lanes: dict[str | None, list[Packing]] = defaultdict(list)
    for packing in packings:
        lanes[packing.shard].append(packing)
    return list(lanes.values())


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
