"""The schema of the rows that a ``pubsub`` stream gives."""

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

__all__ = ["STREAM_SCHEMA"]

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
