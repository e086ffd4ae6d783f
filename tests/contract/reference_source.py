"""A small source that keeps the whole contract of a stream reader: the rows are the lines of a file that grows.

Offsets count lines. A background thread keeps the count fresh, and a child process stands for the fetchers that real
sources have. While the file ``<log>.stall`` exists, the count cannot be asked for: that stands for a service that does
not answer. The options of good sources are parsed by pydantic; here plain ``int`` does.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from connectors.core.offsets import SENTINEL, START_KEY, VERSION, is_sentinel, ordered

SCHEMA = StructType(
    [
        StructField("position", LongType(), nullable=False),
        StructField("value", StringType()),
        StructField("attributes", MapType(StringType(), StringType())),
    ]
)
NO_LIMIT = 2**63 - 1
_REFRESH_SECONDS = 0.005
_LOOK_AT_PARENT_SECONDS = 0.2


@dataclass
class Lines(InputPartition):
    """The lines from one number to below another."""

    log: str
    first: int
    end: int


def count_lines(log: str) -> int:
    """The number of whole lines; waits as long as the log is stalled."""
    stall = Path(f"{log}.stall")
    while stall.exists():
        time.sleep(_REFRESH_SECONDS)
    return Path(log).read_bytes().count(b"\n")


class LiveCount:
    """The number of lines, kept fresh by a thread, and a child process that ends with this one."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._parent = os.getppid()
        self._rounds = 0
        self._lines = 0
        self._changed = threading.Condition()
        self._child = self._start_child()
        threading.Thread(target=self._refresh, daemon=True).start()

    def _start_child(self) -> subprocess.Popen[bytes]:
        """Ends when its standard input does, so with this process, however that ends."""
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def _refresh(self) -> None:
        while True:
            lines = count_lines(self._log)
            with self._changed:
                self._lines = lines
                self._rounds += 1
                self._changed.notify_all()
            time.sleep(_REFRESH_SECONDS)

    def lines(self) -> int:
        """The number of lines as it was a moment ago; does not wait."""
        return self._lines

    def fresh_lines(self) -> int:
        """The number of lines after a look that began now; waits for it, but not longer than the parent lives."""
        with self._changed:
            wanted = self._rounds + 2  # the round under way may have looked before
            while self._rounds < wanted:
                self._changed.wait(_LOOK_AT_PARENT_SECONDS)
                self.check_parent()
            return self._lines

    def check_parent(self) -> None:
        """Raise when the process that started this one has ended."""
        if os.getppid() != self._parent:
            message = "the parent process is gone"
            raise ConnectionError(message)


class ReferenceSource(DataSource):
    """The source. Options: ``log``, ``startAt`` (earliest or latest), ``maxRows``, ``partitionRows``."""

    @classmethod
    def name(cls) -> str:
        return "reference"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's signature
        return ReferenceStreamReader(dict(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return ReferenceBatchReader(dict(self.options))


def cut(options: Mapping[str, str], first: int, end: int) -> list[Lines]:
    """Partitions of equal size over a range of lines."""
    size = int(options.get("partitionrows", "4"))
    return [Lines(options["log"], start, min(start + size, end)) for start in range(first, end, size)]


def read_lines(partition: Lines) -> Iterator[pa.RecordBatch]:
    """The lines of a partition, in two batches where there are enough."""
    text = Path(partition.log).read_text().split("\n")[partition.first : partition.end]
    schema = to_arrow_schema(SCHEMA, timezone="UTC")
    half = (len(text) + 1) // 2
    for skipped, values in ((0, text[:half]), (half, text[half:])):
        if values:
            positions = range(partition.first + skipped, partition.first + skipped + len(values))
            attributes = [[("length", str(len(value)))] for value in values]
            columns = [pa.array(positions, pa.int64()), pa.array(values, pa.string())]
            columns.append(pa.array(attributes, schema.field("attributes").type))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class ReferenceBatchReader(DataSourceReader):
    """Reads the lines there are when the read is planned."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[Lines]:
        return cut(self.options, 0, count_lines(self.options["log"]))

    def read(self, partition: Lines) -> Iterator[pa.RecordBatch]:
        return read_lines(partition)


class ReferenceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.live: LiveCount | None = None
        self.target: int | None = None

    def open(self) -> LiveCount:
        """What only the source process has, made at the first call that needs it."""
        if self.live is None:
            self.live = LiveCount(self.options["log"])
        return self.live

    def initialOffset(self) -> dict[str, Any]:
        return dict(SENTINEL)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(int(self.options.get("maxrows", str(NO_LIMIT))))

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self.open().fresh_lines()

    def head(self, *, wait: bool) -> int:
        """How far one may read now; waits at the first call, and when told to."""
        if self.target is not None:
            return self.target
        first = self.live is None
        return self.open().fresh_lines() if first or wait else self.open().lines()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        unlimited = isinstance(limit, ReadAllAvailable)
        head = self.head(wait=unlimited)
        resolved = head if self.options.get("startat") == "latest" else 0
        first = resolved if is_sentinel(start) else start["position"]
        end = max(first, head if unlimited else min(head, first + limit.max_rows))
        if is_sentinel(start):
            return ordered({START_KEY: first, "position": end, "v": VERSION})
        return start if end == first else ordered({"position": end, "v": VERSION})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return ordered({"position": self.open().lines(), "v": VERSION})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Lines]:
        if is_sentinel(end):
            return []
        first = end[START_KEY] if is_sentinel(start) else start["position"]
        return cut(self.options, first, end["position"])

    def read(self, partition: Lines) -> Iterator[pa.RecordBatch]:
        return read_lines(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept, so nothing is forgotten."""
