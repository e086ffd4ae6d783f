"""A source of a query and what Spark asks of its reader, apart from the order in which it asks."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, get_args

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tests.support.spark_protocol.errors import ProtocolError
from tests.support.spark_protocol.process import ReaderProcess
from tests.support.spark_protocol.worker import CreatedSource, InProcessWorkers, ReadPlan, TaskWorkers

__all__ = ["STEPS", "Batch", "BatchRead", "Source", "Step", "Stream", "Trigger"]

Trigger = Literal["default", "processing_time", "once", "available_now"]
"""As in Spark: ``default`` polls every 10 ms, ``processing_time`` once an interval, the others end by themselves."""


def known_trigger(name: Trigger) -> Trigger:
    """The trigger itself: a test with a misspelt one would else run another.

    Raises:
        ValueError: there is no such trigger.
    """
    if name not in get_args(Trigger):
        raise ValueError(f"there is no trigger {name!r}, but {', '.join(get_args(Trigger))}")
    return name


Step = Literal["offsets_logged", "sources_committed", "planned", "tasks_done", "sink_written", "batch_committed"]

STEPS: tuple[Step, ...] = (
    "offsets_logged",
    "sources_committed",
    "planned",
    "tasks_done",
    "sink_written",
    "batch_committed",
)
"""The steps of a batch, in order, at which the driver can crash; each is also the failpoint ``protocol.STEP``.

A replayed batch begins at ``planned``: its offsets are in the log already.
"""

_ADMISSION_CONTROL = 1
_TRIGGER_AVAILABLE_NOW = 2
_READ_ALL_AVAILABLE = '{"_type": "ReadAllAvailable"}'


@dataclass(frozen=True)
class Source:
    """A source of a query.

    Args:
        source: the class of the data source, or ``"module:Class"``.
        options: its options; keys are lower-cased on the way, as in Spark.
        schema: a schema given by the user, instead of the source's own.
        scans: how often the plan reads it; 2 stands for a union of the stream with itself.
        name: what ``DataStreamReader.name`` gives. All sources of a query have one, or none has.
    """

    source: type[DataSource] | str
    options: Mapping[str, str] = field(default_factory=dict)
    schema: StructType | None = None
    scans: int = 1
    name: str = ""

    def source_class(self) -> type[DataSource]:
        """The class itself, imported when it was given by name."""
        if not isinstance(self.source, str):
            return self.source
        module, _, name = self.source.partition(":")
        found: type[DataSource] = getattr(importlib.import_module(module), name)
        return found


@dataclass(frozen=True)
class Batch:
    """What one batch was and held."""

    batch_id: int
    starts: tuple[str | None, ...]
    """The start offset of each source, as JSON text; None where the log had none (batch 0 only)."""
    ends: tuple[str, ...]
    """The end offset of each source, as JSON text."""
    tables: tuple[pa.Table, ...]
    """The rows of each partition, in order of the sources and of their partitions."""
    digest: str
    """Digest of rows, order and partitions."""
    replayed: bool
    """Whether its offsets were in the log already when the query started."""

    @property
    def start(self) -> Any:
        """The start offset of the first source as an object; None when the log had none."""
        return None if self.starts[0] is None else json.loads(self.starts[0])

    @property
    def end(self) -> Any:
        """The end offset of the first source as an object."""
        return json.loads(self.ends[0])

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(table.num_rows for table in self.tables)

    def values(self, column: str) -> list[Any]:
        """All values of a column, in order of the partitions."""
        return [value for table in self.tables for value in table.column(column).to_pylist()]


@dataclass
class Stream:
    """One source of a running query."""

    source: Source
    created: CreatedSource
    reader: ReaderProcess
    features: int
    limit: str | None = None
    start: str | None = None
    end: str | None = None
    plan: ReadPlan | None = None

    def ask_for_limit(self, trigger: Trigger) -> None:
        """What Spark asks before the first trigger."""
        if trigger == "available_now":
            if not self.features & _TRIGGER_AVAILABLE_NOW:
                raise ProtocolError("AvailableNow is driven only for readers with SupportsTriggerAvailableNow")
            self.reader.prepare_for_trigger_available_now()
        if self.features & _ADMISSION_CONTROL:
            limit = json.dumps(self.reader.default_read_limit())
            self.limit = _READ_ALL_AVAILABLE if trigger == "once" else limit

    def ask_for_end(self) -> None:
        """Ask where the next batch could end."""
        if self.limit is None:
            self.end = self.reader.latest_offset()
            return
        start = self.reader.initial_offset() if self.start is None else self.start
        self.end = self.reader.latest_offset(start, self.limit)
        self.reader.report_latest_offset()

    @property
    def has_new_data(self) -> bool:
        """Whether start and end differ as text; without a start, as in the first batch, they always do."""
        return self.start is None or self.start != self.end


class BatchRead:
    """A batch read, planned once as by ``load()``; every action reads the same partitions again.

    Args:
        source: the data source class, ``"module:Class"``, or a `Source`.
        options: options of the source, if it is not a `Source`.
        workers: as for `StreamingQuery`.

    Raises:
        TaskFailedError: the source or its reader cannot be made or planned.
    """

    def __init__(
        self,
        source: type[DataSource] | str | Source,
        options: Mapping[str, str] | None = None,
        *,
        workers: InProcessWorkers | int = 1,
    ) -> None:
        source = source if isinstance(source, Source) else Source(source, options or {})
        self._own_workers = isinstance(workers, int)
        self._workers = TaskWorkers(workers) if isinstance(workers, int) else workers
        try:
            self.created = self._workers.create(source.source_class(), source.options, source.schema)
            self.plan = self._workers.plan(self.created, streaming=False)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def collect(self) -> list[pa.Table]:
        """Run one action: read every partition; returns one table for each."""
        return self._workers.read([(self.plan, partition) for partition in self.plan.partitions])

    def close(self) -> None:
        """End its own workers."""
        if self._own_workers:
            self._workers.close()
