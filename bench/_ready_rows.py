"""The ceilings of the Kafka benchmarks: sources and a sink in Python that do nothing but what Spark demands of them.

What these reach is what Spark takes for rows from Python and for rows to Python; no connector in Python can have more.
``ready_rows`` hands out ready rows, with the columns of the Kafka source: a task makes one Arrow batch and yields it
again and again. ``fetched_rows`` does too, but has the vendor's client fetch as many before it yields them, and drops
what came: the limit of any source in Python that must fetch. ``due_rows`` has so many rows a second from a point in
time on, each with the time at which it was due: offsets and rows are there, and nobody is asked for them. As a sink
each takes batches and drops them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from connectors.core.arrow import arrow_schema
from connectors.core.processes.spark import DataSourceStreamArrowWriter, spark_schema
from connectors.kafka.schema import SCHEMA, source_schema
from connectors.kinesis.schema import ARROW_SCHEMA
from connectors.pubsub.schema import STREAM_SCHEMA

READY = "ready_rows"
FETCHED = "fetched_rows"
DUE = "due_rows"
CEILINGS = (READY, FETCHED, DUE)
COLUMNS = {"kafka": SCHEMA, "kinesis": ARROW_SCHEMA, "pubsub": arrow_schema(STREAM_SCHEMA)}
PAYLOADS = ("value", "data", "payload")
ARROW_ROWS = 10_000
STAMP_BYTES = 8
"""A row that is timed begins with the time at which it was sent: ns, little-endian."""

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers cannot import it


def stamps(values: pa.ChunkedArray) -> np.ndarray:
    """The times at the beginning of binary values, which are all equally long."""
    found = [np.empty(0, "<i8")]
    for chunk in values.chunks:
        if len(chunk):
            # Casted, so that the layout of the buffers is that of `binary`, whatever Spark uses for a column.
            _, offsets, data = chunk.cast(pa.binary()).buffers()
            ends = np.frombuffer(offsets, "<i4")[chunk.offset : chunk.offset + len(chunk) + 1]
            rows = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].reshape(len(chunk), -1)
            found.append(np.ascontiguousarray(rows[:, :STAMP_BYTES]).view("<i8").ravel())
    return np.concatenate(found)


@dataclass
class Part(InputPartition):
    """A task's rows.

    Attributes:
        number: the partition.
        rows: how many.
        first: the number of the first one.
    """

    number: int
    rows: int
    first: int = 0


class DroppingWriter(DataSourceArrowWriter):
    """Takes batches and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drop the rows of a task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DroppingStreamWriter(DataSourceStreamArrowWriter):
    """The same for a stream."""

    write = DroppingWriter.write


class ReadyRows(DataSource):
    """``format("ready_rows")``; options rows, size (of a value), batches, partitions, and rowsPerBatch of Arrow.

    The columns are those of the Kafka source, unless the option ``columns`` names another connector.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return READY

    def schema(self) -> StructType:
        """That of a connector's source."""
        columns = self.options.get("columns", "kafka")
        return source_schema(headers=False) if columns == "kafka" else spark_schema(COLUMNS[columns])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's interface
        """The reader."""
        return ReadyStream(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DroppingWriter:  # noqa: ARG002, FBT001 - as above
        """The sink."""
        return DroppingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DroppingStreamWriter:  # noqa: ARG002, FBT001 - as above
        """The sink of a stream."""
        return DroppingStreamWriter()


class FetchedRows(ReadyRows):
    """``format("fetched_rows")``; the options of ``ready_rows``, and as JSON ``client``: what a fetch takes."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FETCHED

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - as above
        """The reader."""
        return FetchedStream(self.options)


class DueRows(ReadyRows):
    """``format("due_rows")``; options begin (ns), rate (rows a second), size (of a value) and partitions."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return DUE

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - as above
        """The reader."""
        return DueStream(self.options)


class Stream(DataSourceStreamReader, SupportsTriggerAvailableNow, ABC):
    """What both streams have in common: offsets that are one number."""

    KEY: ClassVar[str]

    def getDefaultReadLimit(self) -> ReadLimit:
        """What is there, whatever is asked."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """All runs are bounded."""

    def initialOffset(self) -> dict[str, Any]:
        """Before the first batch."""
        return {self.KEY: 0}

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept."""

    @abstractmethod
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""


class ReadyStream(Stream):
    """So many batches, and then no more."""

    KEY = "batches"

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows, self._size, self._batches, self._partitions = (
            int(options[name]) for name in ("rows", "size", "batches", "partitions")
        )
        self._arrow_rows = int(options["rowsPerBatch"])
        self._columns = options.get("columns", "kafka")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002 - as above
        """The next batch, if there is one."""
        return {self.KEY: min(start[self.KEY] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Each batch has the same."""
        rows = self._rows // self._batches // self._partitions
        first, count = rows * start[self.KEY], rows * (end[self.KEY] - start[self.KEY])
        return [Part(number, count, first) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One batch, again and again."""
        part, batch = cast("Part", partition), sample(COLUMNS[self._columns], self._arrow_rows, self._size)
        for rows in self.counts(part):
            yield batch.slice(0, rows)

    def counts(self, part: Part) -> Iterator[int]:
        """The rows of each Arrow batch of a task."""
        for done in range(0, part.rows, self._arrow_rows):
            yield min(self._arrow_rows, part.rows - done)


class FetchedStream(ReadyStream):
    """Ready rows, as many as the vendor's client has fetched."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._client: dict[str, Any] = json.loads(options["client"])

    def counts(self, part: Part) -> Iterator[int]:
        """The rows of each Arrow batch: what was fetched for it is dropped before."""
        fetch = {"kafka": fetch_kafka, "kinesis": fetch_kinesis}[self._columns]
        fetched = done = 0
        for rows in fetch(part, **self._client):
            fetched = min(fetched + rows, part.rows)
            while fetched - done >= self._arrow_rows:
                yield self._arrow_rows
                done += self._arrow_rows
        while done < part.rows:  # a shard has some records more or fewer than another
            rows = min(self._arrow_rows, part.rows - done)
            yield rows
            done += rows


def fetch_kafka(part: Part, servers: str, topic: str) -> Iterator[int]:
    """Have librdkafka fetch a range, as our reader does, and return its messages as they are."""
    from connectors.kafka.options.client import ClientSettings  # noqa: PLC0415 - in the task, whose pool it takes
    from connectors.kafka.options.source import KafkaReadOptions  # noqa: PLC0415 - as above
    from connectors.kafka.source.consumer_pool import CONSUMERS  # noqa: PLC0415 - as above
    from connectors.kafka.source.planning import OffsetRange  # noqa: PLC0415 - as above

    client = ClientSettings(
        (("bootstrap.servers", servers), ("isolation.level", "read_uncommitted"), ("check.crcs", "true"))
    )
    span = OffsetRange(topic, part.number, part.first, part.first + part.rows)
    consumer = CONSUMERS.acquire(span, KafkaReadOptions(client=client, group="limit"), "limit")
    consumer.go(span.topic_partition, span.start)
    position = consumer.next_offset(span.start, span.end)
    while position < span.end:
        records, _ = consumer.fetch(position, span.end)
        position = consumer.next_offset(position, span.end)
        records.free()
        yield len(records)
    consumer.position = span.end
    CONSUMERS.release(consumer)


def fetch_kinesis(part: Part, options: dict[str, str]) -> Iterator[int]:
    """Have the client fetch a shard, with JSON and base64, and drop the records."""
    from connectors.kinesis.client.client import KinesisClient  # noqa: PLC0415 - as above
    from connectors.kinesis.offsets import TRIM  # noqa: PLC0415 - as above
    from connectors.kinesis.options.client import client_options  # noqa: PLC0415 - as above
    from connectors.kinesis.options.source import parse_read_options  # noqa: PLC0415 - as above

    parsed = parse_read_options(options, {}, streaming=False)
    client, stream = KinesisClient(client_options(parsed)), options["streamName"]
    iterator: str | None = client.iterator(stream, f"shardId-{part.number:012}", TRIM)
    while iterator is not None:
        page = client.records(iterator, 10_000, stream, f"shardId-{part.number:012}")
        yield len(page.records)
        iterator = page.following if page.behind_ms else None


class DueStream(Stream):
    """Rows that come to be by the clock."""

    KEY = "rows"

    def __init__(self, options: Mapping[str, str]) -> None:
        # The reader that plans and those of the tasks are made one by one, so none of them can set the begin.
        self._begin, self._rate, self._size, self._partitions = (
            int(options[name]) for name in ("begin", "rate", "size", "partitions")
        )

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002 - as above
        """As many as were due by now."""
        return {self.KEY: max(start[self.KEY], (time.time_ns() - self._begin) * self._rate // 1_000_000_000)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Neighbouring rows are in different partitions, as a producer spreads them."""
        span = range(start[self.KEY], end[self.KEY])
        parts = [span[number :: self._partitions] for number in range(self._partitions)]
        return [Part(number, len(rows), rows[0]) for number, rows in enumerate(parts) if rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Each with the time at which it was due."""
        part = cast("Part", partition)
        numbers = range(part.first, part.first + part.rows * self._partitions, self._partitions)
        filling = bytes(self._size - STAMP_BYTES)
        due = (self._begin + number * 1_000_000_000 // self._rate for number in numbers)
        values = pa.array([at.to_bytes(STAMP_BYTES, "little") + filling for at in due], pa.binary())
        batch = sample(SCHEMA, len(values), self._size)
        yield batch.set_column(1, SCHEMA.field(1), values)


def ready_options(rows: int, size: int, batches: int, partitions: int) -> dict[str, str]:
    """The options of ready rows, of which an Arrow batch has `ARROW_ROWS`."""
    numbers = {"rows": rows, "size": size, "batches": batches, "partitions": partitions, "rowsPerBatch": ARROW_ROWS}
    return {name: str(value) for name, value in numbers.items()}


def sample(schema: pa.Schema, rows: int, size: int) -> pa.RecordBatch:
    """Rows as a source has them: random values of a size, short keys, names, numbers, and no attributes."""
    numbers = np.arange(rows)
    columns = []
    for field in schema:
        if field.name in PAYLOADS:
            column = pa.array([os.urandom(size)], pa.binary()).take(pa.array(np.zeros(rows, int)))
        elif field.name in {"key", "partitionKey", "messageId"}:
            column = pa.array([f"key-{number % 1000}" for number in numbers])
        elif field.name == "sequenceNumber":
            column = pa.array([f"495903382714902566085596925383615710959215759891365{number:05}" for number in numbers])
        elif field.name in {"topic", "stream", "shardId", "subscription"}:
            column = pa.array(["ready-rows"]).take(pa.array(np.zeros(rows, int)))
        elif pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type):
            column = pa.array(numbers)
        else:
            column = pa.nulls(rows, field.type)
        columns.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
