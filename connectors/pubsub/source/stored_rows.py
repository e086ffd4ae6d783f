"""The columns of a message as a spool holds them; tasks read them, and import nothing of the fetchers for that."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from connectors.spool.segments.rows import RowSchema

ROWS: Final = RowSchema(
    1,
    pa.schema(
        [
            ("messageId", pa.string()),
            ("payload", pa.binary()),
            ("attributes", pa.map_(pa.string(), pa.string())),
            ("orderingKey", pa.string()),
            ("publishTimestamp", pa.timestamp("us", "UTC")),
            ("deliveryAttempt", pa.int32()),
        ]
    ),
)
"""A new column gets a new version, and is null in the rows of older segments unless a default is stated."""

ROWS_SCHEMA: Final = ROWS.stamped
"""The columns of a received message, with the Arrow types that Spark gives to those of the source."""
