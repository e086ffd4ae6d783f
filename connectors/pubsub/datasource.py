"""The ``pubsub`` format: a subscription's messages, exactly once, at positions that never change; also as a batch.

Publishing is not idempotent, so a task that runs again publishes again. A reader that deduplicates by the attribute
that ``idAttribute`` names (``dedupAttribute``) has each row once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from connectors.core.datasource import (
    BatchWriter,
    CommitMessage,
    ConnectorSource,
    StreamWriter,
    TaskWriter,
    current_partition,
    stream_task,
)
from connectors.core.errors import OptionError
from connectors.core.formats import connector_named
from connectors.pubsub import FORMAT
from connectors.pubsub.schema import DATABRICKS_SCHEMA, STREAM_SCHEMA

_PUBSUB: Final = connector_named("pubsub")

with _PUBSUB.imports():
    import pyarrow as pa

    from connectors.pubsub.options.kinds import SchemaMode
    from connectors.pubsub.options.source import PubSubReadOptions
    from connectors.pubsub.source.stored_rows import ROWS
    from connectors.spool.segments.segment import SpoolRows
    from connectors.spool.source.connector import Feed, SpoolConnector, SpoolStart
    from connectors.spool.source.reader import SpoolBatchReader, SpoolStreamReader
if TYPE_CHECKING:
    from connectors.pubsub.options.sink import PubSubWriteOptions
    from connectors.pubsub.sink.rows import SinkColumns


class PubSubConnector(SpoolConnector["PubSubReadOptions"]):
    """Pub/Sub, as the spool sees it. Tasks have it too, so what calls the service is imported where that is done."""

    format = FORMAT
    options = PubSubReadOptions
    rows = ROWS
    target = "connectors.pubsub.source.fetcher:PubSubFetch"
    offset_column, source_column, time_column = "offset", "subscription", "publishTimestamp"

    def read_options(self, raw: Mapping[str, str], *, streaming: bool | None) -> PubSubReadOptions:
        options: PubSubReadOptions = _PUBSUB.read_options(raw, streaming=streaming)
        return options

    def imports(self) -> AbstractContextManager[None]:
        return _PUBSUB.imports()

    def sources(self, options: PubSubReadOptions) -> tuple[str, ...]:
        return options.subscriptions

    def feeds(self, options: PubSubReadOptions, start: SpoolStart | None) -> Sequence[Feed]:
        """Return what is fetched of each subscription; a query creates and moves them before."""
        from connectors.pubsub.source.micro_batch import external_feeds, prepared_feeds  # noqa: PLC0415 - not for tasks

        return external_feeds(options) if start is None else prepared_feeds(options, start)

    def has_own_ids(self, options: PubSubReadOptions) -> bool:
        return options.dedup_attribute is not None

    def view(self, options: PubSubReadOptions) -> SchemaMode:
        return options.schema_mode

    def schema(self, options: PubSubReadOptions) -> StructType:
        return DATABRICKS_SCHEMA if options.schema_mode is SchemaMode.DATABRICKS else STREAM_SCHEMA

    def columns(self, rows: SpoolRows, sources: tuple[str, ...], view: SchemaMode) -> pa.RecordBatch:
        if view is SchemaMode.DATABRICKS:
            return _databricks_columns(rows.rows)
        batch = rows.with_columns({"subscription": sources[rows.source]})
        return batch if batch.schema.names == STREAM_SCHEMA.names else batch.select(STREAM_SCHEMA.names)


def _databricks_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
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


class PubSubStreamReader(SpoolStreamReader):
    """The reader of a stream."""

    connector = PubSubConnector()


class PubSubBatchReader(SpoolBatchReader):
    """The reader of a batch."""

    connector = PubSubConnector()


class _TaskWriter(TaskWriter):
    connector = _PUBSUB

    def __init__(self, options: PubSubWriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._run = secrets.token_hex(16)

    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        from connectors.pubsub.sink.rows import RowStamp  # noqa: PLC0415 - readers do without
        from connectors.pubsub.sink.writer import publish_batches  # noqa: PLC0415 - as above

        stamp = RowStamp(self._options.id_attribute, *self.naming())
        return CommitMessage(publish_batches(batches, self._columns, self._options, stamp))

    def naming(self) -> tuple[str, int]:
        """Return how the ids of a task's rows begin, and its partition; of a batch they are new for each ``save()``."""
        partition = current_partition()
        return f"{self._run}/0/{partition}/", partition


class PubSubBatchWriter(_TaskWriter, BatchWriter):
    """Publishes a batch."""


class PubSubStreamWriter(_TaskWriter, StreamWriter):
    """Publishes a stream."""

    def naming(self) -> tuple[str, int]:
        """Return the same for a task of a stream: the ids stay when its batch is repeated."""
        if not self._options.id_attribute:
            return super().naming()
        task = stream_task("PUBSUB_NO_BATCH_ID", "idAttribute")
        return f"{task.query}/{task.batch}/{task.partition}/", task.partition


class PubSubDataSource(ConnectorSource):
    """The data source behind ``format("pubsub")``; see ``docs/reference/pubsub.md`` for its options."""

    connector = PubSubConnector()
    stream_reader = PubSubStreamReader
    batch_reader = PubSubBatchReader

    def row_schema(self, options: PubSubReadOptions) -> StructType:
        return self.connector.schema(options)

    def overwrite_error(self) -> OptionError:
        return OptionError("PUBSUB_SAVE_MODE", "A topic cannot be overwritten: published messages stay", "pubsub sink")

    def batch_writer(self, schema: StructType) -> PubSubBatchWriter:
        return PubSubBatchWriter(*self._plan(schema))

    def stream_writer(self, schema: StructType) -> PubSubStreamWriter:
        return PubSubStreamWriter(*self._plan(schema))

    def _plan(self, schema: StructType) -> tuple[PubSubWriteOptions, SinkColumns]:
        from connectors.pubsub.sink.rows import check_columns  # noqa: PLC0415 - readers do without

        options: PubSubWriteOptions = _PUBSUB.write_options(self.options)
        return options, check_columns(schema, options)
