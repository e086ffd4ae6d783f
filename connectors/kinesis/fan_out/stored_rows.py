"""The columns of the rows that the cache of enhanced fan-out holds."""

from __future__ import annotations

from typing import Final

from connectors.kinesis.schema import ARROW_SCHEMA
from connectors.spool.segments.rows import RowSchema

CACHED_ROWS: Final = RowSchema(1, ARROW_SCHEMA, all_present=True)
"""A new column gets a new version. Rows of older segments, which lack it, are polled: that fills the column."""
