"""The ``pubsub`` format: a subscription's messages, exactly once, at positions that never change; also as a batch.

Publishing is not idempotent, so a task that runs again publishes again. A reader that deduplicates by the attribute
that ``idAttribute`` names (``dedupAttribute``) has each row once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

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
from connectors.core.processes.spark import ReadAllAvailable, ReadLimit, ReadMaxRows
from connectors.pubsub.schema import DATABRICKS_SCHEMA, STREAM_SCHEMA

_PUBSUB: Final = connector_named("pubsub")

with _PUBSUB.imports():
    import numpy as np
    import pyarrow as pa

    from connectors.pubsub.options.kinds import SchemaMode
    from connectors.pubsub.sink.rows import RowStamp, SinkColumns, check_columns
    from connectors.pubsub.sink.writer import publish_batches
    from connectors.pubsub.source.stored_rows import ROWS
    from connectors.spool.store.base import StoreAccess
    from connectors.spool.stream.slices import Slice, SpoolRows, read_slices, read_spool_rows
if TYPE_CHECKING:
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
    "spark_rows",
]


@dataclass
class PubSubPartition(Partition):
    """A task's part of a batch: slices of a spool in the order of their positions, with indexes of `subscriptions`.

    A stream reads what nobody frees before it commits; a batch reads what a query may free meanwhile.
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
        for rows in read(self.root, self.slices, self.access, ROWS):
            yield spark_rows(rows, self.subscriptions, self.mode)


def spark_rows(spool_rows: SpoolRows, subscriptions: tuple[str, ...], mode: SchemaMode) -> pa.RecordBatch:
    """Return rows of a spool in the columns of a mode; `subscriptions` are the full paths of the spool's sources."""
    rows = spool_rows.rows
    if mode is SchemaMode.NATIVE:
        first = spool_rows.position
        columns = [
            *rows.columns,
            pa.repeat(pa.scalar(subscriptions[spool_rows.source], pa.string()), len(rows)),
            pa.array(np.arange(first, first + len(rows), dtype=np.int64)),
        ]
        names = [*rows.schema.names, "subscription", "offset"]
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        return batch if names == STREAM_SCHEMA.names else batch.select(STREAM_SCHEMA.names)
    published = rows.column("publishTimestamp").cast(pa.int64())
    missing = published.is_null().to_numpy(zero_copy_only=False)
    milliseconds = published.fill_null(0).to_numpy() // 1000
    attributes = [
        None if pairs is None else json.dumps(dict(pairs), ensure_ascii=False, separators=(",", ":"))
        for pairs in rows.column("attributes").to_pylist()
    ]
    columns = [
        rows.column("messageId"),
        rows.column("payload"),
        pa.array(attributes, pa.string()),
        pa.array(milliseconds, mask=missing),
    ]
    return pa.RecordBatch.from_arrays(columns, names=DATABRICKS_SCHEMA.names)


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

    def is_limited(self) -> bool:
        """Return whether an option limits a batch."""
        return (self.options.max_records_per_trigger or self.options.max_bytes_per_trigger) is not None

    def is_bounded(self) -> bool:
        """Return the option ``availableNow``."""
        return self.options.available_now

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
        from connectors.pubsub.source.batch import plan_batch  # noqa: PLC0415 - not for tasks

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
            return super().stamp()
        task = stream_task(
            "PUBSUB_NO_BATCH_ID", "idAttribute", "Set idAttribute=none, and report the version of Spark."
        )
        return RowStamp(self._options.id_attribute, f"{task.query}/{task.batch}/{task.partition}/", task.partition)


class PubSubDataSource(ConnectorSource):
    """The data source behind ``format("pubsub")``; see ``docs/reference/pubsub.md`` for its options."""

    connector = _PUBSUB
    stream_reader = PubSubStreamReader
    batch_reader = PubSubBatchReader

    def row_schema(self) -> StructType:
        """Return the schema that ``schemaMode`` chooses."""
        options: PubSubReadOptions = _PUBSUB.read_options(self.options, streaming=None)
        return DATABRICKS_SCHEMA if options.schema_mode is SchemaMode.DATABRICKS else STREAM_SCHEMA

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
