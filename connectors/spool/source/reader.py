"""The readers of every source on a spool, and what their tasks read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from connectors.core.datasource import NO_LIMIT, BatchReader, Partition, ReadingSource, StreamReader
from connectors.core.options.filters import allows, interval, time_interval
from connectors.core.processes.spark import ReadAllAvailable, ReadLimit, ReadMaxRows
from connectors.spool.options import SpoolOptions
from connectors.spool.segments.segment import Slice, read_slices
from connectors.spool.source.connector import SpoolConnector
from connectors.spool.store.base import StoreAccess

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from connectors.spool.stream.micro_batch import SpoolStream

S = TypeVar("S", bound=SpoolOptions)


@dataclass
class SpoolPartition(Partition):
    """A task's part of a batch: slices of a spool in the order of their positions, with indexes of `sources`.

    A stream reads what nobody frees before it commits; a batch reads what a query may free meanwhile.
    """

    connector: SpoolConnector[Any]
    root: str
    sources: tuple[str, ...]
    slices: tuple[Slice, ...]
    view: Any
    access: StoreAccess | None
    is_stream: bool

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        if self.is_stream:
            read = read_slices
        else:
            from connectors.spool.stream.slices import read_spool_rows as read  # noqa: PLC0415 - it reads the ledger
        for rows in read(self.root, self.slices, self.access, self.connector.rows):
            yield self.connector.columns(rows, self.sources, self.view)


class SpoolStreamReader(StreamReader[SpoolOptions, "SpoolStream"]):
    """The reader of a stream, of the connector that is given or that a subclass names."""

    connector: SpoolConnector[Any]

    def __init__(self, options: Mapping[str, str], connector: SpoolConnector[Any] | None = None) -> None:
        super().__init__(options)
        self.connector = connector or type(self).connector

    def open_stream(self) -> SpoolStream:
        """Open the spool and start the fetchers."""
        from connectors.spool.source.start import open_stream  # noqa: PLC0415 - only the source process needs it

        return open_stream(self.connector, self.options)

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

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[SpoolPartition]:
        """Return the partitions of a batch: a pure function of the two offsets and the ledger."""
        parts, root = self.stream.partitions(start, end), str(self.options.spool_folder)
        return _partitions(self.connector, self.options, root, parts, is_stream=True)


class SpoolBatchReader(BatchReader[SpoolOptions]):
    """The reader of a batch, of the connector that is given or that a subclass names."""

    connector: SpoolConnector[Any]

    def __init__(self, options: Mapping[str, str], connector: SpoolConnector[Any] | None = None) -> None:
        super().__init__(options)
        self.connector = connector or type(self).connector

    def partitions(self) -> Sequence[SpoolPartition]:
        """Plan the read. Called once per ``load()``: every action reads the same partitions again."""
        from connectors.spool.stream.slices import SpoolRange, plan_spool_rows  # noqa: PLC0415 - tasks plan nothing

        connector, options = self.connector, self.options
        root, ends = str(options.spool_folder), (options.starting_position, options.ending_position)
        sources = connector.sources(options)
        wanted = SpoolRange(
            *ends,
            options.partition_bytes,
            options.max_partitions,
            interval(self.filters, connector.offset_column),
            time_interval(self.filters, connector.time_column),
            [index for index, name in enumerate(sources) if allows(self.filters, **{connector.source_column: name})],
        )
        parts = plan_spool_rows(root, connector.format, sources, wanted, options.store_access)
        return _partitions(connector, options, root, parts, is_stream=False)


class SpoolDataSource(ReadingSource):
    """The data source of a format that is read and not written; a subclass names its connector."""

    connector: SpoolConnector[Any]

    def new_stream_reader(self) -> SpoolStreamReader:
        """Build the reader of a stream."""
        return SpoolStreamReader(self.options, self.connector)

    def new_batch_reader(self) -> SpoolBatchReader:
        """Build the reader of a batch."""
        return SpoolBatchReader(self.options, self.connector)

    def row_schema(self, options: SpoolOptions) -> StructType:
        """Return the columns that the connector gives."""
        return self.connector.schema(options)


def _partitions(
    connector: SpoolConnector[S], options: S, root: str, parts: Iterable[Iterable[Slice]], *, is_stream: bool
) -> list[SpoolPartition]:
    sources, view, access = connector.sources(options), connector.view(options), options.store_access
    return [SpoolPartition(connector, root, sources, tuple(part), view, access, is_stream) for part in parts]
