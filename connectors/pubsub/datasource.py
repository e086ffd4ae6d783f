"""The ``pubsub`` format: a subscription's messages, each once, at positions that never change; also as a batch.

Spark builds these classes in three kinds of process (the source process of the query, a planner, the tasks), so the
constructors keep the raw options and nothing else. What the source process needs - options, ledger, fetchers - comes
with its first call; what a task needs is in its partition.

The sink of the ``pubsub`` format: every row becomes a message, at least once.

A task returns when the service has every row of it, and fails with the first error of any row. Publishing is not
idempotent, so a task that runs again publishes again: the attribute `idAttribute` names each row for good, and a
reader that drops copies by it (``dedupAttribute``) has each row once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from connectors.core.datasource import check_schema, current_partition, stream_task
from connectors.core.errors import OptionError
from connectors.core.extras import extra_imports
from connectors.core.offsets import SENTINEL
from connectors.core.worker import SentToTasks, settle_sink, settle_worker

with extra_imports("pubsub", "the format pubsub"):
    from connectors.pubsub.schema import SchemaMode, output, schema_of
    from connectors.pubsub.sink.rows import SINK, RowStamp, SinkColumns, check_columns
    from connectors.pubsub.sink.writer import publish_batches
    from connectors.spool.store.base import StoreAccess
    from connectors.spool.stream.planning import Slice
    from connectors.spool.stream.reader import read_slices
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from connectors.pubsub.options.sink import PubSubWriteOptions
    from connectors.pubsub.options.source import PubSubReadOptions
    from connectors.spool.stream.micro_batch import SpoolStream

__all__ = [
    "PubSubBatchReader",
    "PubSubBatchWriter",
    "PubSubCommitMessage",
    "PubSubDataSource",
    "PubSubPartition",
    "PubSubStreamReader",
    "PubSubStreamWriter",
    "batch_writer",
    "stream_writer",
]


_NO_LIMIT = (1 << 63) - 1


@dataclass
class PubSubPartition(InputPartition):
    """A task's part of a batch.

    Attributes:
        root: the location of the spool.
        subscriptions: full names, by the index that the slices have.
        slices: runs of rows of segments, in the order of their positions.
        mode: which columns to give.
        access: how to reach the object store that the spool is on.
    """

    root: str
    subscriptions: tuple[str, ...]
    slices: tuple[Slice, ...]
    mode: SchemaMode
    access: StoreAccess | None = None


class PubSubDataSource(DataSource):
    """The data source behind ``format("pubsub")``; see ``docs/reference/pubsub.md`` for its options."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "pubsub"

    def schema(self) -> StructType:
        """The schema of the rows; bad options fail here, while ``load()`` runs."""
        return schema_of(_parse(self.options, streaming=None).schema_mode)

    def streamReader(self, schema: StructType) -> PubSubStreamReader:
        """The reader of a stream."""
        check_schema(schema, self.schema(), self.name())
        return PubSubStreamReader(dict(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch."""
        check_schema(schema, self.schema(), self.name())
        return PubSubBatchReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> PubSubBatchWriter:  # noqa: FBT001 - Spark's interface
        """The writer of a batch."""
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> PubSubStreamWriter:  # noqa: ARG002, FBT001 - as above
        """The writer of a stream, in any output mode."""
        return stream_writer(self.options, schema)


class PubSubStreamReader(SentToTasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream, as Spark calls it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._stream: SpoolStream | None = None

    def initialOffset(self) -> dict[str, Any]:
        """One constant: Spark calls this more than once, and keeps no answer."""
        return dict(SENTINEL)

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most ``maxRecordsPerTrigger`` rows. Never "all": that is how Trigger.Once is told."""
        return ReadMaxRows(_parse(self._options, streaming=True).max_records_per_trigger or _NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where a bounded run begins."""
        self._open().prepare_for_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself if there is nothing new."""
        return self._open().latest_offset(start, _max_rows(limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest position in the spool, for Spark's progress reports."""
        return None if self._stream is None else self._stream.report_latest_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The partitions of a batch: a pure function of the two offsets and the ledger."""
        options = _parse(self._options, streaming=True)
        return _partitions(str(options.spool_folder), options, self._open().partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, as Arrow batches; runs in Spark's tasks."""
        settle_worker()
        part = cast("PubSubPartition", partition)
        for kept in read_slices(part.root, part.slices, part.access):
            yield output(kept, part.subscriptions, part.mode)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything below an offset."""
        self._open().commit(end)

    def stop(self) -> None:
        """End the fetchers. Spark kills the process instead, as a rule; then the fetchers see their input end."""
        if self._stream is not None:
            self._stream.stop()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_stream": None}

    def _open(self) -> SpoolStream:
        """The stream of this process; the first call opens the spool and starts the fetchers."""
        if self._stream is None:
            from connectors.pubsub.source.micro_batch import open_stream  # noqa: PLC0415 - only the source process needs it

            self._stream = open_stream(_parse(self._options, streaming=True))
        return self._stream


class PubSubBatchReader(SentToTasks, DataSourceReader):
    """The reader of a batch, as Spark calls it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions. Called once a ``load()``: every action reads the same ones again."""
        from connectors.pubsub.source.batch import plan_batch  # noqa: PLC0415 - tasks plan nothing

        options = _parse(self._options, streaming=False)
        root, parts = plan_batch(options)
        # For no partitions Spark would make one of its own, with nothing in it.
        return _partitions(root, options, parts or [[]])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, as Arrow batches; runs in Spark's tasks."""
        from connectors.spool.stream.batch import read_spool_rows  # noqa: PLC0415 - the tasks of a stream need none of it

        settle_worker()
        part = cast("PubSubPartition", partition)
        for kept in read_spool_rows(part.root, part.slices, part.access):
            yield output(kept, part.subscriptions, part.mode)


def _parse(raw: Mapping[str, str], *, streaming: bool | None) -> PubSubReadOptions:
    from connectors.pubsub.options.source import parse_read_options  # noqa: PLC0415 - tasks must not import pydantic

    return parse_read_options(raw, os.environ, streaming=streaming)


def _partitions(root: str, options: PubSubReadOptions, parts: Iterable[Iterable[Slice]]) -> list[InputPartition]:
    mode, access = options.schema_mode, options.store_access
    return [PubSubPartition(root, options.subscriptions, tuple(slices), mode, access) for slices in parts]


def _max_rows(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadAllAvailable):
        return None
    return limit.max_rows if isinstance(limit, ReadMaxRows) else _NO_LIMIT


@dataclass
class PubSubCommitMessage(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        rows: how many rows it has published.
    """

    rows: int


def batch_writer(raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> PubSubBatchWriter:
    """The writer of a batch.

    Raises:
        OptionError: an option, the mode or a column is not legal.
    """
    if overwrite:
        raise OptionError(
            "PUBSUB_SAVE_MODE",
            "A topic cannot be overwritten: messages that were published stay",
            SINK,
            "Use mode('append').",
        )
    options = _writer_parse(raw)
    return PubSubBatchWriter(options, check_columns(schema, options))


def stream_writer(raw: Mapping[str, str], schema: StructType) -> PubSubStreamWriter:
    """The writer of a stream, in any output mode: every row is published.

    Raises:
        OptionError: an option or a column is not legal.
    """
    options = _writer_parse(raw)
    return PubSubStreamWriter(options, check_columns(schema, options))


def _writer_parse(raw: Mapping[str, str]) -> PubSubWriteOptions:
    from connectors.pubsub.options.sink import parse_write_options  # noqa: PLC0415 - tasks must not import pydantic

    return parse_write_options(raw, os.environ)


class PubSubBatchWriter(DataSourceArrowWriter):
    """Publishes a batch. Its stamps begin with a name that is new for each ``save()``."""

    def __init__(self, options: PubSubWriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._run = secrets.token_hex(16)

    @extra_imports("pubsub", "the format pubsub")
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PubSubCommitMessage:
        """Publish the rows of a task."""
        settle_sink()
        partition = current_partition()
        stamp = RowStamp(self._options.id_attribute, f"{self._run}/0/{partition}/", partition)
        return PubSubCommitMessage(publish_batches(iterator, self._columns, self._options, stamp))


class PubSubStreamWriter(DataSourceStreamArrowWriter):
    """Publishes a stream."""

    def __init__(self, options: PubSubWriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    @extra_imports("pubsub", "the format pubsub")
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PubSubCommitMessage:
        """Publish the rows of a task."""
        settle_sink()
        if self._options.id_attribute:
            task = stream_task(
                "PUBSUB_NO_BATCH_ID", "idAttribute", "Set idAttribute=none, and report the version of Spark."
            )
            prefix, partition = f"{task.query}/{task.batch}/{task.partition}/", task.partition
        else:
            prefix, partition = "", current_partition()
        stamp = RowStamp(self._options.id_attribute, prefix, partition)
        return PubSubCommitMessage(publish_batches(iterator, self._columns, self._options, stamp))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: what a task has published is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: what a task has published stays."""
