"""The columns of the source."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

__all__ = ["SOURCE_SCHEMA"]

SOURCE_SCHEMA: Final = StructType(
    [
        StructField("partitionKey", StringType()),
        StructField("data", BinaryType()),
        StructField("stream", StringType()),
        StructField("shardId", StringType()),
        StructField("sequenceNumber", StringType()),
        StructField("approximateArrivalTimestamp", TimestampType()),
        StructField("subSequenceNumber", LongType()),
        StructField("explicitHashKey", StringType()),
    ]
)
"""The first six are those of Databricks' source; the last two are filled from aggregates of the KPL."""
