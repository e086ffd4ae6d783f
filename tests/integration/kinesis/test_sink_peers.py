"""The sink of the ``kinesis`` format writes the same to our own server, to kinesis-local and to moto."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from connectors.core.errors import ConnectorError, SourceGoneError
from connectors.kinesis.datasource import KinesisDataSource
from tests.support.kinesis_calls import KinesisCalls, kinesis_client

SERVERS = ("embedded_kinesis", "kinesis_local", "moto_kinesis")
NAMES = ("partitionKey", "data", "explicitHashKey", "stream")
SCHEMA = StructType([StructField(name, BinaryType() if name == "data" else StringType()) for name in NAMES])
HASH_KEYS = 1 << 128


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def calls(url: str) -> KinesisCalls:
    return KinesisCalls(kinesis_client(url))


def write(url: str, rows: list[tuple[Any, ...]], **options: str) -> None:
    """Write rows of (stream, key, data[, hash key])."""
    named = {"endpointUrl": url, "awsAccessKey": "AKIASINK", "awsSecretKey": "secret"}
    columns = list(zip(*(row + (None,) * (4 - len(row)) for row in rows), strict=True))
    arrays = {"stream": columns[0], "partitionKey": columns[1], "data": columns[2], "explicitHashKey": columns[3]}
    types = {name: pa.binary() if name == "data" else pa.string() for name in arrays}
    batch = pa.RecordBatch.from_pydict({name: pa.array(arrays[name], types[name]) for name in arrays})
    KinesisDataSource({**named, **options}).batch_writer(SCHEMA).write(iter([batch]))


def stored(calls: KinesisCalls) -> list[dict[str, Any]]:
    """The records of all shards, shard by shard."""
    return [
        {**record, "shard": shard["ShardId"]}
        for shard in calls.shards()
        for record in next(calls.pages(calls.iterator(shard["ShardId"])))["Records"]
    ]


def test_more_rows_than_a_request_takes_all_arrive(url: str, calls: KinesisCalls) -> None:
    calls.create(2)
    rows = [(calls.stream, f"key-{number}", bytes([number % 256]) * (number % 50)) for number in range(1100)]
    write(url, rows)
    found = stored(calls)
    assert sorted((each["PartitionKey"], each["Data"]) for each in found) == sorted(row[1:] for row in rows)
    assert {each["shard"] for each in found} == {each["ShardId"] for each in calls.shards()}


def test_explicit_hash_key_decides_the_shard(url: str, calls: KinesisCalls) -> None:
    calls.create(2)
    low, high = (each["ShardId"] for each in calls.shards())
    write(url, [(calls.stream, "same", b"low", "0"), (calls.stream, "same", b"high", str(HASH_KEYS * 3 // 4))])
    assert {each["Data"]: each["shard"] for each in stored(calls)} == {b"low": low, b"high": high}


def test_ordered_rows_of_a_key_keep_their_order(url: str, calls: KinesisCalls) -> None:
    calls.create(2)
    write(url, [(calls.stream, f"key-{number % 3}", b"%d" % number) for number in range(60)], ordered="true")
    by_key = defaultdict(list)
    for record in stored(calls):
        by_key[record["PartitionKey"]].append(int(record["Data"]))
    assert by_key == {f"key-{key}": list(range(key, 60, 3)) for key in range(3)}


def test_rows_go_to_the_stream_that_they_name(url: str, calls: KinesisCalls) -> None:
    other = KinesisCalls(calls.client)
    for each in (calls, other):
        each.create()
    write(url, [(calls.stream, "a", b"1"), (other.stream, "b", b"2"), (calls.stream, "c", b"3")])
    assert [record["Data"] for record in stored(calls)] == [b"1", b"3"]
    assert [record["Data"] for record in stored(other)] == [b"2"]


def test_what_cannot_be_written_fails_by_name(url: str, calls: KinesisCalls) -> None:
    with pytest.raises(SourceGoneError, match="absent"):
        write(url, [("absent", "a", b"1")])
    calls.create()
    with pytest.raises(ConnectorError, match="'culprit'"):
        write(url, [(calls.stream, "culprit", b"x" * (1 << 20))])
