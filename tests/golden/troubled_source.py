"""The traced source with troubles that no trace is recorded of, for the tests of the protocol driver itself.

Options: ``pause`` (a file: `latestOffset` makes it and waits until it is gone), ``child`` (a child process is started),
``failpoint`` (its name is passed in every `latestOffset`), ``parts`` (partitions of a batch), and more variants.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSourceStreamReader, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from connectors.core.processes.failpoints import failpoint
from tests.golden.traced_source import Range, TracedSource, TracedStreamReader


class TroubledSource(TracedSource):
    """The source."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.variant = options.get("variant", "")
        if self.variant == "no_source":
            message = "this source cannot be made"
            raise ValueError(message)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self.variant == "simple":
            raise PySparkNotImplementedError(
                errorClass="NOT_IMPLEMENTED", messageParameters={"feature": "streamReader"}
            )
        return super().streamReader(schema) if self.variant == "old_signature" else TroubledReader(dict(self.options))

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: ARG002 - Spark's signature
        return SimpleReader()


class SimpleReader(SimpleDataSourceStreamReader):
    """One row a batch."""

    def initialOffset(self) -> dict[str, Any]:
        return {"pos": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[int]], dict[str, Any]]:
        return iter([(start["pos"],)]), {"pos": start["pos"] + 1}

    def readBetweenOffsets(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[tuple[int]]:
        return iter([(value,) for value in range(start["pos"], end["pos"])])


class TroubledReader(TracedStreamReader):
    """The reader."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.options = options
        self.child: subprocess.Popen[bytes] | None = None
        if self.variant == "no_reader":
            message = "this reader cannot be made"
            raise ValueError(message)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any] | None:
        if pause := self.options.get("pause"):
            Path(pause).touch()
            while Path(pause).exists():
                time.sleep(0.01)
        if "child" in self.options and self.child is None:
            self.child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        if self.variant == "print":
            sys.stdout.write("a line on standard output\n")
            sys.stderr.write("a line on standard error\n")
        failpoint(self.options.get("failpoint", "traced.none"))
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
        planned = super().partitions(start, end)
        if self.options.get("parts") == "3" and planned:
            first = planned[0]
            return [Range(first.start, first.start + 1), Range(first.start + 1, first.end), *planned[1:]]
        return planned

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            if self.variant == "other_rows":
                values = pa.array([time.monotonic_ns()] * batch.num_rows, pa.int64())
                yield pa.RecordBatch.from_arrays([values], schema=batch.schema)
            else:
                yield batch
        if self.variant == "other_schema":
            yield pa.record_batch({"value": pa.array([1], pa.int32())})
