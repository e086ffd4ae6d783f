"""The ``kinesis`` format: streams of Amazon Kinesis as batch and as stream.

Spark builds these classes in three kinds of process (the source process of a query, a planner, the tasks), so the
constructors keep the raw options and nothing else.

The sink of the ``kinesis`` format.

A task returns when the service has every row of it, and fails with the first row that it cannot put; nothing stays
behind in a queue. A task that is tried again puts its rows again: at least once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

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

from connectors.core.datasource import check_schema
from connectors.core.errors import OptionError
from connectors.core.extras import extra_imports
from connectors.core.offsets import SENTINEL
from connectors.core.worker import SentToTasks, settle_sink, settle_worker

with extra_imports("kinesis", "the format kinesis"):
    from connectors.kinesis.shards import ShardRange
    from connectors.kinesis.sink.rows import Columns, check_columns
    from connectors.kinesis.sink.writer import StreamLimits, WriteSettings, put_batches, stream_limits
    from connectors.kinesis.source.reader import ReadSettings, read_range
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from connectors.kinesis.options.client import KinesisClientOptions
    from connectors.kinesis.options.source import KinesisReadOptions
    from connectors.kinesis.source.micro_batch import KinesisStream

__all__ = [
    "KinesisBatchReader",
    "KinesisBatchWriter",
    "KinesisCommitMessage",
    "KinesisDataSource",
    "KinesisPartition",
    "KinesisStreamReader",
    "KinesisStreamWriter",
    "batch_writer",
    "forget_streams",
    "stream_writer",
]


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
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KinesisStreamWriter:  # noqa: ARG002, FBT001 - as above
        """The writer of a stream, in any output mode."""
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
            self._stream = open_stream(self._parse())
        return self._stream


def open_stream(options: KinesisReadOptions) -> KinesisStream:
    """Build the stream of a query; only the source process needs it."""
    from connectors.kinesis.source.micro_batch import KinesisStream  # noqa: PLC0415 - tasks need none of it
    from connectors.kinesis.source.shard_monitor import ShardMonitor  # noqa: PLC0415 - as above

    monitor = ShardMonitor(options)
    if options.consumers:
        from connectors.kinesis.fan_out.monitor import FanOut  # noqa: PLC0415 - polling needs no spool

        monitor.push_source = FanOut(options, monitor)
    return KinesisStream(options, monitor)


class KinesisBatchReader(SentToTasks, DataSourceReader):
    """The reader of a batch, as Spark calls it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions, with all ends found now."""
        from connectors.kinesis.source.batch import plan_batch  # noqa: PLC0415 - tasks plan nothing

        options = _parse(self._options, streaming=False)
        # With no partition at all, PySpark hands read() one that is not ours.
        return _partitions(plan_batch(options), options, share=1.0) or [KinesisPartition((), _settings(options, 1.0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, as Arrow batches; runs in Spark's tasks."""
        yield from _read(cast("KinesisPartition", partition))


def _parse(raw: Mapping[str, str], *, streaming: bool | None) -> KinesisReadOptions:
    from connectors.kinesis.options.source import parse_read_options  # noqa: PLC0415 - tasks must not import pydantic

    return parse_read_options(raw, os.environ, streaming=streaming)


def _partitions(ranges: Sequence[ShardRange], options: KinesisReadOptions, *, share: float) -> list[KinesisPartition]:
    """Ranges dealt out to tasks.

    Args:
        ranges: of shards.
        options: the parsed options.
        share: what the tasks' time between two calls is longer by.
    """
    settings = _settings(options, share)
    count = len(ranges)
    if options.max_partitions is not None:
        count = min(count, options.max_partitions)
    return [KinesisPartition(tuple(ranges[number::count]), settings) for number in range(count)]


def _settings(options: KinesisReadOptions, share: float) -> ReadSettings:
    from connectors.kinesis.options.client import client_options  # noqa: PLC0415 - tasks plan nothing

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
                from connectors.kinesis.fan_out.reader import read_part  # noqa: PLC0415 - polling needs no spool

                yield from read_part(part, partition.settings)
            else:
                yield from read_range(part, partition.settings)


@dataclass
class KinesisCommitMessage(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        rows: how many rows it has put.
    """

    rows: int


def batch_writer(raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> KinesisBatchWriter:
    """The writer of a batch.

    Raises:
        ConnectorError: an option, the mode or a column is not legal, or the stream is not there.
    """
    if overwrite:
        raise OptionError(
            "KINESIS_SAVE_MODE",
            "A stream cannot be overwritten",
            "kinesis sink",
            "Use mode('append').",
        )
    return KinesisBatchWriter(*_plan(raw, schema))


def stream_writer(raw: Mapping[str, str], schema: StructType) -> KinesisStreamWriter:
    """The writer of a stream, in any output mode: every row is appended.

    Raises:
        ConnectorError: an option or a column is not legal, or the stream is not there.
    """
    return KinesisStreamWriter(*_plan(raw, schema))


def _plan(raw: Mapping[str, str], schema: StructType) -> tuple[WriteSettings, Columns]:
    """Check everything once on the driver; what is learnt there spares each task a call."""
    from connectors.kinesis.options.client import client_options  # noqa: PLC0415 - only where rows are written
    from connectors.kinesis.options.sink import parse_write_options  # noqa: PLC0415 - tasks must not import pydantic

    options = parse_write_options(raw, os.environ)
    columns = check_columns(schema, options.stream)
    client = client_options(options)
    known: tuple[tuple[str, StreamLimits], ...] = ()
    if options.stream is not None:
        known = ((options.stream, _limits(client, options.stream, ordered=options.ordered)),)
    settings = WriteSettings(
        client=client,
        ordered=options.ordered,
        records=options.max_records_per_request,
        request_bytes=options.max_bytes_per_request,
        known=known,
    )
    return settings, columns


_FRESH_SECONDS: Final = 60.0
_MOST_KNOWN: Final = 16
_known: dict[tuple[KinesisClientOptions, str, bool], tuple[float, StreamLimits]] = {}
"""The limits of streams, and when they were asked for."""


def _limits(client: KinesisClientOptions, stream: str, *, ordered: bool) -> StreamLimits:
    """The limits of a stream, asked for once a minute.

    Spark makes a writer to plan each micro-batch, and another one to commit it; the service allows an account few
    calls of DescribeStreamSummary a second.
    """
    from connectors.kinesis.client.shared import shared_client  # noqa: PLC0415 - as above

    asked, limits = _known.get((client, stream, ordered), (0.0, None))
    if limits is None or time.monotonic() - asked > _FRESH_SECONDS:
        limits = stream_limits(shared_client(client), client, stream, ordered=ordered)
        _known.pop((client, stream, ordered), None)
        _known[client, stream, ordered] = time.monotonic(), limits
        if len(_known) > _MOST_KNOWN:
            del _known[next(iter(_known))]
    return limits


def forget_streams() -> None:
    """Ask for the limits of each stream again; for tests, whose streams change under one name."""
    _known.clear()


class KinesisBatchWriter(DataSourceArrowWriter):
    """Writes a batch, at least once."""

    def __init__(self, settings: WriteSettings, columns: Columns) -> None:
        self._settings = settings
        self._columns = columns

    @extra_imports("kinesis", "the format kinesis")
    def write(self, iterator: Iterator[pa.RecordBatch]) -> KinesisCommitMessage:
        """Write the rows of a task."""
        settle_sink()
        return KinesisCommitMessage(put_batches(iterator, self._columns, self._settings))


class KinesisStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, at least once."""

    def __init__(self, settings: WriteSettings, columns: Columns) -> None:
        self._settings = settings
        self._columns = columns

    @extra_imports("kinesis", "the format kinesis")
    def write(self, iterator: Iterator[pa.RecordBatch]) -> KinesisCommitMessage:
        """Write the rows of a task."""
        settle_sink()
        return KinesisCommitMessage(put_batches(iterator, self._columns, self._settings))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: what a task has put is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: what a task has put stays."""
