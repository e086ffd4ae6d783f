"""A data source that writes down every call it gets, to see how an engine calls readers.

The rows are the numbers 0, 1, 2, ... below the number in the file ``head`` of the folder ``control``. Every call of
the source and its readers is appended to the file ``trace`` as one line of JSON. The option ``variant`` picks a
deviation from good behaviour, because the traces also record what an engine does with bad readers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StructField, StructType

SCHEMA = StructType([StructField("value", LongType(), nullable=False)])
INITIAL = {"initial": True}
NO_LIMIT = 2**63 - 1

_ROLES = {
    "python_streaming_source_runner.py": "source",
    "plan_data_source_read.py": "planner",
    "create_data_source.py": "creator",
}


def _role() -> str:
    """The process this code runs in, told by the modules of PySpark on the call stack; a task otherwise."""
    frame = sys._getframe()
    while frame is not None:
        if (role := _ROLES.get(Path(frame.f_code.co_filename).name)) and frame.f_code.co_name in (
            "main",
            "_main",
        ):
            return role
        frame = frame.f_back
    return "task"


class Trace:
    """Appends calls to a file that several processes share."""

    def __init__(self, options: dict[str, str]) -> None:
        self.path = options["trace"]
        self.label = options.get("label", "a")

    def write(self, call: str, arguments: Sequence[Any] = (), result: Any = None) -> None:
        role = "source" if call == "signal" else _role()  # a signal may come when no code of PySpark runs any more
        event = {"source": self.label, "role": role, "call": call, "args": list(arguments), "result": result}
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, json.dumps(event).encode() + b"\n")
        finally:
            os.close(descriptor)


@dataclass
class Range(InputPartition):
    """The rows from start to below end."""

    start: int
    end: int


def _cut(start: int, end: int, parts: int) -> list[Range]:
    bounds = [start + (end - start) * part // parts for part in range(parts + 1)]
    return [Range(low, high) for low, high in pairwise(bounds) if low < high]


def _rows(partition: Range) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([pa.field("value", pa.int64(), nullable=False)])
    yield pa.record_batch([pa.array(range(partition.start, partition.end), pa.int64())], schema=schema)


class TracedSource(DataSource):
    """The source; see the module for its options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        Trace(options).write("DataSource.__init__", [sorted(key for key in options if key != "trace")])

    @classmethod
    def name(cls) -> str:
        return "traced"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's signature
        if self.options.get("variant") == "old_signature":
            return OldSignatureReader(dict(self.options))
        return TracedStreamReader(dict(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return TracedBatchReader(dict(self.options))


class TracedBatchReader(DataSourceReader):
    """Reads all rows there are when the read is planned."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.trace = Trace(options)
        self.trace.write("DataSourceReader.__init__")

    def partitions(self) -> list[Range]:
        head = int((Path(self.options["control"]) / "head").read_text())
        answer = _cut(0, head, 2)
        self.trace.write("partitions", [], [[part.start, part.end] for part in answer])
        return answer

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:
        self.trace.write("read", [[partition.start, partition.end]])
        yield from _rows(partition)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.control = Path(options["control"])
        self.variant = options.get("variant", "")
        self.limit = int(options.get("limit", NO_LIMIT))
        self.target: int | None = None
        self.trace = Trace(options)
        self.trace.write("DataSourceStreamReader.__init__")
        if _role() == "source":
            signal.signal(signal.SIGTERM, self._ended)

    def _ended(self, number: int, _frame: object) -> None:
        self.trace.write("signal", [signal.Signals(number).name])
        os._exit(1)

    def _head(self) -> int:
        return int((self.control / "head").read_text())

    def _count(self) -> int:
        counter = self.control / "initial_calls"
        calls = 1 + (int(counter.read_text()) if counter.exists() else 0)
        counter.write_text(str(calls))
        return calls

    def initialOffset(self) -> dict[str, Any]:
        answer = {"pos": 10 * self._count()} if self.variant == "drifting_initial" else INITIAL
        self.trace.write("initialOffset", [], answer)
        return answer

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
        if end is None or (self.variant == "raise_in_partitions" and self._head() < 0):
            self.trace.write("partitions", [start, end], "raises")
            message = "this reader cannot plan that"
            raise ValueError(message)
        first = end.get("_start", 0) if start == INITIAL else start["pos"]
        answer = _cut(first, end.get("pos", first), 2)
        self.trace.write("partitions", [start, end], [[part.start, part.end] for part in answer])
        return answer

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:
        self.trace.write("read", [[partition.start, partition.end]])
        yield from _rows(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self.trace.write("commit", [end])

    def stop(self) -> None:
        self.trace.write("stop")


class TracedStreamReader(_StreamReader, SupportsTriggerAvailableNow):
    """A reader with admission control."""

    def getDefaultReadLimit(self) -> ReadLimit:
        self.trace.write("getDefaultReadLimit", [], ["ReadMaxRows", self.limit])
        return ReadMaxRows(self.limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self._head()
        self.trace.write("prepareForTriggerAvailableNow")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any] | None:
        shown = [type(limit).__name__, *vars(limit).values()]
        try:
            answer = self._latest(start, limit)
        except ValueError:
            self.trace.write("latestOffset", [start, shown], "raises")
            raise
        self.trace.write("latestOffset", [start, shown], list(answer.items()) if answer is not None else None)
        return answer

    def _latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any] | None:
        head = self._head() if self.target is None else self.target
        if head < 0:
            if self.variant == "none":
                return None
            if self.variant == "raise_in_latest":
                message = "this reader has no offset"
                raise ValueError(message)
            return start
        if self.variant == "drifting_initial":
            return {"pos": start["pos"] + 5 if start["pos"] < 15 else start["pos"]}
        position = 0 if start == INITIAL else start["pos"]
        end = head if isinstance(limit, ReadAllAvailable) else min(head, position + limit.max_rows)
        if start == INITIAL:
            return {"_start": position, "pos": end}
        if end <= position:
            return dict(reversed(start.items())) if self.variant == "other_key_order" else start
        return {"pos": end, "v": 1} if self.variant == "other_key_order" else {"pos": end}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        self.trace.write("reportLatestOffset")
        return None


class OldSignatureReader(_StreamReader):
    """A reader without admission control, as before Spark 4.2."""

    def latestOffset(self) -> dict[str, Any]:
        answer = {"pos": self._head()}
        self.trace.write("latestOffset", [], list(answer.items()))
        return answer
