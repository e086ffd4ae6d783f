"""The schemas of the rows that a ``pubsub`` reader gives."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

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

__all__ = ["DATABRICKS_SCHEMA", "STREAM_SCHEMA", "SchemaMode", "schema_of"]


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
