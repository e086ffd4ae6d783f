"""The columns of source and sink: those of Spark's own, in Spark's types and in Arrow, and rows of fetched records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connectors.core.arrow import arrow_schema
from connectors.core.errors import ConnectorError, OptionError
from connectors.kafka.offsets import TopicPartition, refuse_nul

HEADERS_TYPE: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def source_schema(*, headers: bool) -> StructType:
    """Return the schema of the source; with ``includeHeaders`` the last column has the headers.

    ``timestampType`` is -1 for none, 0 for the producer's time, 1 for the broker's.
    """
    columns: dict[str, DataType] = {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
    }
    columns |= {"headers": HEADERS_TYPE} if headers else {}
    return StructType([StructField(name, kind) for name, kind in columns.items()])


RecordHeaders = list[tuple[str, bytes | None]] | None


@dataclass(frozen=True, slots=True)
class Event:
    """The end of a partition, or an error, by librdkafka's name and description of it.

    Attributes:
        offset: below 0 if it means nothing.
        partition: perhaps one that the client no longer reads; None if it is about none.
    """

    name: str
    text: str
    offset: int
    retriable: bool = False
    partition: TopicPartition | None = None


class Fetched(ABC):
    """Records in the order of their ``offsets``, a numpy array, and the events that came with them."""

    def __init__(self, offsets: Any, events: Sequence[Event] = ()) -> None:
        self.offsets = offsets
        self.events = events

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of keys and values, about."""

    @abstractmethod
    def cut(self, first: int, last: int) -> Self:
        """Return the records from one index up to, but not including, another, without events."""

    @classmethod
    @abstractmethod
    def batch(cls, parts: Sequence[Self], partition: TopicPartition, *, headers: bool) -> pa.RecordBatch:
        """Return the rows of several of these, in order."""

    @abstractmethod
    def free(self) -> None:
        """Release the records to the client: nobody uses them any more."""


SCHEMA: Final = arrow_schema(source_schema(headers=False))
SCHEMA_WITH_HEADERS: Final = arrow_schema(source_schema(headers=True))
HEADERS: Final = SCHEMA_WITH_HEADERS.field("headers").type
_LARGEST_MS: Final = (2**63 - 1) // 1000


def record_batch(
    keys: pa.Array,
    values: pa.Array,
    partition: TopicPartition,
    offsets: Any,
    times: tuple[Any, Any],
    headers: Sequence[RecordHeaders] | None,
) -> pa.RecordBatch:
    """Build the rows of some records of one partition, without the column ``headers`` where these are None.

    ``times`` are numpy arrays of milliseconds and of librdkafka's types of timestamps, 0 for none.
    """
    milliseconds, kinds = times
    columns = [
        keys,
        values,
        *_partition_columns(partition, len(offsets)),
        pa.array(offsets),
        time_column(np.where(kinds == 0, np.int64(-1), milliseconds)),
        pa.array(kinds - np.int32(1)),  # as Spark counts them
    ]
    if headers is None:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return pa.RecordBatch.from_arrays([*columns, header_column(headers)], schema=SCHEMA_WITH_HEADERS)


@lru_cache(maxsize=4)
def _partition_columns(partition: TopicPartition, rows: int) -> tuple[pa.Array, pa.Array]:
    """Build columns that most batches of a range share."""
    topics = pa.repeat(pa.scalar(partition.topic, pa.string()), rows)
    return topics, pa.array(np.full(rows, partition.partition, np.int32))


def malformed_headers(partition: TopicPartition, offset: int) -> ConnectorError:
    what = f"The headers of the record at offset {offset} cannot be read: they are damaged, or a key is not UTF-8"
    return ConnectorError("KAFKA_MALFORMED_HEADERS", what, str(partition))


def time_column(milliseconds: Any) -> pa.Array:
    """Return milliseconds as timestamps; -1, for none, stays, as in Spark's own source.

    NULL stands for a number that microseconds since 1970 do not hold, such as one of nanoseconds. Spark's own source
    gives no row there and ends the query, at each start again: any producer could stop every reader of its topic.
    """
    wrong = (milliseconds > _LARGEST_MS) | (milliseconds < -_LARGEST_MS)
    times = pa.array(milliseconds * 1000, mask=wrong if wrong.any() else None)
    return times.cast(pa.timestamp("us", tz="UTC"))


def header_column(headers: Sequence[RecordHeaders]) -> pa.Array:
    """Return headers in their order, with duplicates; null where a record has none."""
    counts = np.fromiter((len(row or ()) for row in headers), np.int32, len(headers))
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    pairs = [pair for row in headers for pair in row or ()]
    values = pa.StructArray.from_arrays(
        [pa.array([key for key, _ in pairs], pa.string()), pa.array([value for _, value in pairs], pa.binary())],
        fields=list(HEADERS.value_type),
    )
    missing = pa.array([not row for row in headers], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends), values, type=HEADERS, mask=missing)


# --- the sink ------------------------------------------------------------------------------------------------------

SINK: Final = "kafka_py sink"
ANY_PARTITION: Final = -1
_REPLACEMENT: Final = "\ufffd"
MOST_TOPIC_BYTES: Final = 512  # the longest name that librdkafka takes; brokers take 249


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
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic"
        )
    if "value" not in types:
        raise _illegal("Required attribute 'value' not found")
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
            raise _illegal(f"Reference '{name}' is ambiguous: {names.count(name)} columns have that name")
    for name in [name for name in legal if name in types]:
        if types[name].lower() not in legal[name]:
            wanted = " or ".join(legal[name])
            raise _illegal(f"{name} attribute unsupported type {types[name]}. {name} must be a(n) {wanted}")
    return Columns(topic, "key" in types, "partition" in types, "headers" in types, timestamps and "timestamp" in types)


def _illegal(what: str) -> OptionError:
    return OptionError("KAFKA_SINK_COLUMNS", what, SINK)


def binary_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(name).cast(pa.binary())


def topic_names(batch: pa.RecordBatch) -> list[str]:
    """Return the distinct names in the column of topics; raises if one is null or illegal."""
    column = batch.column("topic")
    if column.null_count:
        raise ConnectorError("KAFKA_NULL_TOPIC_IN_DATA", "A row has no topic, and the option topic is not set", SINK)
    # Spark's strings are bytes, perhaps not UTF-8.
    names: list[str] = [text.decode(errors="replace") for text in column.unique().cast(pa.binary()).to_pylist()]
    for name in names:
        if not name or "\0" in name or _REPLACEMENT in name or len(name.encode()) > MOST_TOPIC_BYTES:
            what = f"A row's topic {name[:100]!r} is not a valid topic name"
            raise ConnectorError("KAFKA_TOPIC_NAME", what, SINK)
    return names


def partition_column(batch: pa.RecordBatch) -> pa.Array:
    """Return the column of partitions, -1 where the partitioner chooses; raises if one is below 0."""
    import pyarrow.compute as pc  # noqa: PLC0415 - readers import this module too, and do without

    column = batch.column("partition")
    least = pc.min_max(column)["min"].as_py()
    if least is not None and least < 0:
        what = f"Invalid partition: {least}. Partition number should always be non-negative or null"
        raise ConnectorError("KAFKA_PARTITION", what, SINK)
    return column.fill_null(ANY_PARTITION)
