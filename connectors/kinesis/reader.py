"""The ``kinesis`` format: streams of Amazon Kinesis as batch and as stream.

Spark builds these classes in three kinds of process (the source process of a query, a planner, the tasks), so the
constructors keep the raw options and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from connectors.core.datasource import check_schema
from connectors.core.extras import extra_imports
from connectors.core.offsets import SENTINEL
from connectors.core.worker import SentToTasks, settle_worker

with extra_imports("kinesis", "the format kinesis"):
    from connectors.kinesis.read import ReadSettings, read_range
    from connectors.kinesis.shards import ShardRange

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from connectors.kinesis.options import KinesisReadOptions
    from connectors.kinesis.stream import KinesisStream
    from connectors.kinesis.writer import KinesisBatchWriter, KinesisStreamWriter

__all__ = ["KinesisBatchReader", "KinesisDataSource", "KinesisPartition", "KinesisStreamReader"]

_NO_LIMIT = (1 << 63) - 1
_OF_TASKS = 4 / 3
"""While a batch is read, its tasks make three of four calls, the driver one."""


@dataclass
class KinesisPartition(InputPartition):
    """A task's part of a batch.

    Attributes:
        parts: the ranges of shards to read, one after the other.
        settings: how to read them.
    """

    parts: tuple[ShardRange, ...]
    settings: ReadSettings


class KinesisDataSource(DataSource):
    """The data source behind ``format("kinesis")``; see ``docs/reference/kinesis.md`` for its options."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "kinesis"

    def schema(self) -> StructType:
        """The schema of the rows; bad options fail here, while ``load()`` runs."""
        from connectors.kinesis.schema import SOURCE_SCHEMA  # noqa: PLC0415 - tasks need neither

        _parse(self.options, streaming=None)
        return SOURCE_SCHEMA

    def streamReader(self, schema: StructType) -> KinesisStreamReader:
        """The reader of a stream."""
        check_schema(schema, self.schema(), self.name())
        return KinesisStreamReader(dict(self.options))

    def reader(self, schema: StructType) -> KinesisBatchReader:
        """The reader of a batch."""
        check_schema(schema, self.schema(), self.name())
        return KinesisBatchReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> KinesisBatchWriter:  # noqa: FBT001 - Spark's interface
        """The writer of a batch."""
        from connectors.kinesis.writer import batch_writer  # noqa: PLC0415 - readers need none

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KinesisStreamWriter:  # noqa: ARG002, FBT001 - as above
        """The writer of a stream, in any output mode."""
        from connectors.kinesis.writer import stream_writer  # noqa: PLC0415 - as above

        return stream_writer(self.options, schema)


class KinesisStreamReader(SentToTasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream, as Spark calls it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._parsed: KinesisReadOptions | None = None
        self._stream: KinesisStream | None = None

    def initialOffset(self) -> dict[str, Any]:
        """One constant: Spark calls this more than once, and keeps no answer."""
        return dict(SENTINEL)

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most ``maxRecordsPerTrigger`` records. Never "all": that is how Trigger.Once is told."""
        return ReadMaxRows(self._parse().max_records_per_trigger or _NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note that this is a bounded run."""
        self._open().prepare_for_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself if there is nothing new."""
        return self._open().latest_offset(start, everything=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest records seen, for Spark's progress reports."""
        return None if self._stream is None else self._stream.report_latest_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The partitions of a batch: a function of the two offsets."""
        return _partitions(self._open().partitions(start, end), self._parse(), share=_OF_TASKS)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, as Arrow batches; runs in Spark's tasks."""
        yield from _read(cast("KinesisPartition", partition))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything below an offset."""
        self._open().commit(end)

    def stop(self) -> None:
        """End the threads. Spark kills the process instead, as a rule."""
        if self._stream is not None:
            self._stream.stop()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_parsed": None, "_stream": None}

    def _parse(self) -> KinesisReadOptions:
        if self._parsed is None:
            self._parsed = _parse(self._options, streaming=True)
        return self._parsed

    def _open(self) -> KinesisStream:
        """The stream of this process."""
        if self._stream is None:
            from connectors.kinesis.stream import KinesisStream  # noqa: PLC0415 - only the source process needs it

            self._stream = KinesisStream(self._parse())
        return self._stream


class KinesisBatchReader(SentToTasks, DataSourceReader):
    """The reader of a batch, as Spark calls it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions, with all ends found now."""
        from connectors.kinesis.batch import plan_batch  # noqa: PLC0415 - tasks plan nothing

        options = _parse(self._options, streaming=False)
        # With no partition at all, PySpark hands read() one that is not ours.
        return _partitions(plan_batch(options), options, share=1.0) or [KinesisPartition((), _settings(options, 1.0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, as Arrow batches; runs in Spark's tasks."""
        yield from _read(cast("KinesisPartition", partition))


def _parse(raw: Mapping[str, str], *, streaming: bool | None) -> KinesisReadOptions:
    from connectors.kinesis.options import parse_read_options  # noqa: PLC0415 - tasks must not import pydantic

    return parse_read_options(raw, os.environ, streaming=streaming)


def _partitions(ranges: Sequence[ShardRange], options: KinesisReadOptions, *, share: float) -> list[KinesisPartition]:
    """Ranges dealt out to tasks.

    Args:
        ranges: of shards.
        options: the parsed options.
        share: what the tasks' time between two calls is longer by.
    """
    settings = _settings(options, share)
    count = -(-len(ranges) // (options.shards_per_task or 1))
    if options.max_partitions is not None:
        count = min(count, options.max_partitions)
    return [KinesisPartition(tuple(ranges[number::count]), settings) for number in range(count)]


def _settings(options: KinesisReadOptions, share: float) -> ReadSettings:
    from connectors.kinesis.client_options import client_options  # noqa: PLC0415 - tasks plan nothing

    return ReadSettings(
        client=client_options(options),
        page_records=options.max_records_per_fetch,
        period=options.min_fetch_period * share,
        rate=options.max_fetch_rate * 1e6,
        deaggregate=options.deaggregate.value == "auto",
        fail_on_data_loss=options.fail_on_data_loss,
        spool=str(options.spool_folder) if options.consumers else "",
    )


def _read(partition: KinesisPartition) -> Iterator[pa.RecordBatch]:
    settle_worker()
    with extra_imports("kinesis", "the format kinesis"):
        for part in partition.parts:
            if part.pieces:
                from connectors.kinesis.read_spooled import read_part  # noqa: PLC0415 - polling needs no spool

                yield from read_part(part, partition.settings)
            else:
                yield from read_range(part, partition.settings)
