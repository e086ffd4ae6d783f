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

HEADERS_TYPE: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def source_schema(*, headers: bool) -> StructType:
    """Return the schema of the source; with ``includeHeaders`` the last column has the headers.

    ``timestampType`` is -1 for none, 0 for the producer's time, 1 for the broker's.
    """
    columns = {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
    }
    return StructType(
        [
            StructField(name, kind)
            for name, kind in {**columns, **({"headers": HEADERS_TYPE} if headers else {})}.items()
        ]
    )
