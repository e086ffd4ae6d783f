"""The columns of the source, declared once, in Arrow's types: fetchers need them without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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
"""The first six are those of Databricks' source; the last two are filled from aggregates of the KPL."""


def source_schema() -> StructType:
    from connectors.core.processes.spark import spark_schema  # noqa: PLC0415 - fetchers import this module without Spark

    return spark_schema(ARROW_SCHEMA)
