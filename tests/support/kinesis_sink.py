"""Rows for the sink of the ``kinesis`` format, written by a task alone: no Spark."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from connectors.kinesis.datasource import KinesisBatchWriter, KinesisDataSource
from connectors.testing.kinesis import KinesisServer, StoredRecord

Row = tuple[str | None, bytes | None]
ROWS = StructType(
    [StructField("partitionKey", StringType()), StructField("data", BinaryType()), StructField("other", IntegerType())]
)


def options(server: KinesisServer, **more: object) -> dict[str, str]:
    given: dict[str, object] = {"endpointUrl": server.url, "awsAccessKey": "AKIASINK", "awsSecretKey": "not-shown"}
    given |= {"streamName": "orders", "maxRetryInterval": "100ms", **more}
    return {name: str(value) for name, value in given.items() if value is not None}


def batch(rows: Iterable[Row], **columns: list[Any]) -> pa.RecordBatch:
    keys, data = zip(*rows, strict=True)
    named = {"partitionKey": pa.array(keys, pa.string()), "data": pa.array(data, pa.binary())}
    return pa.RecordBatch.from_pydict(named | {name: pa.array(column) for name, column in columns.items()})


def schema(*names: str) -> StructType:
    return StructType([*ROWS.fields, *(StructField(name, StringType()) for name in names)])


def write(server: KinesisServer, *batches: pa.RecordBatch, columns: tuple[str, ...] = (), **more: object) -> int:
    """Write batches as one task does: with a writer that came there by pickle."""
    planned = KinesisDataSource(options(server, **more)).batch_writer(schema(*columns))
    writer: KinesisBatchWriter = pickle.loads(pickle.dumps(planned))
    message = writer.write(iter(batches))
    return message.rows


def numbered(count: int, keys: int = 7, size: int = 0) -> list[Row]:
    return [(f"key-{number % keys}", str(number).encode().rjust(size, b".")) for number in range(count)]


def stored(server: KinesisServer, stream: str = "orders") -> list[tuple[str, bytes]]:
    return [(record.partition_key, record.data) for record in server.records(stream)]


def by_key(records: Iterable[StoredRecord]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for record in sorted(records, key=lambda each: each.sequence_number):
        found[record.partition_key].append(int(record.data))
    return dict(found)
