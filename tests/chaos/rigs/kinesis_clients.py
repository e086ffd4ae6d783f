"""Amazon's KPL, KCL and boto3 beside the ``kinesis`` format: the KPL is read by us, and what we write by the others."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from connectors.kinesis.datasource import KinesisDataSource
from connectors.testing.kinesis import KinesisServer
from tests.servers.certificates import make_certificates
from tests.support.clients import as_bytes, as_field, as_text, run_java_client
from tests.support.clients.outcome import out_of_order, outcome
from tests.support.kinesis_calls import KinesisCalls, kinesis_client
from tests.support.kinesis_rig import PATIENCE, KinesisRig

MODES: Final = ("batch", "polling", "efo")
_HASH_KEYS: Final = 1 << 128
_LARGE_ONE_IN: Final = 300
_SINK_COLUMNS: Final = {"partitionKey": StringType(), "data": BinaryType(), "explicitHashKey": StringType()}


@dataclass(frozen=True)
class Record:
    """A record as its producer knows it."""

    key: str
    hash_key: str | None
    data: bytes

    @classmethod
    def random(cls, choose: random.Random, number: int) -> Record:
        """Return one of the shapes that records have; its data begin with its number."""
        size = choose.choice((0, 0, 20, 300, 3000)) if choose.randrange(_LARGE_ONE_IN) else 700_000
        key = choose.choice((f"k{number % 17}", "schlüssel", "x" * 256, "\U0001f680"))
        hash_key = choose.choice((None, None, "0", str(_HASH_KEYS - 1), str(choose.randrange(_HASH_KEYS))))
        return cls(key, hash_key, b"%d " % number + choose.randbytes(size))


@contextmanager
def tls_server(folder: Path) -> Iterator[KinesisServer]:
    """Run our server with TLS, which the KPL needs."""
    with KinesisServer(certificates=make_certificates(folder / "certificates")) as server:
        server.set_takeover(0)
        yield server


def producer_is_read(folder: Path, mode: str, seed: int, count: int, *, aggregation: bool) -> dict[str, Any]:
    """Let the KPL write a stream, before and after a shard is split, and read it."""
    records = _records(seed, count)
    with tls_server(folder) as server:
        rig = KinesisRig(server, folder, shards=2)
        sent = _sent_rows(records, _produce(rig, server, records, aggregation=aggregation))
        puts = {each[:2] for each in sent}
        if aggregation:
            assert len(puts) < count // 2, "the KPL has aggregated little"
        rows = _read(rig, mode, count)
    found = [_frozen(row) for row in rows]
    return outcome(sent, found, _misplaced(rows), kinesis_records=len(puts))


def aggregates_are_read_alike(folder: Path, dynamo: str, seed: int, count: int) -> dict[str, Any]:
    """Let the KPL write a stream, and compare what we read with what the KCL reads: numbers, places, hash keys."""
    with tls_server(folder) as server:
        rig = KinesisRig(server, folder, shards=2)
        _produce(rig, server, _records(seed, count), aggregation=True)
        peer = _kcl(server.url, dynamo, rig.stream, count, "polling")
        rows = rig.read()
    sent = [
        (shard, int(number), as_text(key), None if hash_key == "-" else hash_key, as_bytes(data), int(place))
        for shard, number, place, key, hash_key, data in peer
    ]
    found = [(*_frozen(row), row["subSequenceNumber"]) for row in rows]
    puts = {row[:2] for row in sent}
    assert len(puts) < count // 2, "the KPL has aggregated little"
    return outcome(sent, found, out_of_order(sent, found, lambda row: row[0]), kinesis_records=len(puts))


def _records(seed: int, count: int) -> list[Record]:
    choose = random.Random(seed)
    return [Record.random(choose, number) for number in range(count)]


def _produce(
    rig: KinesisRig, server: KinesisServer, records: Sequence[Record], *, aggregation: bool
) -> list[list[str]]:
    """Let the KPL write records, the second half after a shard was split; the shard and number of each."""
    program = rig.folder / "kpl"
    program.mkdir()
    arguments = [server.tls_url.rpartition(":")[2], rig.stream, str(aggregation).lower(), str(program)]
    lines = [(as_field(each.key.encode()), each.hash_key or "-", as_field(each.data)) for each in records]
    middle = len(lines) // 2
    acknowledged = run_java_client("kinesis-producer", "KinesisProducerClient", arguments, lines[:middle])
    server.split(rig.stream, server.shards(rig.stream)[0])
    return acknowledged + run_java_client("kinesis-producer", "KinesisProducerClient", arguments, lines[middle:])


def _sent_rows(records: Sequence[Record], acknowledged: Sequence[Sequence[str]]) -> list[tuple[Any, ...]]:
    """Return the row that each record must become, without its place in an aggregate, which the KPL does not say.

    It sends a record that is alone as it is, and the service does not say the hash key of such a record.
    """
    by_put: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record, (shard, number) in zip(records, acknowledged, strict=True):
        by_put[shard, int(number)].append(record)
    return [
        (*put, each.key, each.hash_key if len(group) > 1 else None, each.data)
        for put, group in by_put.items()
        for each in group
    ]


def _misplaced(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Return the places of rows that do not follow on the row before them in their shard."""
    latest: dict[str, tuple[int, int]] = {}
    wrong = []
    for row in rows:
        shard, number, place = row["shardId"], int(row["sequenceNumber"]), row["subSequenceNumber"]
        before, before_place = latest.get(shard, (0, 0))
        if not (place == before_place + 1 if number == before else number > before and not place):
            wrong.append((shard, number, place))
        latest[shard] = (number, place)
    return wrong


def _frozen(row: dict[str, Any]) -> tuple[Any, ...]:
    columns = ("partitionKey", "explicitHashKey", "data")
    return (row["shardId"], int(row["sequenceNumber"]), *(row[column] for column in columns))


def _read(rig: KinesisRig, mode: str, count: int) -> list[dict[str, Any]]:
    """Return the rows of a batch read, or of a stream that polls or subscribes."""
    if mode == "batch":
        return rig.read()
    fan_out = {"consumerName": "peer", "spoolLocation": str(rig.folder / "spool")}
    options = {"consumerMode": mode, **(fan_out if mode == "efo" else {})}
    sink = rig.sink
    with rig.query(**options) as query:
        query.run_until(lambda _batches: sink.rows() >= count, 2 * PATIENCE)
        query.process_available(PATIENCE)
    return rig.rows()


def write(url: str, stream: str, records: Sequence[Record]) -> None:
    """Write records by our sink, in order."""
    schema = StructType([StructField(name, kind) for name, kind in _SINK_COLUMNS.items()])
    columns = [[each.key for each in records], [each.data for each in records], [each.hash_key for each in records]]
    arrays = [
        pa.array(column, pa.binary() if name == "data" else pa.string())
        for name, column in zip(_SINK_COLUMNS, columns, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(_SINK_COLUMNS))
    options = {
        "endpointUrl": url,
        "awsAccessKey": "AKIASINK",
        "awsSecretKey": "secret",
        "streamName": stream,
        "ordered": "true",
    }
    KinesisDataSource(options).batch_writer(schema).write(
        iter(batch.slice(start, 500) for start in range(0, len(batch), 500))
    )


Consumer = Callable[[KinesisCalls, str, int], list[tuple[str, bytes]]]
"""Reads a stream, given the URL of a DynamoDB and how many records there are: keys and data, shard by shard."""


def by_boto3(calls: KinesisCalls, _dynamo: str, _count: int) -> list[tuple[str, bytes]]:
    """Read by Amazon's client for Python, up to the present end of each shard."""
    records = [record for shard in calls.shards() for record in calls.read(shard["ShardId"])]
    return [(each["PartitionKey"], each["Data"]) for each in records]


def by_kcl(calls: KinesisCalls, dynamo: str, count: int, mode: str) -> list[tuple[str, bytes]]:
    """Read by the KCL, which polls or subscribes."""
    rows = _kcl(calls.client.meta.endpoint_url, dynamo, calls.stream, count, mode)
    return [(as_text(key), as_bytes(data) or b"") for _, _, _, key, _, data in rows]


def _kcl(url: str, dynamo: str, stream: str, count: int, mode: str) -> list[list[str]]:
    return run_java_client("kinesis-consumer", "KinesisConsumerClient", [url, dynamo, stream, str(count), mode], [])


CONSUMERS: Final[dict[str, Consumer]] = {
    "boto3": by_boto3,
    "kcl-polling": partial(by_kcl, mode="polling"),
    "kcl-efo": partial(by_kcl, mode="efo"),
}


def sink_is_consumed(url: str, dynamo: str, consumer: str, seed: int, count: int) -> dict[str, Any]:
    """Write rows by our sink, in order, and read them by a consumer of others."""
    records = _records(seed, count)
    calls = KinesisCalls(kinesis_client(url))
    calls.create(3)
    write(url, calls.stream, records)
    sent = [(each.key, each.data) for each in records]
    hashed = {(each.key, each.data) for each in records if each.hash_key is not None}
    # A hash key takes a record to another shard than its key, and order holds within a shard.
    found = CONSUMERS[consumer](calls, dynamo, count)
    return outcome(sent, found, out_of_order(sent, found, lambda pair: pair if pair in hashed else pair[0]))
