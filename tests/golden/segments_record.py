"""Records segments of several versions of their rows: ``python -m tests.golden.segments_record NAME``.

`unversioned` and `column_fewer` were written by the code that knew no version of rows; `column_more` stands for a later
version, and names the pack 9.9.9. ``tests/unit/spool/segments/test_rows.py`` reads all of them.
"""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from connectors.spool.segments.id_keys import keys_of
from connectors.spool.segments.segment import SegmentWriter
from connectors.spool.store.local import LocalStore

SEGMENTS: Final = Path(__file__).parent / "segments"
COLUMNS: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "messageId": (pa.string(), ["1", "2", "3"]),
    "payload": (pa.binary(), [b"one", b"two", b""]),
    "attributes": (pa.map_(pa.string(), pa.string()), [[("region", "eu")], [], [("a", "1"), ("b", "2")]]),
    "orderingKey": (pa.string(), ["", "k", ""]),
    "publishTimestamp": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2026, 11, 26, 4, minute, tzinfo=dt.UTC) for minute in (1, 2, 3)],
    ),
    "deliveryAttempt": (pa.int32(), [None, 5, None]),
    "region": (pa.string(), ["x", "y", None]),
}
_MESSAGE: Final = tuple(COLUMNS)[:-1]
NAMES: Final = {"unversioned": _MESSAGE, "column_fewer": _MESSAGE[:-1], "column_more": tuple(COLUMNS)}
METADATA: Final = {"column_more": {"spool.rows.version": "2", "spool.rows.writer": "9.9.9"}}


def record(name: str) -> None:
    """Write the segment of a version to a folder of its own."""
    schema = pa.schema([(column, COLUMNS[column][0]) for column in NAMES[name]], metadata=METADATA.get(name))
    rows = pa.record_batch([pa.array(COLUMNS[field.name][1], field.type) for field in schema], schema=schema)
    store = LocalStore(str(SEGMENTS / name), "0" * 16)
    writer = SegmentWriter(store, "golden", "f0", 0, schema)
    writer.append(rows, keys_of(rows["messageId"], b"k" * 16), np.full(len(rows), 10, np.int64), (1, 2))
    writer.publish()
    store.delete_folder("tmp")


if __name__ == "__main__":
    record(sys.argv[1])
