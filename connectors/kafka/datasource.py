"""The ``kafka_py`` format: topics of Kafka as batch and as stream, with the options, columns and rules of Spark's own.

Spark builds these classes in three kinds of process (the source process of a query, a planner, the tasks), so the
constructors keep the raw options and nothing else.

The sink of the ``kafka_py`` format.

A task returns when every row of it is acknowledged, and fails with the first error of any row; nothing stays behind in
a queue. The producer is kept from task to task.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from connectors.core.datasource import check_schema
from connectors.core.errors import OptionError, SourceGoneError
from connectors.core.extras import extra_imports
from connectors.core.offsets import SENTINEL
from connectors.core.worker import SentToTasks, settle_sink, settle_worker

with extra_imports("kafka", "the format kafka_py"):
    from connectors.kafka.options.subscription import Subscribe
    from connectors.kafka.sink.exactly_once import ExactlyOnce, check_layout
    from connectors.kafka.sink.rows import Columns, check_columns
    from connectors.kafka.sink.task import query_run, stream_task
    from connectors.kafka.sink.writer import produce_batches
    from connectors.kafka.source.reader import ReadSettings, read_range
    from connectors.kafka.source.splits import OffsetRange
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from connectors.kafka.options.client import ClientSettings
    from connectors.kafka.options.sink import KafkaWriteOptions
    from connectors.kafka.options.source import KafkaReadOptions
    from connectors.kafka.source.micro_batch import KafkaStream

__all__ = [
    "KafkaBatchReader",
    "KafkaBatchWriter",
    "KafkaCommitMessage",
    "KafkaDataSource",
    "KafkaPartition",
    "KafkaStreamReader",
    "KafkaStreamWriter",
    "batch_writer",
    "stream_writer",
]


_NO_LIMIT = (1 << 63) - 1


@dataclass
class KafkaPartition(InputPartition):
    """A task's part of a batch.

    Attributes:
        part: the offsets to read.
        settings: how to read them.
    """

    part: OffsetRange
    settings: ReadSettings


class KafkaDataSource(DataSource):
    """The data source behind ``format("kafka_py")``; see ``docs/reference/kafka.md`` for its options."""

    @classmethod
    def name(cls) -> str:
        """The name of the format; Spark keeps ``kafka`` for its own."""
        return "kafka_py"

    def schema(self) -> StructType:
        """The schema of the rows; bad options fail here, while ``load()`` runs."""
        from connectors.kafka.client.factory import check_settings  # noqa: PLC0415 - tasks need none

        options = _parse(self.options, streaming=None)
        check_settings(options.client)
        return _schema(options)

    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        """The reader of a stream."""
        check_schema(schema, _schema(_parse(self.options, streaming=None)), self.name())
        return KafkaStreamReader(dict(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch."""
        check_schema(schema, _schema(_parse(self.options, streaming=None)), self.name())
        return KafkaBatchReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:  # noqa: FBT001 - Spark's interface
        """The writer of a batch."""
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: ARG002, FBT001 - as above
        """The writer of a stream, for the output modes append and complete: every row is appended."""
        return stream_writer(self.options, schema)


class KafkaStreamReader(SentToTasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream, as Spark calls it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._run = ""
        self._parsed: KafkaReadOptions | None = None
        self._stream: KafkaStream | None = None

    def initialOffset(self) -> dict[str, Any]:
        """One constant: Spark calls this more than once, and keeps no answer."""
        return dict(SENTINEL)

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most ``maxOffsetsPerTrigger`` rows. Never "all": that is how Trigger.Once is told."""
        return ReadMaxRows(self._parse().max_offsets_per_trigger or _NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note that this is a bounded run."""
        self._open().prepare_for_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself if there is nothing new."""
        return self._open().latest_offset(start, everything=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest offsets, for Spark's progress reports."""
        return None if self._stream is None else self._stream.report_latest_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The partitions of a batch: a function of the two offsets and of Kafka."""
        ranges = self._open().partitions(start, end)
        settings = _settings(self._parse(), self._run, streaming=True)
        return [KafkaPartition(part, settings) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, as Arrow batches; runs in Spark's tasks."""
        yield from _read(cast("KafkaPartition", partition))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything below an offset."""
        self._open().commit(end)

    def stop(self) -> None:
        """Close the connections. Spark kills the process instead, as a rule."""
        if self._stream is not None:
            self._stream.stop()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_run": "", "_parsed": None, "_stream": None}

    def _parse(self) -> KafkaReadOptions:
        if self._parsed is None:
            self._parsed = _parse(self._options, streaming=True)
        return self._parsed

    def _open(self) -> KafkaStream:
        """The stream of this process; the first call connects."""
        if self._stream is None:
            from connectors.kafka.source.micro_batch import KafkaStream  # noqa: PLC0415 - only the source process needs it

            self._stream = KafkaStream(self._parse())
            self._run = secrets.token_hex(8)
        return self._stream


class KafkaBatchReader(SentToTasks, DataSourceReader):
    """The reader of a batch, as Spark calls it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._filters: tuple[Filter, ...] = ()

    @property
    def pushFilters(self) -> _FilterTaker:
        """Takes filters where the session lets it; where it does not, everything is read."""
        return _FilterTaker(self)

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions; earliest and latest are looked up when the tasks run, unless a split or filter needs them."""
        from connectors.kafka.source.batch import bounds_of, plan_batch  # noqa: PLC0415 - only the driver plans

        options = _parse(self._options, streaming=False)
        settings = _settings(options, secrets.token_hex(8), streaming=False)
        # With no partition at all, PySpark hands read() one that is not ours.
        ranges = plan_batch(options, bounds_of(self._filters)) or [OffsetRange("", 0, 0, 0)]
        return [KafkaPartition(part, settings) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, as Arrow batches; runs in Spark's tasks."""
        yield from _read(cast("KafkaPartition", partition))


class _FilterTaker:
    """The method ``pushFilters`` of a reader, which looks like the one that PySpark gives to readers without.

    With ``spark.sql.python.filterPushdown.enabled`` off, which is the default, PySpark refuses a reader that has the
    method, by comparing its ``__func__``; and a reader cannot know that setting.
    """

    def __init__(self, reader: KafkaBatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters; all are left to Spark as well."""
        self._reader._filters = tuple(filters)  # noqa: SLF001 - a method of that class
        return filters


def _parse(raw: Mapping[str, str], *, streaming: bool | None) -> KafkaReadOptions:
    from connectors.kafka.options.source import parse_read_options  # noqa: PLC0415 - tasks must not import pydantic

    return parse_read_options(raw, os.environ, streaming=streaming)


def _settings(options: KafkaReadOptions, run: str, *, streaming: bool) -> ReadSettings:
    return ReadSettings(
        client=options.client,
        group=options.client.get("group.id") or f"{options.group_prefix(streaming=streaming)}-executor",
        headers=options.include_headers,
        fail_on_data_loss=options.fail_on_data_loss,
        poll_timeout=options.poll_timeout_ms / 1000,
        run=run,
    )


def _schema(options: KafkaReadOptions) -> StructType:
    from connectors.kafka.schema import source_schema  # noqa: PLC0415 - tasks need none

    return source_schema(headers=options.include_headers)


def _read(partition: KafkaPartition) -> Iterator[pa.RecordBatch]:
    settle_worker()
    with extra_imports("kafka", "the format kafka_py"):
        yield from read_range(partition.part, partition.settings)


_LOOK_SECONDS: Final = 25.0


@dataclass
class KafkaCommitMessage(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        rows: how many rows it has written, or had written before.
        query: the id of the query, where that matters.
        skipped: whether an earlier attempt had written them.
        run: names the run of the query, if Spark says so.
    """

    rows: int
    query: str = ""
    skipped: bool = False
    run: str = ""


def batch_writer(raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> KafkaBatchWriter:
    """The writer of a batch.

    Raises:
        OptionError: an option, the mode or a column is not legal.
    """
    if overwrite:
        raise OptionError(
            "KAFKA_SAVE_MODE",
            "Save mode overwrite not allowed for Kafka. Allowed save modes are append and errorifexists (default)",
            "kafka_py sink",
            "Use mode('append').",
        )
    settle_worker()
    options = _writer_parse(raw, streaming=False)
    columns = check_columns(schema, options.topic, timestamps=options.write_timestamps)
    return KafkaBatchWriter(options, columns)


def stream_writer(raw: Mapping[str, str], schema: StructType) -> KafkaStreamWriter:
    """The writer of a stream: every row is appended. Spark refuses the output mode update for Python sinks.

    Raises:
        OptionError: an option or a column is not legal.
    """
    settle_worker()
    options = _writer_parse(raw, streaming=True)
    columns = check_columns(schema, options.topic, timestamps=options.write_timestamps)
    if options.exactly_once:
        for option, topic in {"markerTopic": options.marker_topic, "topic": options.topic}.items():
            if topic is not None:
                _check_topic(options.client, option, topic)
    return KafkaStreamWriter(options, columns)


@cache
def _check_topic(client: ClientSettings, option: str, topic: str) -> None:
    """Look for a topic before the first task of a process's queries would write rows that it could not commit.

    Raises:
        SourceGoneError: it is not there.
        ConnectorError: brokers do not answer, or refuse the client.
    """
    from connectors.kafka.client.admin import KafkaLookup  # noqa: PLC0415 - tasks ask nothing
    from connectors.kafka.client.group_offsets import consumer_settings  # noqa: PLC0415

    with KafkaLookup(consumer_settings(client), call_seconds=_LOOK_SECONDS) as lookup:
        try:
            lookup.partitions(Subscribe((topic,)))
        except SourceGoneError as error:
            action = f"Make it before the query starts, or correct the option {option}; exactly_once makes no topic."
            raise SourceGoneError(error.code, "This topic does not exist", f"{option} {topic}", action) from None


def _writer_parse(raw: Mapping[str, str], *, streaming: bool) -> KafkaWriteOptions:
    from connectors.kafka.options.sink import parse_write_options  # noqa: PLC0415 - tasks must not import pydantic

    return parse_write_options(raw, os.environ, streaming=streaming)


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes a batch, at least once: a task that is tried again writes its rows again."""

    def __init__(self, options: KafkaWriteOptions, columns: Columns) -> None:
        self._client = options.client
        self._columns = columns

    @extra_imports("kafka", "the format kafka_py")
    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        """Write the rows of a task."""
        settle_sink()
        return KafkaCommitMessage(produce_batches(iterator, self._columns, self._client))


def _exactly_once(options: KafkaWriteOptions, columns: Columns) -> ExactlyOnce:
    """How tasks write; named anew for each batch that is planned."""
    return ExactlyOnce(
        client=options.client,
        columns=columns,
        prefix=options.transactional_id_prefix,
        marker_topic=options.marker_topic or options.topic or "",
        fail_if_missing=options.missing_marker.value == "fail",
        dedup_headers=options.dedup_headers,
        run=secrets.token_hex(8),
    )


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream."""

    def __init__(self, options: KafkaWriteOptions, columns: Columns) -> None:
        self._client = options.client
        self._columns = columns
        self._dedup_headers = options.dedup_headers
        self._exactly_once = _exactly_once(options, columns) if options.exactly_once else None

    @extra_imports("kafka", "the format kafka_py")
    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        """Write the rows of a task."""
        settle_sink()
        if self._exactly_once is not None:
            task, run = stream_task(), query_run()
            written = self._exactly_once.write(iterator, task, run)
            return KafkaCommitMessage(written.rows, task.query, written.skipped, run)
        named = stream_task() if self._dedup_headers else None
        return KafkaCommitMessage(produce_batches(iterator, self._columns, self._client, named))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing that writes rows: what a task has written is there. Exactly once, it must be all there is.

        Raises:
            DataLossError: an earlier run of this batch had more partitions, and one of these was written.
        """
        if self._exactly_once is None:
            return
        runs = {(each.query, each.run) for each in messages if isinstance(each, KafkaCommitMessage) and each.query}
        for query, run in runs:
            check_layout(self._exactly_once, query, batchId, len(messages), run)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: what a task has written stays."""
