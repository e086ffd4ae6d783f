"""A Kinesis server of our own for the tests of one process, and short words for what they do with it."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from connectors.kinesis.datasource import KinesisDataSource, KinesisStreamReader, open_stream
from connectors.kinesis.source.micro_batch import KinesisStream
from connectors.testing.kinesis import KinesisControl
from tests.support.spark_protocol.driver import BatchRead, FolderSink, InProcessWorkers, StreamingQuery
from tests.support.waiting import POLL_SECONDS, wait_for

SOURCE = "connectors.kinesis.datasource:KinesisDataSource"
HASTY_SOURCE = "tests.support.kinesis_rig:HastySource"
"""The same, which waits a second for a consumer, and reopens a subscription after 3 s of silence."""
PATIENCE = 60.0
FAST = {
    "awsAccessKey": "AKIATEST",
    "awsSecretKey": "test-secret",
    "minFetchPeriod": "2ms",
    "idleFetchPeriod": "20ms",
    "shardFetchInterval": "100ms",
    "maxFetchRate": "1000",
    "maxRetryInterval": "200ms",
}
"""Options under which nothing waits for a service that counts calls."""

_numbers = itertools.count()


def kpl_aggregate(records: Sequence[bytes], key: str = "a") -> bytes:
    """Make a KPL aggregate of records with one key, as ``proto/kpl/messages.proto`` has it."""
    body = b"\x0a" + _length(key.encode())
    body += b"".join(b"\x1a" + _length(b"\x08\x00\x1a" + _length(each)) for each in records)
    return b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body).digest()


def _length(data: bytes) -> bytes:
    """Some bytes after their length, as protobuf writes it."""
    length, found = len(data), b""
    while length > 0x7F:
        found, length = found + bytes([length & 0x7F | 0x80]), length >> 7
    return found + bytes([length]) + data


class _HastyReader(KinesisStreamReader):
    def open_stream(self) -> KinesisStream:
        return open_stream(replace(self.options, register_seconds=1.0, stall_seconds=3.0))


class HastySource(KinesisDataSource):
    stream_reader = _HastyReader


class KinesisRig:
    """A server, seen from a test: a stream of its own, records, queries.

    Args:
        server: in a process of its own; shared with other tests, unless a test changes its clock.
        folder: for checkpoint and sink.
        shards: of the stream.
    """

    def __init__(self, server: KinesisControl, folder: Path, shards: int = 1) -> None:
        self.server = server
        self.folder = folder
        self.workers = InProcessWorkers()
        self.stream = f"orders-{next(_numbers)}"
        server.create_stream(self.stream, shards)
        self._put = itertools.count()

    # Records

    def put(self, count: int = 1, *, size: int = 0, key: str | None = None) -> list[bytes]:
        """Put so many records, of keys spread over the shards, and return their data; all differ."""
        numbers = list(itertools.islice(self._put, count))
        made = [(key or f"key-{number % 97}", b"value %d" % number + b"." * size) for number in numbers]
        self.server.put(self.stream, made)
        return [data for _, data in made]

    def put_to(self, shard: str, count: int = 1) -> list[bytes]:
        """Put so many records of one key into a shard of a stream that was never split."""
        shards = self.server.shards(self.stream)
        hash_key = (2 * shards.index(shard) + 1) * 2**127 // len(shards)
        made = [b"value %d" % number for number in itertools.islice(self._put, count)]
        self.server.put(self.stream, [(shard, data) for data in made], explicit_hash_key=hash_key)
        return made

    # Queries

    def options(self, **options: str) -> dict[str, str]:
        """Options of a query that reads all there is, and does not wait; without keys beside a provider of them."""
        provided = "credentialProvider" in options
        return (
            {name: value for name, value in FAST.items() if not (provided and name.startswith("aws"))}
            | {
                "streamName": self.stream,
                "endpointUrl": self.server.url,
                "initialPosition": "trim_horizon",
            }
            | options
        )

    def query(
        self, trigger: Any = "default", sink: Any = None, attempts: int = 1, source: str = SOURCE, **options: str
    ) -> StreamingQuery:
        """A query on the checkpoint and the sink of this test."""
        return StreamingQuery(
            source,
            self.options(**options),
            checkpoint=self.folder / "checkpoint",
            sink=sink or self.sink,
            trigger=trigger,
            poll_interval=POLL_SECONDS,
            workers=self.workers,
            task_attempts=attempts,
        )

    @property
    def sink(self) -> FolderSink:
        """The sink of this test's queries."""
        return FolderSink(self.folder / "sink")

    def read(self, **options: str) -> list[dict[str, Any]]:
        """The rows of a batch read, partition by partition."""
        with BatchRead(SOURCE, self.options(**options), workers=self.workers) as read:
            return [row for table in read.collect() for row in table.to_pylist()]

    def rows(self) -> list[dict[str, Any]]:
        """The rows in the sink, batch by batch, with the number of their batch."""
        return [
            row | {"batch": batch}
            for batch in self.sink.batch_ids()
            for table in self.sink.partitions(batch)
            for row in table.to_pylist()
        ]

    def drain(self, query: StreamingQuery, values: Sequence[bytes]) -> None:
        """Run batches until the sink holds as many rows as these, and nothing more comes; then compare."""
        sink = self.sink  # one that has counted does not read each batch again
        query.run_until(lambda _batches: sink.rows() >= len(values), PATIENCE)
        self.all_once(values)

    def all_once(self, values: Sequence[bytes]) -> None:
        """Whether the sink has each of these once, and each key's in the order in which they were put."""
        rows = self.rows()
        got = [row["data"] for row in rows]
        assert sorted(got) == sorted(values)
        by_key: Mapping[str, list[bytes]] = defaultdict(list)
        for row in rows:
            by_key[row["partitionKey"]].append(row["data"])
        place = {value: number for number, value in enumerate(values)}
        for key, data in by_key.items():
            assert [place[each] for each in data] == sorted(place[each] for each in data), key

    def calls(self, operation: str, work: Callable[[], object]) -> int:
        """How many calls of an operation there are to this stream while something is done."""
        before = self.server.call_counts(self.stream).get(operation, 0)
        work()
        return self.server.call_counts(self.stream).get(operation, 0) - before


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    wait_for(condition, PATIENCE)
