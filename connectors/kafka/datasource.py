"""The ``kafka_py`` format: topics of Kafka as batch and as stream, with the options and columns of Spark's own."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition, WriterCommitMessage

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
from connectors.core.errors import OptionError, ServiceUnavailableError, SourceGoneError
from connectors.core.formats import connector_named
from connectors.core.processes.spark import ReadAllAvailable, ReadLimit

_KAFKA: Final = connector_named("kafka")

with _KAFKA.imports():
    from connectors.kafka.client.factory import check_settings
    from connectors.kafka.client.group_offsets import consumer_settings
    from connectors.kafka.options.client import ClientSettings
    from connectors.kafka.options.source import KafkaReadOptions, Subscribe
    from connectors.kafka.schema import source_schema
    from connectors.kafka.source.planning import OffsetRange, tasks_of
    from connectors.kafka.source.reader import read_range
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from connectors.kafka.options.sink import KafkaWriteOptions
    from connectors.kafka.schema import Columns
    from connectors.kafka.source.micro_batch import KafkaStream

_log = logging.getLogger(__name__)
_CHECK_SECONDS: Final = 5.0
"""How long the driver waits for brokers before a write; then tasks do."""


@dataclass
class KafkaPartition(Partition):
    """A task's part of a batch: the offsets to read, how, and in which run of the query."""

    parts: tuple[OffsetRange, ...]
    options: KafkaReadOptions
    run: str

    def read(self) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            yield from read_range(part, self.options, self.run)


class KafkaStreamReader(StreamReader[KafkaReadOptions, "KafkaStream"]):
    """The reader of a stream."""

    connector = _KAFKA

    def open_stream(self) -> KafkaStream:
        from connectors.kafka.source.micro_batch import KafkaStream  # noqa: PLC0415 - tasks plan nothing

        return KafkaStream(self.options)

    def max_rows(self) -> int | None:
        return self.options.max_offsets_per_trigger

    def is_bounded(self) -> bool:
        return self.options.available_now

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self.stream.latest_offset(start, everything=isinstance(limit, ReadAllAvailable))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options, run = self.options.for_tasks(), self.stream.run
        ranges = self.stream.partitions(start, end)
        tasks = tasks_of(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [KafkaPartition(parts, options, run) for parts in tasks]


class KafkaBatchReader(BatchReader[KafkaReadOptions]):
    """The reader of a batch."""

    connector = _KAFKA

    def partitions(self) -> Sequence[InputPartition]:
        """Plan; tasks look up earliest and latest when they run, unless a split or a filter needs them here."""
        from connectors.kafka.source.batch import bounds_of, plan_batch  # noqa: PLC0415 - tasks plan nothing

        options, run = self.options.for_tasks(), secrets.token_hex(8)
        return [KafkaPartition((part,), options, run) for part in plan_batch(self.options, bounds_of(self.filters))]


@cache
def _check_topic(client: ClientSettings, option: str, topic: str) -> None:
    """Raise an error for a topic that does not exist, before the first task writes rows that it could not commit."""
    from connectors.kafka.client.admin import KafkaLookup  # noqa: PLC0415 - tasks plan nothing

    with KafkaLookup(consumer_settings(client), call_seconds=min(_CHECK_SECONDS, client.outage_rule.seconds)) as lookup:
        try:
            lookup.partitions(Subscribe((topic,)))
        except SourceGoneError as error:
            action = (
                f"Create it before the query starts, or correct the option {option}. exactly_once creates no topic."
            )
            raise SourceGoneError(error.code, "This topic does not exist", f"{option} {topic}", action) from None


def _check_soon(client: ClientSettings, option: str, topic: str) -> None:
    """Check a topic. In an outage, which the tasks wait out, the next batch is checked instead.

    Waiting here would delay the end of a stopped query: Spark cannot end this process.
    """
    try:
        _check_topic(client, option, topic)
    except ServiceUnavailableError as error:
        if client.outage_rule.seconds <= _CHECK_SECONDS:
            raise client.outage_rule.ending(error) from None
        _log.warning("[RETRYING] The topic was not checked; the next batch checks it again: %s", error)


class _KafkaWriter(TaskWriter):
    connector = _KAFKA

    def __init__(self, options: KafkaWriteOptions, columns: Columns) -> None:
        from connectors.kafka.sink.exactly_once import ExactlyOnce  # noqa: PLC0415 - readers do without

        self._options = options
        self._columns = columns
        attempt = secrets.token_hex(8)  # each planned batch gets a name of its own
        self._exactly_once = ExactlyOnce(options, columns, attempt) if options.exactly_once else None

    def _finish(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        """Check, for exactly once, that no more partitions than these have written the batch; see `finish_batch`."""
        from connectors.kafka.sink.exactly_once import KafkaCommitMessage, finish_batch  # noqa: PLC0415 - as above

        if self._exactly_once is None:
            return
        written = [message for message in messages if isinstance(message, KafkaCommitMessage)]
        for query, run in {(message.query, message.query_run) for message in written}:
            finish_batch(self._exactly_once, query, batch, len(messages), run)


class KafkaBatchWriter(_KafkaWriter, BatchWriter):
    """Writes a batch, at least once, or exactly once for its ``txnAppId`` and ``txnVersion``."""

    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        from connectors.kafka.sink.writer import produce_batches  # noqa: PLC0415 - readers do without

        if self._exactly_once is None:
            return CommitMessage(produce_batches(batches, self._columns, self._options.client))
        return self._exactly_once.write(batches, self._exactly_once.batch_task(), "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._finish(messages, self._options.txn_version or 0)


class KafkaStreamWriter(_KafkaWriter, StreamWriter):
    """Writes a stream, at least once or exactly once."""

    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        from connectors.kafka.sink.exactly_once import query_run  # noqa: PLC0415 - readers do without
        from connectors.kafka.sink.writer import produce_batches, stream_task  # noqa: PLC0415 - as above

        if self._exactly_once is not None:
            return self._exactly_once.write(batches, stream_task(), query_run())
        task = stream_task() if self._options.dedup_headers else None
        return CommitMessage(produce_batches(batches, self._columns, self._options.client, task))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._finish(messages, batchId)


class KafkaDataSource(ConnectorSource):
    """The data source behind ``format("kafka_py")``."""

    connector = _KAFKA
    stream_reader = KafkaStreamReader
    batch_reader = KafkaBatchReader

    def check(self, options: KafkaReadOptions) -> None:
        check_settings(options.client)

    def row_schema(self, options: KafkaReadOptions) -> StructType:
        return source_schema(headers=options.include_headers)

    def overwrite_error(self) -> OptionError:
        what = "Save mode overwrite not allowed for Kafka. Allowed save modes are append and errorifexists (default)"
        return OptionError("KAFKA_SAVE_MODE", what, "kafka_py sink")

    def batch_writer(self, schema: StructType) -> KafkaBatchWriter:
        return KafkaBatchWriter(*self._plan(schema, streaming=False))

    def stream_writer(self, schema: StructType) -> KafkaStreamWriter:
        return KafkaStreamWriter(*self._plan(schema, streaming=True))

    def _plan(self, schema: StructType, *, streaming: bool) -> tuple[KafkaWriteOptions, Columns]:
        """Parse the options; exactly once, the topics must exist."""
        from connectors.kafka.schema import check_columns  # noqa: PLC0415 - readers do without

        options: KafkaWriteOptions = _KAFKA.write_options(self.options, streaming=streaming)
        columns = check_columns(schema, options.topic, timestamps=options.write_timestamps)
        if options.exactly_once:
            for option, topic in {"markerTopic": options.marker_topic, "topic": options.topic}.items():
                if topic is not None:
                    _check_soon(options.client, option, topic)
        return options, columns
