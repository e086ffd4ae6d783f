"""Records as Arrow columns: the plain path, with one Python object a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from connectors.core.errors import ConnectorError

__all__ = [
    "HEADERS",
    "SCHEMA",
    "SCHEMA_WITH_HEADERS",
    "header_column",
    "malformed_headers",
    "record_batch",
    "time_column",
]

HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
"""What `connectors.core.arrow.arrow_schema` makes of the source's schema; a test holds the two together."""
SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field("headers", HEADERS))

_LARGEST_MS: Final = (2**63 - 1) // 1000
_NO_TYPE: Final = -1


def record_batch(messages: Sequence[Any], topic: str, partition: int, *, headers: bool) -> pa.RecordBatch:
    """The rows of some records of one partition.

    Args:
        messages: of confluent-kafka, none of which is an error.
        topic: where they come from.
        partition: where they come from.
        headers: with the column ``headers``.

    Raises:
        ConnectorError: a record's time does not fit in a timestamp, or the key of a header is not UTF-8.
    """
    rows = len(messages)
    times = [message.timestamp() for message in messages]
    kinds = np.fromiter((kind for kind, _ in times), np.int32, rows) + _NO_TYPE
    milliseconds = np.fromiter((time if kind else -1 for kind, time in times), np.int64, rows)
    offsets = np.fromiter((message.offset() for message in messages), np.int64, rows)
    columns = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.array(np.full(rows, partition, np.int32)),
        pa.array(offsets),
        time_column(milliseconds, offsets, topic, partition),
        pa.array(kinds),
    ]
    if headers:
        columns.append(header_column([_headers(message, topic, partition) for message in messages]))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS if headers else SCHEMA)


def _headers(message: Any, topic: str, partition: int) -> list[tuple[str, bytes | None]] | None:
    try:
        found: list[tuple[str, bytes | None]] | None = message.headers()
    except (SystemError, UnicodeDecodeError):  # what the client raises for such a key
        raise malformed_headers(topic, partition, message.offset()) from None
    return found


def malformed_headers(topic: str, partition: int, offset: int) -> ConnectorError:
    """The error for a record whose headers cannot be read."""
    return ConnectorError(
        "KAFKA_MALFORMED_HEADERS",
        f"The headers of the record at offset {offset} cannot be read: they are damaged, or a key is not UTF-8",
        f"{topic}-{partition}",
        "Set nativeReads=true, which replaces what is not UTF-8, and do without OAUTHBEARER, which takes the plain way "
        "to read; or read without includeHeaders.",
    )


def time_column(milliseconds: Any, offsets: Any, topic: str, partition: int) -> pa.Array:
    """Times of records as timestamps; -1, for none, passes through as Spark's own source does.

    Raises:
        ConnectorError: a time does not fit; its producer may have sent nanoseconds.
    """
    if len(milliseconds) and (milliseconds.max() > _LARGEST_MS or milliseconds.min() < -_LARGEST_MS):
        first = int(np.flatnonzero((milliseconds > _LARGEST_MS) | (milliseconds < -_LARGEST_MS))[0])
        raise ConnectorError(
            "KAFKA_MALFORMED_RECORD_TIMESTAMP",
            f"The record at offset {int(offsets[first])} has the timestamp {int(milliseconds[first])}, which is no "
            "number of milliseconds since 1970",
            f"{topic}-{partition}",
            "Look at its producer: it may send microseconds or nanoseconds.",
        )
    return pa.array(milliseconds * 1000).cast(pa.timestamp("us", tz="UTC"))


def header_column(headers: Sequence[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    """Headers in their order, duplicates too; null where a record has none."""
    counts = np.fromiter((len(each or ()) for each in headers), np.int32, len(headers))
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    pairs = [pair for each in headers for pair in each or ()]
    values = pa.StructArray.from_arrays(
        [pa.array([key for key, _ in pairs], pa.string()), pa.array([value for _, value in pairs], pa.binary())],
        fields=list(HEADERS.value_type),
    )
    missing = pa.array([not each for each in headers], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends), values, type=HEADERS, mask=missing)
