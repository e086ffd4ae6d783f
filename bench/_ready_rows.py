"""A stream that does nothing but hand ready rows to Spark: what is left is Spark's own, and no source can be faster.

Its rows have the columns of the Kafka source. A task makes one Arrow batch and yields it again and again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from connectors.kafka.schema import source_schema
from connectors.kafka.source.records import SCHEMA

READY = "ready_rows"

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers cannot import it


@dataclass
class Part(InputPartition):
    """A task's rows.

    Attributes:
        number: the partition.
        rows: how many.
    """

    number: int
    rows: int


class ReadyRows(DataSource):
    """``format("ready_rows")``; options rows, size (of a value), batches, partitions, and rowsPerBatch of Arrow."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return READY

    def schema(self) -> StructType:
        """That of the Kafka source."""
        return source_schema(headers=False)

    def streamReader(self, schema: StructType) -> ReadyStream:  # noqa: ARG002 - Spark's interface
        """The reader."""
        return ReadyStream(self.options)


class ReadyStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """So many batches, and then no more."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows, self._size, self._batches, self._partitions = (
            int(options[name]) for name in ("rows", "size", "batches", "partitions")
        )
        self._arrow_rows = int(options["rowsPerBatch"])

    def initialOffset(self) -> dict[str, Any]:
        """Before the first batch."""
        return {"batches": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """One batch at a time, whatever is asked."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """All runs are bounded."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002 - as above
        """The next batch, if there is one."""
        return {"batches": min(start["batches"] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Each batch has the same."""
        rows = self._rows // self._batches * (end["batches"] - start["batches"])
        return [Part(number, rows // self._partitions) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        part = cast("Part", partition)
        batch = self._batch(part.number)
        for _ in range(part.rows // batch.num_rows):
            yield batch
        if left := part.rows % batch.num_rows:
            yield batch.slice(0, left)

    def _batch(self, number: int) -> pa.RecordBatch:
        rows = range(self._arrow_rows)
        value = os.urandom(self._size)
        columns = {
            "key": [b"key-%d" % (row % 1000) for row in rows],
            "value": [value for _ in rows],
            "topic": ["ready-rows" for _ in rows],
            "partition": [number for _ in rows],
            "offset": list(rows),
            "timestamp": [0 for _ in rows],
            "timestampType": [0 for _ in rows],
        }
        return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept."""
