"""Records as Arrow columns, in the order and types of `connectors.kinesis.schema.SOURCE_SCHEMA`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from connectors.kinesis.aggregation import MAGIC, user_records

if TYPE_CHECKING:
    from connectors.kinesis.records import Record

__all__ = ["ARROW_SCHEMA", "columns"]

ARROW_SCHEMA: Final = pa.schema(
    [
        ("partitionKey", pa.string()),
        ("data", pa.binary()),
        ("stream", pa.string()),
        ("shardId", pa.string()),
        ("sequenceNumber", pa.string()),
        ("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC")),
        ("subSequenceNumber", pa.int64()),
        ("explicitHashKey", pa.string()),
    ]
)
"""A test holds it to the declared schema; that is PySpark's, which tasks need not import."""


def columns(records: Sequence[Record], stream: str, shard: str, *, deaggregate: bool) -> pa.RecordBatch:
    """The rows of some records.

    Args:
        records: of one shard, in their order.
        stream: the name of the stream.
        shard: the id of the shard.
        deaggregate: take aggregates of the KPL apart.
    """
    if deaggregate and any(each.Data.startswith(MAGIC) for each in records):
        return _taken_apart(records, stream, shard)
    count = len(records)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([each.PartitionKey for each in records], pa.string()),
            pa.array([each.Data for each in records], pa.binary()),
            _same(stream, count),
            _same(shard, count),
            pa.array([each.SequenceNumber for each in records], pa.string()),
            _times(records),
            pa.array([0] * count, pa.int64()),
            pa.nulls(count, pa.string()),
        ],
        schema=ARROW_SCHEMA,
    )


def _same(value: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), count)


def _times(records: Sequence[Record]) -> pa.Array:
    """When records arrived; the service says it in seconds, exact to the millisecond."""
    seconds = [each.ApproximateArrivalTimestamp for each in records]
    micros = [None if each is None else round(each * 1000) * 1000 for each in seconds]
    return pa.array(micros, pa.int64()).cast(ARROW_SCHEMA.field("approximateArrivalTimestamp").type)


def _taken_apart(records: Sequence[Record], stream: str, shard: str) -> pa.RecordBatch:
    """The rows of records among which there are aggregates."""
    rows: list[Any] = []
    owners: list[Record] = []
    for record in records:
        parts = user_records(record.Data) if record.Data.startswith(MAGIC) else None
        if parts is None:
            rows.append((record.Data, record.PartitionKey, None, 0))
            owners.append(record)
            continue
        rows += [(*part, number) for number, part in enumerate(parts)]
        owners += [record] * len(parts)
    data, keys, hash_keys, numbers = ([row[column] for row in rows] for column in range(4))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.string()),
            pa.array(data, pa.binary()),
            _same(stream, len(rows)),
            _same(shard, len(rows)),
            pa.array([each.SequenceNumber for each in owners], pa.string()),
            _times(owners),
            pa.array(numbers, pa.int64()),
            pa.array(hash_keys, pa.string()),
        ],
        schema=ARROW_SCHEMA,
    )
