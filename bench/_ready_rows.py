"""The ceilings of the Kafka benchmarks: sources and a sink in Python that do nothing but what Spark demands of them.

What these reach is what Spark takes for rows from Python and for rows to Python; no connector in Python can have more.
``ready_rows`` hands out ready rows, with the columns of the Kafka source: a task makes one Arrow batch and yields it
again and again. ``due_rows`` has so many rows a second from a point in time on, each with the time at which it
was due: offsets and rows are there, and nobody is asked for them. As a sink either takes batches and drops them.
"""

from __future__ import annotations

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

from connectors.kafka.schema import SCHEMA, source_schema

READY = "ready_rows"
DUE = "due_rows"
CEILINGS = (READY, DUE)
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


class ReadyRows(DataSource):
    """``format("ready_rows")``; options rows, size (of a value), batches, partitions, and rowsPerBatch of Arrow."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return READY

    def schema(self) -> StructType:
        """That of the Kafka source."""
        return source_schema(headers=False)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's interface
        """The reader."""
        return ReadyStream(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DroppingWriter:  # noqa: ARG002, FBT001 - as above
        """The sink."""
        return DroppingWriter()


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
    def values(self, part: Part) -> Iterator[list[bytes]]:
        """The values of a task, a list for each Arrow batch."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        part, made = cast("Part", partition), None
        for values in self.values(part):
            if made is None or made[0] is not values:
                made = values, batch_of(values, part.number)
            yield made[1].slice(0, min(part.rows, len(values)))
            part.rows -= len(values)


class ReadyStream(Stream):
    """So many batches, and then no more."""

    KEY = "batches"

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows, self._size, self._batches, self._partitions = (
            int(options[name]) for name in ("rows", "size", "batches", "partitions")
        )
        self._arrow_rows = int(options["rowsPerBatch"])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002 - as above
        """The next batch, if there is one."""
        return {self.KEY: min(start[self.KEY] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Each batch has the same."""
        rows = self._rows // self._batches * (end[self.KEY] - start[self.KEY])
        return [Part(number, rows // self._partitions) for number in range(self._partitions)]

    def values(self, part: Part) -> Iterator[list[bytes]]:
        """One list, again and again."""
        values = [os.urandom(self._size)] * self._arrow_rows
        for _ in range(0, part.rows, self._arrow_rows):
            yield values


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

    def values(self, part: Part) -> Iterator[list[bytes]]:
        """Each with the time at which it was due."""
        numbers = range(part.first, part.first + part.rows * self._partitions, self._partitions)
        filling = bytes(self._size - STAMP_BYTES)
        due = (self._begin + number * 1_000_000_000 // self._rate for number in numbers)
        yield [at.to_bytes(STAMP_BYTES, "little") + filling for at in due]


def batch_of(values: list[bytes], number: int) -> pa.RecordBatch:
    """Values as a batch of the Kafka source."""
    rows = range(len(values))
    columns = {
        "key": [b"key-%d" % (row % 1000) for row in rows],
        "value": values,
        "topic": ["ready-rows" for _ in rows],
        "partition": [number for _ in rows],
        "offset": list(rows),
        "timestamp": [0 for _ in rows],
        "timestampType": [0 for _ in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
