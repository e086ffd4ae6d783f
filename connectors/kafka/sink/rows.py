"""The rows of the sink in the form of the client: the plain path, one Python object for each record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.core.errors import ConnectorError
from connectors.kafka.schema import ANY_PARTITION, SINK, Columns, binary_column, partition_column, topic_names

_NOW: Final = 0
_MICROSECONDS_PER_MS: Final = 1000

ProducerRecord = tuple[str, bytes | None, bytes | None, int, int, list[tuple[str, bytes | None]] | None]
"""Topic, key, value, partition (-1 for the partitioner), time in milliseconds (0 for now), headers."""


def records(batch: pa.RecordBatch, columns: Columns) -> Iterator[ProducerRecord]:
    """Return the rows of a batch in the form of the client; raises for an illegal topic, partition, time or header."""
    rows = batch.num_rows
    topics = [columns.topic] * rows
    if columns.topic is None:
        topic_names(batch)  # raises for an illegal one
        topics = batch.column("topic").to_pylist()
    keys = binary_column(batch, "key").to_pylist() if columns.key else [None] * rows
    partitions = partition_column(batch).to_pylist() if columns.partition else [ANY_PARTITION] * rows
    times = _times(batch) if columns.timestamp else [_NOW] * rows
    headers = _headers(batch.column("headers")) if columns.headers else [None] * rows
    return zip(topics, keys, binary_column(batch, "value").to_pylist(), partitions, times, headers, strict=True)


def time_range(batch: pa.RecordBatch, columns: Columns) -> tuple[int, int]:
    """Return the first and the last time of a batch in milliseconds; 0 where its rows have none."""
    if not columns.timestamp:
        return 0, 0
    ends = pc.min_max(_microseconds(batch))
    first, last = ((ends[end].as_py() or 0) // _MICROSECONDS_PER_MS for end in ("min", "max"))
    return first, last


def _microseconds(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())


def _times(batch: pa.RecordBatch) -> list[int]:
    """Return the column of times in milliseconds; 0, which means now to the client, for null."""
    microseconds = _microseconds(batch)
    least = pc.min_max(microseconds)["min"].as_py()
    if least is not None and least < _MICROSECONDS_PER_MS:
        raise ConnectorError(
            "KAFKA_TIMESTAMP",
            f"A row has the timestamp {least // _MICROSECONDS_PER_MS} ms since 1970-01-01T00:00:00Z. Kafka has no "
            "times below 0, and 0 means now to the client",
            SINK,
        )
    return [_NOW if time is None else time // _MICROSECONDS_PER_MS for time in microseconds.to_pylist()]


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    return [None if row is None else [_header(pair) for pair in row] for row in _header_lists(column)]


def _header_lists(column: pa.Array) -> list[list[dict[str, Any] | None] | None]:
    """Return headers with their keys as text; what is not UTF-8 in one is replaced, as Java does it."""
    try:
        rows: list[list[dict[str, Any] | None] | None] = column.to_pylist()
    except UnicodeDecodeError:
        key, value = (field.name for field in column.type.value_type)
        fields = pa.struct([(key, pa.binary()), (value, pa.binary())])
        rows = column.cast(pa.list_(fields)).to_pylist()
        for pair in (pair for row in rows if row is not None for pair in row if pair is not None):
            pair[key] = None if pair[key] is None else pair[key].decode(errors="replace")
    return rows


def _header(pair: dict[str, Any] | None) -> tuple[str, bytes | None]:
    """Return key and value of a header by their order: their names may be in any case."""
    if pair is None:
        raise _illegal_header("is null")
    key, value = pair.values()
    if key is None:
        raise _illegal_header("has no key")
    if "\0" in key:
        raise _illegal_header(f"has the key {key[:100]!r}, which contains a NUL, where the client would cut it off")
    return key, value


def _illegal_header(problem: str) -> ConnectorError:
    return ConnectorError("KAFKA_HEADER_KEY", f"A header of a row {problem}", SINK)
