"""The ``kafka_py`` format: topics of Kafka as batch and as stream, with the options, columns and rules of Spark's own.

Spark builds these classes in three kinds of process (the source process of a query, a planner, the tasks), so the
constructors keep the raw options and nothing else.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from connectors.core.datasource import check_schema
from connectors.core.extras import extra_imports
from connectors.core.offsets import SENTINEL
from connectors.core.worker import SentToTasks, settle_worker

with extra_imports("kafka", "the format kafka_py"):
    from connectors.kafka.consume import ReadSettings, read_range
    from connectors.kafka.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from connectors.kafka.options import KafkaReadOptions
    from connectors.kafka.stream import KafkaStream
    from connectors.kafka.writer import KafkaBatchWriter, KafkaStreamWriter

__all__ = ["KafkaBatchReader", "KafkaDataSource", "KafkaPartition", "KafkaStreamReader"]

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
        from connectors.kafka.client import check_settings  # noqa: PLC0415 - tasks need none

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
        from connectors.kafka.writer import batch_writer  # noqa: PLC0415 - readers need none

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: ARG002, FBT001 - as above
        """The writer of a stream, for the output modes append and complete: every row is appended."""
        from connectors.kafka.writer import stream_writer  # noqa: PLC0415 - as above

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
            from connectors.kafka.stream import KafkaStream  # noqa: PLC0415 - only the source process needs it

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
        from connectors.kafka.batch import plan_batch  # noqa: PLC0415 - tasks plan nothing
        from connectors.kafka.filters import bounds_of  # noqa: PLC0415

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
    from connectors.kafka.options import parse_read_options  # noqa: PLC0415 - tasks must not import pydantic

    return parse_read_options(raw, os.environ, streaming=streaming)


def _settings(options: KafkaReadOptions, run: str, *, streaming: bool) -> ReadSettings:
    return ReadSettings(
        client=options.client,
        group=options.client.get("group.id") or f"{options.group_prefix(streaming=streaming)}-executor",
        headers=options.include_headers,
        fail_on_data_loss=options.fail_on_data_loss,
        poll_timeout=options.poll_timeout_ms / 1000,
        native=options.native_reads,
        run=run,
    )


def _schema(options: KafkaReadOptions) -> StructType:
    from connectors.kafka.schema import source_schema  # noqa: PLC0415 - tasks need none

    return source_schema(headers=options.include_headers)


def _read(partition: KafkaPartition) -> Iterator[pa.RecordBatch]:
    settle_worker()
    with extra_imports("kafka", "the format kafka_py"):
        yield from read_range(partition.part, partition.settings)
