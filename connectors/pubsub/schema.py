"""The columns that a ``pubsub`` reader gives, by schema mode."""

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
    from connectors.spool.stream.slices import SpoolRows

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
"""``offset`` is the position that the ledger gave the row: the dense count of rows."""

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
    """Return the schema of a mode."""
    return DATABRICKS_SCHEMA if mode is SchemaMode.DATABRICKS else STREAM_SCHEMA


def output(kept: SpoolRows, subscriptions: tuple[str, ...], mode: SchemaMode) -> pa.RecordBatch:
    """Return rows of a spool in the columns of a mode; `subscriptions` are the full paths of the spool's sources."""
    rows = kept.rows
    if mode is SchemaMode.NATIVE:
        columns = [
            *rows.columns,
            pa.repeat(pa.scalar(subscriptions[kept.source], pa.string()), len(rows)),
            pa.array(np.arange(kept.position, kept.position + len(rows), dtype=np.int64)),
        ]
        return pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, "subscription", "offset"])
    published = rows.column("publishTimestamp").cast(pa.int64())
    missing = published.is_null().to_numpy(zero_copy_only=False)
    milliseconds = published.fill_null(0).to_numpy() // 1000
    attributes = [
        json.dumps(dict(pairs), ensure_ascii=False, separators=(",", ":"))
        for pairs in rows.column("attributes").to_pylist()
    ]
    columns = [
        rows.column("messageId"),
        rows.column("payload"),
        pa.array(attributes, pa.string()),
        pa.array(milliseconds, mask=missing),
    ]
    return pa.RecordBatch.from_arrays(columns, names=DATABRICKS_SCHEMA.names)
