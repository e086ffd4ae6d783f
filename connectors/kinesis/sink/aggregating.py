"""The writer of aggregates: it knows which shard takes which row, and puts again what a reshard has led elsewhere.

The service says where it has put a record. An aggregate in another shard than the one it was packed for counts only if
that shard takes all its rows; if not, readers of the format drop it, and its rows are packed and put again.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from connectors.core.errors import ServiceUnavailableError
from connectors.core.retry import wait_out
from connectors.kinesis.sink.packing import Packer, Packing
from connectors.kinesis.sink.requests import LANES, Answered, Attempts, Requests, Sleep, put_in_order

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.shards import HashRange
    from connectors.kinesis.sink.requests import RequestEntry, WriteSettings
    from connectors.kinesis.sink.rows import Rows


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
        """Whether every row that was added has been yielded."""
        return all(packer.is_empty for packer in self._packers.values())

    def of(self, stream: str) -> Packer:
        """Return the packer of a stream; the first time its shards are listed."""
        packer = self._packers.get(stream)
        if packer is None:
            packer = self._packers[stream] = Packer(self._ranges(stream), _aggregate_bytes(self._settings))
        return packer

    def flush(self) -> Iterator[tuple[str, Iterator[Packing]]]:
        """Yield what is not full yet, by stream."""
        for stream, packer in self._packers.items():
            yield stream, packer.flush()

    def note_progress(self, stream: str) -> None:
        """Note that an aggregate is in the shard that it was packed for."""
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
        """Pack rows, and put what is full."""
        self._limits.setdefault(rows.stream, limit)
        self._send(rows.stream, self._packers.of(rows.stream).add(rows.records))
        self._repack()

    def finish(self) -> None:
        """Put the rest, and return when all rows are where readers take them."""
        while self._sent or not self._packers.are_empty:
            for stream, packings in self._packers.flush():
                self._send(stream, packings)
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
    """Puts aggregates by PutRecord, those of a shard one after the other, so that rows of one key keep their order.

    The rows of a key have one shard. When a reshard leads one of its aggregates elsewhere, what comes after it in that
    shard is packed again with it, and nothing of it has been put before.
    """

    def __init__(self, client: KinesisClient, settings: WriteSettings, sleep: Sleep | None) -> None:
        self._client = client
        self._failed = threading.Event()
        self._attempts = partial(Attempts, settings.client, sleep or self._failed.wait)
        self._packers = _Packers(client, settings, self._attempts)
        self._numbers: dict[tuple[str, str | None], str] = {}
        """The last sequence number of each shard of each stream."""

    def put(self, rows: Rows, limit: int) -> None:
        """Pack rows, and put what is full."""
        del limit
        self._send(rows.stream, self._packers.of(rows.stream).add(rows.records))

    def finish(self) -> None:
        """Put the rest, and return when all rows are where readers take them."""
        while not self._packers.are_empty:
            for stream, packings in self._packers.flush():
                self._send(stream, packings)

    def close(self) -> None:
        """Give up what is not put."""
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
    what = "Aggregates are in other shards than ListShards names for their hash keys"
    action = "Wait until the stream is not resharded any more, or leave aggregation out."
    return ServiceUnavailableError("KINESIS_AGGREGATE_MISPLACED", what, stream, action)
