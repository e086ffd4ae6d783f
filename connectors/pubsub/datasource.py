"""The ``pubsub`` format: a subscription's messages, exactly once, at positions that never change; also as a batch.

Spark builds these classes in the source process, in planners and in tasks; see `connectors.core.datasource`.

Publishing is not idempotent, so a task that runs again publishes again. The attribute `idAttribute` names each row,
and a reader that deduplicates by it (``dedupAttribute``) has each row once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from connectors.core.datasource import (
    NO_LIMIT,
    BatchReader,
    BatchWriter,
    CommitMessage,
    ConnectorSource,
    Partition,
    StreamReader,
    StreamWriter,
    TaskWriter,
    current_partition,
    stream_task,
)
from connectors.core.errors import OptionError
from connectors.core.formats import connector_named

_PUBSUB: Final = connector_named("pubsub")

with _PUBSUB.imports():
    from connectors.pubsub.schema import SchemaMode, output, schema_of
    from connectors.pubsub.sink.rows import RowStamp, SinkColumns, check_columns
    from connectors.pubsub.sink.writer import publish_batches
    from connectors.spool.store.base import StoreAccess
    from connectors.spool.stream.slices import Slice, read_slices, read_spool_rows
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from connectors.pubsub.options.sink import PubSubWriteOptions
    from connectors.pubsub.options.source import PubSubReadOptions
    from connectors.spool.stream.micro_batch import SpoolStream

__all__ = [
    "PubSubBatchReader",
    "PubSubBatchWriter",
    "PubSubDataSource",
    "PubSubPartition",
    "PubSubStreamReader",
    "PubSubStreamWriter",
]


@dataclass
class PubSubPartition(Partition):
    """A task's part of a batch.

    Attributes:
        root: the location of the spool.
        subscriptions: full names; slices have indexes of this tuple.
        slices: runs of rows of segments, in the order of their positions.
        mode: which columns to return.
        access: how to reach the object store that the spool is on.
        is_stream: whether a stream reads them, which may not be freed before it commits.
    """

    root: str
    subscriptions: tuple[str, ...]
    slices: tuple[Slice, ...]
    mode: SchemaMode
    access: StoreAccess | None
    is_stream: bool

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        read = read_slices if self.is_stream else read_spool_rows
        for rows in read(self.root, self.slices, self.access):
            yield output(rows, self.subscriptions, self.mode)


class PubSubStreamReader(StreamReader["PubSubReadOptions", "SpoolStream"]):
    """The reader of a stream."""

    connector = _PUBSUB

    def open_stream(self) -> SpoolStream:
        """Open the spool and start the fetchers."""
        from connectors.pubsub.source.micro_batch import open_stream  # noqa: PLC0415 - only the source process needs it

        return open_stream(self.options)

    def max_rows(self) -> int | None:
        """Return the option ``maxRecordsPerTrigger``."""
        return self.options.max_records_per_trigger

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there is nothing new."""
        if isinstance(limit, ReadAllAvailable):
            return self.stream.latest_offset(start, None)
        return self.stream.latest_offset(start, limit.max_rows if isinstance(limit, ReadMaxRows) else NO_LIMIT)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[PubSubPartition]:
        """Return the partitions of a batch: a pure function of the two offsets and the ledger."""
        parts = self.stream.partitions(start, end)
        return _partitions(str(self.options.spool_folder), self.options, parts, is_stream=True)


class PubSubBatchReader(BatchReader):
    """The reader of a batch."""

    connector = _PUBSUB

    def partitions(self) -> Sequence[PubSubPartition]:
        """Plan. Called once a ``load()``: every action reads the same partitions again."""
        from connectors.pubsub.source.batch import plan_batch  # noqa: PLC0415 - loads pydantic

        options: PubSubReadOptions = _PUBSUB.read_options(self._options, streaming=False)
        root, parts = plan_batch(options)
        return _partitions(root, options, parts, is_stream=False)


def _partitions(
    root: str, options: PubSubReadOptions, parts: Iterable[Iterable[Slice]], *, is_stream: bool
) -> list[PubSubPartition]:
    mode, access = options.schema_mode, options.store_access
    return [PubSubPartition(root, options.subscriptions, tuple(part), mode, access, is_stream) for part in parts]


class _TaskWriter(TaskWriter):
    connector = _PUBSUB

    def __init__(self, options: PubSubWriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._run = secrets.token_hex(16)

    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Publish the rows of a task."""
        return CommitMessage(publish_batches(batches, self._columns, self._options, self.stamp()))

    def stamp(self) -> RowStamp:
        """Return what names the rows of a task of a batch: a part that is new for each ``save()`` comes first."""
        partition = current_partition()
        return RowStamp(self._options.id_attribute, f"{self._run}/0/{partition}/", partition)


class PubSubBatchWriter(_TaskWriter, BatchWriter):
    """Publishes a batch."""


class PubSubStreamWriter(_TaskWriter, StreamWriter):
    """Publishes a stream."""

    def stamp(self) -> RowStamp:
        """Return what names the rows of a task of a stream: the same when its batch is repeated."""
        if not self._options.id_attribute:
            return RowStamp(self._options.id_attribute, "", current_partition())
        task = stream_task(
            "PUBSUB_NO_BATCH_ID", "idAttribute", "Set idAttribute=none, and report the version of Spark."
        )
        prefix = f"{task.query}/{task.batch}/{task.partition}/"
        return RowStamp(self._options.id_attribute, prefix, task.partition)


class PubSubDataSource(ConnectorSource):
    """The data source behind ``format("pubsub")``; see ``docs/reference/pubsub.md`` for its options."""

    connector = _PUBSUB
    stream_reader = PubSubStreamReader
    batch_reader = PubSubBatchReader

    def row_schema(self) -> StructType:
        """Return the schema that ``schemaMode`` chooses."""
        options: PubSubReadOptions = _PUBSUB.read_options(self.options, streaming=None)
        return schema_of(options.schema_mode)

    def overwrite_error(self) -> OptionError:
        """Return the error for the save mode overwrite."""
        return OptionError(
            "PUBSUB_SAVE_MODE",
            "A topic cannot be overwritten: messages that were published stay",
            "pubsub sink",
            "Use mode('append').",
        )

    def batch_writer(self, schema: StructType) -> PubSubBatchWriter:
        """Build the writer of a batch."""
        options: PubSubWriteOptions = _PUBSUB.write_options(self.options)
        return PubSubBatchWriter(options, check_columns(schema, options))

    def stream_writer(self, schema: StructType) -> PubSubStreamWriter:
        """Build the writer of a stream."""
        options: PubSubWriteOptions = _PUBSUB.write_options(self.options)
        return PubSubStreamWriter(options, check_columns(schema, options))
