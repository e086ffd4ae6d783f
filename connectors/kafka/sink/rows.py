"""The columns of the sink, checked with the texts of Spark's own sink, and rows in the form of the client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.core.errors import ConnectorError, OptionError
from connectors.kafka.offsets import refuse_nul

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SINK: Final = "kafka_py sink"
_ANY_PARTITION: Final = -1
_NOW: Final = 0
_MICROSECONDS_PER_MS: Final = 1000
_REPLACEMENT: Final = "\ufffd"
MOST_TOPIC_BYTES: Final = 512  # the longest name that librdkafka takes; brokers take 249

Record = tuple[str, bytes | None, bytes | None, int, int, list[tuple[str, bytes | None]] | None]
"""Topic, key, value, partition (-1 for the partitioner), time in milliseconds (0 for now), headers."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns a sink reads; ``topic`` is the topic of all rows, or None for the column."""

    topic: str | None
    key: bool
    partition: bool
    headers: bool
    timestamp: bool

    def __post_init__(self) -> None:
        refuse_nul("topic", self.topic or "")


def check_columns(schema: StructType, topic: str | None, *, timestamps: bool) -> Columns:
    """Return which columns of the rows a sink reads; raises an `OptionError` if it cannot write them.

    Names are case-sensitive; those of the fields of headers are not, as in Spark's own sink.
    """
    types = {field.name: field.dataType.simpleString() for field in schema}
    if topic is None and "topic" not in types:
        raise _illegal(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic",
            "Set the option topic, or add a column topic.",
        )
    if "value" not in types:
        raise _illegal("Required attribute 'value' not found", "Name the column of the payload value.")
    legal = {
        **({"topic": ("string",)} if topic is None else {}),
        "key": ("string", "binary"),
        "value": ("string", "binary"),
        "headers": ("array<struct<key:string,value:binary>>",),
        "partition": ("int",),
        **({"timestamp": ("timestamp",)} if timestamps else {}),
    }
    names = [field.name for field in schema if field.name in legal]
    for name in sorted(set(names)):
        if names.count(name) > 1:
            raise _illegal(
                f"Reference '{name}' is ambiguous: {names.count(name)} columns have that name",
                "Drop or rename all but one.",
            )
    for name in [name for name in legal if name in types]:
        if types[name].lower() not in legal[name]:
            wanted = " or ".join(legal[name])
            raise _illegal(
                f"{name} attribute unsupported type {types[name]}. {name} must be a(n) {wanted}", f"Cast {name}."
            )
    return Columns(topic, "key" in types, "partition" in types, "headers" in types, timestamps and "timestamp" in types)


def _illegal(what: str, action: str) -> OptionError:
    return OptionError("KAFKA_SINK_COLUMNS", what, _SINK, action)


def binary_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of strings or bytes as bytes."""
    return batch.column(name).cast(pa.binary())


def topic_names(batch: pa.RecordBatch) -> list[str]:
    """Return the distinct names in the column of topics; raises if one is null or illegal."""
    column = batch.column("topic")
    if column.null_count:
        raise ConnectorError(
            "KAFKA_NULL_TOPIC_IN_DATA",
            "A row has no topic, and the option topic is not set",
            _SINK,
            "Set the option topic, or fill the column.",
        )
    # Spark's strings are bytes, perhaps not UTF-8.
    names: list[str] = [text.decode(errors="replace") for text in pc.unique(column).cast(pa.binary()).to_pylist()]
    for name in names:
        if not name or "\0" in name or _REPLACEMENT in name or len(name.encode()) > MOST_TOPIC_BYTES:
            raise ConnectorError(
                "KAFKA_TOPIC_NAME",
                f"A row's topic {name[:100]!r} cannot be the name of a topic",
                _SINK,
                "Correct the column.",
            )
    return names


def partition_column(batch: pa.RecordBatch) -> pa.Array:
    """Return the column of partitions, -1 where the partitioner chooses; raises if one is below 0."""
    column = batch.column("partition")
    least = pc.min_max(column)["min"].as_py()
    if least is not None and least < 0:
        raise ConnectorError(
            "KAFKA_PARTITION",
            f"Invalid partition: {least}. Partition number should always be non-negative or null",
            _SINK,
            "Use null where the partitioner is to choose.",
        )
    return pc.fill_null(column, _ANY_PARTITION)


def records(batch: pa.RecordBatch, columns: Columns) -> Iterator[Record]:
    """Return the rows of a batch in the form of the client; raises for an illegal topic, partition, time or header."""
    rows = batch.num_rows
    topics = [columns.topic] * rows
    if columns.topic is None:
        topic_names(batch)  # raises for an illegal one
        topics = batch.column("topic").to_pylist()
    keys = binary_column(batch, "key").to_pylist() if columns.key else [None] * rows
    partitions = partition_column(batch).to_pylist() if columns.partition else [_ANY_PARTITION] * rows
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
            _SINK,
            "Use null for now, or a later time.",
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
        raise _illegal_header("A header of a row is null", "Leave it out of the array.")
    key, value = pair.values()
    if key is None:
        raise _illegal_header("A header of a row has no key", "Fill it, or leave the header out.")
    if "\0" in key:
        raise _illegal_header(
            f"A header of a row has the key {key[:100]!r}, which has a NUL: the client would cut it there",
            "Correct the column.",
        )
    return key, value


def _illegal_header(what: str, action: str) -> ConnectorError:
    return ConnectorError("KAFKA_HEADER_KEY", what, _SINK, action)
