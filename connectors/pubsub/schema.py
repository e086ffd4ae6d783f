"""The schemas of the rows that a ``pubsub`` reader gives."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    from connectors.spool.stream.reader import SpoolRows

__all__ = ["DATABRICKS_SCHEMA", "STREAM_SCHEMA", "SchemaMode", "output", "schema_of"]


class SchemaMode(StrEnum):
    """Which columns the rows have."""

    NATIVE = "native"
    DATABRICKS = "databricks"


STREAM_SCHEMA: Final = StructType(
    [
        StructField("messageId", StringType()),
        StructField("payload", BinaryType()),
        StructField("attributes", MapType(StringType(), StringType())),
        StructField("orderingKey", StringType()),
        StructField("publishTimestamp", TimestampType()),
        StructField("deliveryAttempt", IntegerType()),
        StructField("subscription", StringType()),
        StructField("offset", LongType()),
    ]
)
"""``offset`` is the position that the ledger minted: the dense count of rows kept."""

DATABRICKS_SCHEMA: Final = StructType(
    [
        StructField("messageId", StringType()),
        StructField("payload", BinaryType()),
        StructField("attributes", StringType()),
        StructField("publishTimestampInMillis", LongType()),
    ]
)
"""The columns of Databricks' source; its documentation calls the payload an array of bytes, which Spark calls binary.

https://docs.databricks.com/aws/en/connect/streaming/pub-sub
"""


def schema_of(mode: SchemaMode) -> StructType:
    """The schema of a mode."""
    return DATABRICKS_SCHEMA if mode is SchemaMode.DATABRICKS else STREAM_SCHEMA


_MICROSECONDS_A_MILLISECOND = 1000


def output(kept: SpoolRows, subscriptions: tuple[str, ...], mode: SchemaMode) -> pa.RecordBatch:
    """The batch as Spark gets it.

    Args:
        kept: rows of a spool.
        subscriptions: full names of its sources.
        mode: which columns to give.
    """
    return _databricks(kept.rows) if mode is SchemaMode.DATABRICKS else _native(kept, subscriptions)


def _native(kept: SpoolRows, subscriptions: tuple[str, ...]) -> pa.RecordBatch:
    """The columns of the segment, then the subscription and the position."""
    rows = len(kept.rows)
    columns = [
        *kept.rows.columns,
        pa.repeat(pa.scalar(subscriptions[kept.source], pa.string()), rows),
        pa.array(np.arange(kept.position, kept.position + rows, dtype=np.int64)),
    ]
    return pa.RecordBatch.from_arrays(columns, names=[*kept.rows.schema.names, "subscription", "offset"])


def _databricks(rows: pa.RecordBatch) -> pa.RecordBatch:
    published = rows.column("publishTimestamp").cast(pa.int64())
    missing = published.is_null().to_numpy(zero_copy_only=False)
    milliseconds = published.fill_null(0).to_numpy() // _MICROSECONDS_A_MILLISECOND
    attributes = [
        json.dumps(dict(pairs), ensure_ascii=False, separators=(",", ":"))
        for pairs in rows.column("attributes").to_pylist()
    ]
    return pa.RecordBatch.from_arrays(
        [
            rows.column("messageId"),
            rows.column("payload"),
            pa.array(attributes, pa.string()),
            pa.array(milliseconds, mask=missing),
        ],
        names=["messageId", "payload", "attributes", "publishTimestampInMillis"],
    )
