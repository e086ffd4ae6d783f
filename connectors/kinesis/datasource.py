"""The ``kinesis`` format. Spark builds these classes in the source process, in planners and in tasks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from connectors.core.datasource import (
    BatchReader,
    BatchWriter,
    CommitMessage,
    ConnectorSource,
    Partition,
    StreamReader,
    StreamWriter,
    TaskWriter,
)
from connectors.core.errors import OptionError, ServiceUnavailableError
from connectors.core.formats import connector_named
from connectors.core.processes.spark import ReadAllAvailable, ReadLimit

_KINESIS: Final = connector_named("kinesis")

with _KINESIS.imports():
    from connectors.kinesis.options.client import client_options
    from connectors.kinesis.schema import source_schema
    from connectors.kinesis.shards import ShardRange
    from connectors.kinesis.source.reader import ReadSettings, interleaved, read_range, task_count
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from connectors.kinesis.options.client import KinesisClientOptions
    from connectors.kinesis.options.sink import KinesisWriteOptions
    from connectors.kinesis.options.source import KinesisReadOptions
    from connectors.kinesis.sink.requests import WriteSettings
    from connectors.kinesis.sink.rows import Columns
    from connectors.kinesis.source.micro_batch import KinesisStream

_log = logging.getLogger(__name__)
_PLANNING_SECONDS: Final = 5.0
"""How long the driver waits for the service before a write; then tasks do."""
_AGGREGATE_BYTES: Final = 256 << 10
"""The most bytes of an aggregate and its key: a shard takes 1 MB a second, so it refuses larger ones more often."""
_TASKS_SHARE: Final = 4 / 3
"""While a batch of a stream is read, its tasks make three of four calls, the driver one."""


@lru_cache(maxsize=16)
def _record_limit(client: KinesisClientOptions, stream: str, needing_keys: str, _minute: int) -> int:
    from connectors.kinesis.client.client import shared_client  # noqa: PLC0415 - botocore takes 0.2 s
    from connectors.kinesis.sink.writer import record_limit  # noqa: PLC0415 - readers do without

    return record_limit(shared_client(client), client, stream, needs_keys=needing_keys)


@dataclass
class KinesisPartition(Partition):
    """A task's part of a batch: ranges of shards to read at the same time, and how."""

    parts: tuple[ShardRange, ...]
    settings: ReadSettings

    def read(self) -> Iterator[pa.RecordBatch]:
        if len(self.parts) == 1:
            yield from self._rows(self.parts[0])
            return
        closed = threading.Event()
        yield from interleaved([partial(self._rows, part, closed.wait) for part in self.parts], closed)

    def _rows(self, part: ShardRange, sleep: Callable[[float], object] | None = None) -> Iterator[pa.RecordBatch]:
        if not part.pieces:
            return read_range(part, self.settings, sleep=sleep)
        from connectors.kinesis.fan_out.reader import read_part  # noqa: PLC0415 - polling needs no spool

        return read_part(part, self.settings, sleep)


class KinesisStreamReader(StreamReader["KinesisReadOptions", "KinesisStream"]):
    """The reader of a stream."""

    connector = _KINESIS
    answers_in_parts = True

    def open_stream(self) -> KinesisStream:
        return open_stream(self.options)

    def max_rows(self) -> int | None:
        return self.options.max_records_per_trigger

    def is_limited(self) -> bool:
        return (self.options.max_records_per_trigger or self.options.max_bytes_per_trigger) is not None

    def is_bounded(self) -> bool:
        return self.options.available_now

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self.stream.latest_offset(start, everything=isinstance(limit, ReadAllAvailable))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[KinesisPartition]:
        return _partitions(self.stream.partitions(start, end), self.options, share=_TASKS_SHARE)


class KinesisBatchReader(BatchReader["KinesisReadOptions"]):
    """The reader of a batch."""

    connector = _KINESIS

    def partitions(self) -> Sequence[KinesisPartition]:
        from connectors.kinesis.source.batch import bounds_of, plan_batch  # noqa: PLC0415 - tasks plan nothing

        ranges = plan_batch(self.options, bounds=bounds_of(self.filters))
        return _partitions(ranges, self.options, share=1.0)


def open_stream(options: KinesisReadOptions) -> KinesisStream:
    """Build the stream of a query; only the source process needs it."""
    from connectors.kinesis.source.micro_batch import KinesisStream  # noqa: PLC0415 - tasks plan nothing
    from connectors.kinesis.source.shard_monitor import ShardMonitor  # noqa: PLC0415 - as above

    monitor = ShardMonitor(options)
    if options.consumers:
        from connectors.kinesis.fan_out.monitor import FanOut  # noqa: PLC0415 - polling needs no spool

        monitor.push_source = FanOut(options, monitor)
    return KinesisStream(options, monitor)


def _partitions(ranges: Sequence[ShardRange], options: KinesisReadOptions, *, share: float) -> list[KinesisPartition]:
    settings = read_settings(options, share)
    count = task_count(len(ranges), options)
    return [KinesisPartition(tuple(ranges[number::count]), settings) for number in range(count)]


def read_settings(options: KinesisReadOptions, share: float) -> ReadSettings:
    """Return how tasks read; ``share`` is by what factor the time between two calls is longer than the options say."""
    return ReadSettings(
        client=client_options(options),
        page_records=options.max_records_per_fetch,
        period=options.min_fetch_period * share,
        rate=options.max_fetch_rate * 1e6,
        deaggregate=options.deaggregate.value == "auto",
        fail_on_data_loss=options.fail_on_data_loss,
        spool=str(options.spool_folder) if options.consumers else "",
    )


class _TaskWriter(TaskWriter):
    connector = _KINESIS

    def __init__(self, settings: WriteSettings, columns: Columns) -> None:
        self.settings = settings
        self.columns = columns

    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        from connectors.kinesis.sink.writer import put_batches  # noqa: PLC0415 - readers do without

        return CommitMessage(put_batches(batches, self.columns, self.settings))


class KinesisBatchWriter(_TaskWriter, BatchWriter):
    """Writes a batch, at least once: a task that runs again writes its rows again."""


class KinesisStreamWriter(_TaskWriter, StreamWriter):
    """Writes a stream, at least once."""


class KinesisDataSource(ConnectorSource):
    """The data source behind ``format("kinesis")``; see ``docs/reference/kinesis.md`` for its options."""

    connector = _KINESIS
    stream_reader = KinesisStreamReader
    batch_reader = KinesisBatchReader

    def row_schema(self, options: KinesisReadOptions) -> StructType:  # noqa: ARG002 - other formats need them
        return source_schema()

    def overwrite_error(self) -> OptionError:
        return OptionError("KINESIS_SAVE_MODE", "A stream cannot be overwritten", "kinesis sink")

    def batch_writer(self, schema: StructType) -> KinesisBatchWriter:
        return KinesisBatchWriter(*self._plan(schema))

    def stream_writer(self, schema: StructType) -> KinesisStreamWriter:
        return KinesisStreamWriter(*self._plan(schema))

    def _plan(self, schema: StructType) -> tuple[WriteSettings, Columns]:
        """Check everything on the driver, and ask for the limits here, which spares each task a call."""
        from connectors.kinesis.sink.requests import WriteSettings  # noqa: PLC0415 - readers do without
        from connectors.kinesis.sink.rows import check_columns  # noqa: PLC0415 - readers do without

        options: KinesisWriteOptions = _KINESIS.write_options(self.options)
        columns = check_columns(schema, options.stream)
        client = client_options(options)
        settings = WriteSettings(
            client=client,
            ordered=options.ordered,
            aggregate_bytes=_AGGREGATE_BYTES if options.aggregation else None,
        )
        if options.stream is not None:
            # Spark builds a writer to plan each micro-batch, and another one to commit it; the service allows an
            # account few calls of DescribeStreamSummary a second, so there is one a minute.
            settings = replace(settings, record_limits=_driver_limits(settings, options.stream))
        return settings, columns


def _driver_limits(settings: WriteSettings, stream: str) -> tuple[tuple[str, int], ...]:
    """Return the record limit of a stream, or nothing in an outage: tasks wait that out, as Spark can stop them."""
    from connectors.kinesis.sink.writer import needs_keys  # noqa: PLC0415 - readers do without

    client = settings.client
    is_patient = client.num_retries is None and client.retry_timeout > _PLANNING_SECONDS
    asked = replace(client, retry_timeout=_PLANNING_SECONDS) if is_patient else client
    try:
        limit = _record_limit(asked, stream, needs_keys(settings), int(time.monotonic() // 60))
    except ServiceUnavailableError as error:
        if not is_patient:
            raise
        _log.warning(
            "[RETRYING] The driver could not ask, so the tasks do: [%s] %s (%s).", error.code, error.what, stream
        )
        return ()
    return ((stream, limit),)
