"""What the data sources of the connectors share: the classes that Spark builds, without what one service needs.

Spark builds them in three kinds of process: the source process of a query, planners, and tasks. So constructors only
store the raw options; the source process parses them and connects at its first call, and a partition holds all that
its task needs.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from connectors.core.errors import ConnectorError, OffsetError, OptionError, declared_action
from connectors.core.offsets import SENTINEL, START_KEY, is_sentinel
from connectors.core.options.declaration import SPARK_KEYS, literal_secrets
from connectors.core.options.filters import PushFilters
from connectors.core.processes.parent import end_with_parent
from connectors.core.processes.spark import (
    ADMISSION_CONTROL,
    DataSourceStreamArrowWriter,
    Filter,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    withhold_empty_profiles,
)
from connectors.core.processes.worker import SentToTasks, settle_sink, settle_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger("connectors")
_OF_ONE_PROCESS: Final = ("_parsed", "_stream")
"""Attributes of a reader that do not go to tasks: options as they were given have no secret that was read for them."""
NO_LIMIT: Final = (1 << 63) - 1
"""Rows of a batch without a limit, for `ReadMaxRows`."""


class Format(Protocol):
    """What readers need of their connector."""

    @property
    def format(self) -> str: ...

    def read_options(self, raw: Mapping[str, str], *, streaming: bool | None) -> Any:
        """Parse the options as Spark passes them; ``streaming`` is None while that is not known."""

    def imports(self) -> AbstractContextManager[None]: ...


class ReadingSource(DataSource, ABC):
    """The data source of a format: checks the schema, and leaves the rest to the connector."""

    connector: Format
    shows_secrets: ClassVar[bool] = False
    """Whether the session that registered this class does not hide secret options; see `showing_secrets`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        withhold_empty_profiles()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        withhold_empty_profiles()

    @classmethod
    def name(cls) -> str:
        return cls.connector.format

    def schema(self) -> StructType:
        """Return the schema of the rows; bad options fail here, while ``load()`` runs."""
        self._refuse_table()
        self._warn_of_secrets()
        options = self.connector.read_options(self.options, streaming=None)
        self.check(options)
        return self.row_schema(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._refuse_table()
        reader = self.new_stream_reader()
        self._check_schema(schema, reader.options)
        return reader if ADMISSION_CONTROL else PlannedStartReader(reader)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._refuse_table()
        reader = self.new_batch_reader()
        self._check_schema(schema, reader.options)
        return reader

    @abstractmethod
    def new_stream_reader(self) -> StreamReader[Any, Any]: ...

    @abstractmethod
    def new_batch_reader(self) -> BatchReader[Any]: ...

    @abstractmethod
    def row_schema(self, options: Any) -> StructType: ...

    def check(self, options: Any) -> None:
        """Raise an `OptionError` for what only the client finds wrong, without a connection."""

    def _refuse_table(self) -> None:
        names = {name.lower() for name in self.options} - SPARK_KEYS
        view = f"CREATE TEMPORARY VIEW name USING {self.name()} OPTIONS (...)"
        if not names:
            action = f"Give the options of the format. Spark passes no options of a table: use {view}."
            raise OptionError("OPTION_MISSING", "No option is given", self.name(), action)
        if "provider" in names:  # a property of tables, which Spark adds to the options of CREATE TABLE
            what = "This format supports no tables: Spark would not pass these options to a read"
            raise OptionError("TABLE_UNSUPPORTED", what, self.name(), f"Use {view}.")

    def _warn_of_secrets(self) -> None:
        if self.shows_secrets:
            for name in literal_secrets(self.options, self.name()):
                warn_visible(self.name(), name)

    def _check_schema(self, schema: StructType, options: Any) -> None:
        """Refuse a user's schema, as Spark's own Kafka source does; whether a column may be null does not count."""
        connector, own = self.name(), self.row_schema(options)
        if schema.simpleString() != own.simpleString():
            raise OptionError(
                "SCHEMA_NOT_SUPPORTED",
                f"{connector} source has a fixed schema and cannot be set with a custom one",
                connector,
                f"Leave .schema(...) out, and select or cast columns after load(); they are {own.simpleString()}.",
            )


def showing_secrets(source: type[DataSource]) -> type[DataSource]:
    """Return a source to register with a session that cannot hide secret options; it warns of literal ones.

    Spark pickles a class that no module has by value, so that its processes see the attribute.
    """
    return type(source.__name__, (source,), {"__module__": "__main__", "shows_secrets": True})


@cache
def warn_visible(connector: str, option: str) -> None:
    """Log once in a process that a secret stands in the options and may be shown."""
    _log.warning(
        "[SPARK_SHOWS_SECRETS] %s: the option %s contains its secret in plain text. Spark may show it in plans, errors "
        "and logs, because this session does not let spark.sql.redaction.options.regex be set. %s",
        connector,
        option,
        declared_action("SPARK_SHOWS_SECRETS"),
    )


class ConnectorSource(ReadingSource):
    """The data source of a format that is read and written; checks the save mode too."""

    stream_reader: ClassVar[type[StreamReader[Any, Any]]]
    batch_reader: ClassVar[type[BatchReader[Any]]]

    def new_stream_reader(self) -> StreamReader[Any, Any]:
        return self.stream_reader(self.options)

    def new_batch_reader(self) -> BatchReader[Any]:
        return self.batch_reader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's interface
        """Return the writer of a batch; raise a `ConnectorError` if an option, the mode or a column is not legal."""
        if overwrite:
            raise self.overwrite_error()
        self._refuse_table()
        self._warn_of_secrets()
        settle_worker()
        return self.batch_writer(schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, FBT001 - as above
        """Return the writer of a stream, which appends every row, whatever the output mode."""
        self._warn_of_secrets()
        settle_worker()
        return self.stream_writer(schema)

    @abstractmethod
    def overwrite_error(self) -> OptionError: ...

    @abstractmethod
    def batch_writer(self, schema: StructType) -> BatchWriter: ...

    @abstractmethod
    def stream_writer(self, schema: StructType) -> StreamWriter: ...


class Partition(InputPartition, ABC):
    """A task's part of a batch, with all that the task needs to read it."""

    @abstractmethod
    def read(self) -> Iterator[pa.RecordBatch]: ...


Options = TypeVar("Options")


class _TaskReader(SentToTasks, Generic[Options]):
    connector: Format
    _streaming: ClassVar[bool]
    _parsed: Options | None = None

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _OF_ONE_PROCESS}

    @property
    def options(self) -> Options:
        """The options, parsed at the first use in this process."""
        if self._parsed is None:
            self._parsed = self.connector.read_options(self._options, streaming=self._streaming)
        return self._parsed

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, as Arrow batches; runs in Spark's tasks."""
        settle_worker()
        if isinstance(partition, Partition):  # for a batch without partitions, PySpark passes one of its own
            with self.connector.imports():
                yield from partition.read()


class BatchOptions(Protocol):
    """What a batch read needs of its options."""

    @property
    def push_down_predicate(self) -> bool: ...


Batch = TypeVar("Batch", bound=BatchOptions)


class BatchReader(_TaskReader[Batch], DataSourceReader):
    """The reader of a batch; a connector defines `partitions`, which may leave out what `filters` exclude.

    Spark keeps the partitions that were planned with filters, and reads them also where the same `load()` is used
    without a filter, or with others. So filters are taken only if the options say that nobody does that.
    """

    _streaming = False
    filters: tuple[Filter, ...] = ()

    @property
    def pushFilters(self) -> PushFilters:
        """Accept filters if session and options allow that; otherwise everything is read."""
        return PushFilters(self._take_filters)

    def _take_filters(self, filters: tuple[Filter, ...]) -> None:
        if self.options.push_down_predicate:
            self.filters = filters


class MicroBatchStream(Protocol):
    """The state of a streaming read in its source process."""

    def prepare_for_available_now(self) -> None: ...

    def report_latest_offset(self) -> dict[str, Any] | None: ...

    def commit(self, end: Mapping[str, Any]) -> None: ...

    def stop(self) -> None: ...


Stream = TypeVar("Stream", bound=MicroBatchStream)


class StreamReader(_TaskReader[Options], DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[Options, Stream]):
    """The reader of a stream; a connector adds `latestOffset` and `partitions`."""

    answers_in_parts: ClassVar[bool] = False
    """Whether a first `latestOffset` without a limit may end before the newest record."""
    _streaming = True
    _stream: Stream | None = None

    @abstractmethod
    def open_stream(self) -> Stream: ...

    @abstractmethod
    def max_rows(self) -> int | None:
        """Return the most rows of a batch; None for any number."""

    def is_limited(self) -> bool:
        return self.max_rows() is not None

    @abstractmethod
    def is_bounded(self) -> bool:
        """Return the option ``availableNow``, which matters on Spark before 4.2."""

    @property
    def stream(self) -> Stream:
        """The stream of this process, connected at the first use."""
        if self._stream is None:
            end_with_parent()
            self._stream = self.open_stream()
        return self._stream

    def initialOffset(self) -> dict[str, Any]:
        """Return one constant: Spark calls this more than once and does not store the result."""
        return dict(SENTINEL)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options; never "all", which Spark uses to announce Trigger.Once."""
        return ReadMaxRows(self.max_rows() or NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        self.stream.prepare_for_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._stream is None else self._stream.report_latest_offset()

    def commit(self, end: dict[str, Any]) -> None:
        self.stream.commit(end)

    def stop(self) -> None:
        """Release all resources. As a rule, Spark kills the process instead."""
        if self._stream is not None:
            self._stream.stop()


class PlannedStartReader(DataSourceStreamReader):
    """A reader for Spark before 4.2, which does not say where a batch begins, nor that a run is bounded.

    Those versions call ``latestOffset()`` without an argument, but plan each batch from both of its ends. After a
    restart they first plan the newest end of its offset log, from that end to itself (``PythonMicroBatchStream``, seen
    on 4.0.5 and 4.1.4). So the next batch begins at the end that was planned last, and a query that asks for an offset
    before it plans anything has no checkpoint yet.
    """

    def __init__(self, reader: StreamReader[Any, Any]) -> None:
        self._reader = reader
        self._planned: dict[str, Any] | None = None
        """The end that was planned last; None until Spark has planned or asked."""
        self._is_first = True

    def initialOffset(self) -> dict[str, Any]:
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # that of Spark before 4.2
        """Return the end of the next batch; the end planned last if there is nothing new."""
        if self._planned is None:
            self._planned = dict(SENTINEL)
            self._warn_of_limit()
        # The run may be a bounded one, which asks once.
        takes_all = self._is_first and self._reader.answers_in_parts and not self._reader.is_limited()
        self._is_first = False
        limit = ReadAllAvailable() if takes_all or self._reader.is_bounded() else self._reader.getDefaultReadLimit()
        return self._reader.latestOffset(self._planned, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch, and note its end.

        Raises:
            OffsetError: this Spark asked for an offset before it planned what its checkpoint has.
        """
        if START_KEY in end and start != end and not is_sentinel(start):
            raise OffsetError(
                "SPARK_START_UNKNOWN",
                "Spark asked for the end of the stream before it planned the newest batch of the checkpoint, so the "
                "batch would begin where the query first started",
                "a stream on Spark before 4.2",
            )
        if self._planned is None:
            self._warn_of_limit()
        self._planned = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()

    def _warn_of_limit(self) -> None:
        if self._reader.is_limited() and not self._reader.is_bounded():
            _log.warning(
                "[SPARK_AVAILABLE_NOW] Before Spark 4.2, a run with Trigger.AvailableNow or Trigger.Once takes one "
                "limited batch and leaves the rest. %s",
                declared_action("SPARK_AVAILABLE_NOW"),
            )


@dataclass
class CommitMessage(WriterCommitMessage):
    """What a task reports to the driver: how many rows it has written."""

    rows: int


class TaskWriter(ABC):
    """Writes the rows of one task. It returns when all are acknowledged, and raises the first error of any row."""

    connector: Format

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        withhold_empty_profiles()  # the process that commits a batch unpickles its writer alone

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        settle_sink()
        with self.connector.imports():
            return self.write_rows(iterator)

    @abstractmethod
    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> CommitMessage: ...


class BatchWriter(TaskWriter, DataSourceArrowWriter):
    """Writes a batch, at least once: a task that runs again writes its rows again."""


class StreamWriter(TaskWriter, DataSourceStreamArrowWriter):
    """Writes a stream. What a task has written is final, so commit and abort do nothing."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        ...

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        ...


@dataclass(frozen=True, slots=True)
class StreamTask:
    """A task of a stream's sink: its query's id, which stays with the checkpoint, its batch and its partition."""

    query: str
    batch: int
    partition: int


def stream_task(code: str, needed_by: str) -> StreamTask:
    """Return the task that runs now, which Spark describes in the task's local properties only.

    Raises:
        ConnectorError: with this code and the options that need the task, if there is none.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    if context is None or not query or batch is None:
        what = "This Spark version does not tell a sink's task which query and batch it belongs to"
        raise ConnectorError(code, what, needed_by)
    return StreamTask(str(query), int(batch), context.partitionId())


def current_partition() -> int:
    """Return the number of the partition of this task; 0 outside of tasks."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a query lags in a partition: in records, None where the source counts none, and in time, at least."""

    records: int | None
    milliseconds: int


def as_object(offset: Any) -> Mapping[str, Any]:
    """Return an offset of a progress report, which is JSON text, an object or missing, as an object."""
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        value = None
    return value if isinstance(value, Mapping) else {}
