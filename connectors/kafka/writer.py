"""The sink of the ``kafka_py`` format.

A task returns when every row of it is acknowledged, and fails with the first error of any row; nothing stays behind in
a queue. The producer is kept from task to task.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from connectors.core.errors import OptionError, SourceGoneError
from connectors.core.extras import extra_imports
from connectors.core.worker import settle_sink, settle_worker

with extra_imports("kafka", "the format kafka_py"):
    from connectors.kafka.layout import check_layout
    from connectors.kafka.produce import produce_batches
    from connectors.kafka.rows import Columns, check_columns
    from connectors.kafka.strategy import Subscribe
    from connectors.kafka.task import query_run, stream_task
    from connectors.kafka.transactions import ExactlyOnce

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from connectors.kafka.settings import ClientSettings
    from connectors.kafka.write_options import KafkaWriteOptions

__all__ = ["KafkaBatchWriter", "KafkaCommitMessage", "KafkaStreamWriter", "batch_writer", "stream_writer"]

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
    options = _parse(raw, streaming=False)
    columns = check_columns(schema, options.topic, timestamps=options.write_timestamps)
    return KafkaBatchWriter(options, columns)


def stream_writer(raw: Mapping[str, str], schema: StructType) -> KafkaStreamWriter:
    """The writer of a stream: every row is appended. Spark refuses the output mode update for Python sinks.

    Raises:
        OptionError: an option or a column is not legal.
    """
    settle_worker()
    options = _parse(raw, streaming=True)
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
    from connectors.kafka.client import KafkaLookup  # noqa: PLC0415 - tasks ask nothing
    from connectors.kafka.group_offset import consumer_settings  # noqa: PLC0415

    with KafkaLookup(consumer_settings(client), call_seconds=_LOOK_SECONDS) as lookup:
        try:
            lookup.partitions(Subscribe((topic,)))
        except SourceGoneError as error:
            action = f"Make it before the query starts, or correct the option {option}; exactly_once makes no topic."
            raise SourceGoneError(error.code, "This topic does not exist", f"{option} {topic}", action) from None


def _parse(raw: Mapping[str, str], *, streaming: bool) -> KafkaWriteOptions:
    from connectors.kafka.write_options import parse_write_options  # noqa: PLC0415 - tasks must not import pydantic

    return parse_write_options(raw, os.environ, streaming=streaming)


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes a batch, at least once: a task that is tried again writes its rows again."""

    def __init__(self, options: KafkaWriteOptions, columns: Columns) -> None:
        self._client = options.client
        self._columns = columns
        self._native = options.native_writes

    @extra_imports("kafka", "the format kafka_py")
    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        """Write the rows of a task."""
        settle_sink()
        return KafkaCommitMessage(produce_batches(iterator, self._columns, self._client, native=self._native))


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
        self._native = options.native_writes
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
        rows = produce_batches(
            iterator, self._columns, self._client, stream_task() if self._dedup_headers else None, native=self._native
        )
        return KafkaCommitMessage(rows)

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
