"""The columns of the source, in both modes of ``schemaMode``."""

from __future__ import annotations

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
"""``offset`` is the position that the ledger gave the row."""

DATABRICKS_SCHEMA: Final = StructType(
    [
        StructField("messageId", StringType()),
        StructField("payload", BinaryType()),
        StructField("attributes", StringType()),
        StructField("publishTimestampInMillis", LongType()),
    ]
)
"""The columns of Databricks' source (https://docs.databricks.com/aws/en/connect/streaming/pub-sub)."""
