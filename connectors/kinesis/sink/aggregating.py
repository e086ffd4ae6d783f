"""The writer of aggregates: it knows which shard takes which row, and puts again what a reshard has led elsewhere.

The service says where it has put a record. An aggregate in another shard than the one it was packed for counts only if
that shard takes all its rows; if not, readers of the format drop it, and its rows are packed and put again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from connectors.core.errors import ServiceUnavailableError
from connectors.kinesis.client.shared import patiently
from connectors.kinesis.sink.aggregates import Packer, Packing
from connectors.kinesis.sink.requests import Answered, Attempts, Requests, Sleep

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.shards import HashRange
    from connectors.kinesis.sink.requests import WriteSettings
    from connectors.kinesis.sink.rows import Rows

__all__ = ["AggregateWriter"]


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
