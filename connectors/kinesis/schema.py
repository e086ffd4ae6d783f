"""The columns of the source, in Arrow's types: fetchers need them too, and import nothing of Spark."""

from typing import Final

import pyarrow as pa

__all__ = ["ARROW_SCHEMA"]

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
