"""The columns of the source: those of Spark's own Kafka source, in its order."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = ["HEADERS_TYPE", "SOURCE_SCHEMA", "source_schema"]

HEADERS_TYPE: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""Headers, as the source gives them and the sink takes them."""

SOURCE_SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
"""Without headers. ``timestampType`` is -1 for none, 0 for the producer's time, 1 for the broker's."""


def source_schema(*, headers: bool) -> StructType:
    """The schema of the source; with ``includeHeaders`` a last column has the headers."""
    fields = [*SOURCE_SCHEMA.fields, *([StructField("headers", HEADERS_TYPE)] if headers else [])]
    return StructType(fields)
