"""The sink of the ``kinesis`` format.

A task returns when the service has every row of it, and fails with the first row that it cannot put; nothing stays
behind in a queue. A task that is tried again puts its rows again: at least once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from connectors.core.errors import OptionError
from connectors.core.extras import extra_imports
from connectors.core.worker import settle_sink

with extra_imports("kinesis", "the format kinesis"):
    from connectors.kinesis.entries import Columns, check_columns
    from connectors.kinesis.put import StreamLimits, WriteSettings, put_batches, stream_limits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from connectors.kinesis.client_options import KinesisClientOptions

__all__ = [
    "KinesisBatchWriter",
    "KinesisCommitMessage",
    "KinesisStreamWriter",
    "batch_writer",
    "forget_streams",
    "stream_writer",
]


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
    from connectors.kinesis.client_options import client_options  # noqa: PLC0415 - only where rows are written
    from connectors.kinesis.write_options import parse_write_options  # noqa: PLC0415 - tasks must not import pydantic

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
    from connectors.kinesis.client_shared import shared_client  # noqa: PLC0415 - as above

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
