"""The sink of the ``pubsub`` format: every row becomes a message, at least once.

A task returns when the service has every row of it, and fails with the first error of any row. Publishing is not
idempotent, so a task that runs again publishes again: the attribute `idAttribute` names each row for good, and a
reader that drops copies by it (``dedupAttribute``) has each row once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from connectors.core.datasource import current_partition, stream_task
from connectors.core.errors import OptionError
from connectors.core.extras import extra_imports
from connectors.core.worker import settle_sink

with extra_imports("pubsub", "the format pubsub"):
    from connectors.pubsub.publish import publish_batches
    from connectors.pubsub.publish_columns import SINK, SinkColumns, check_columns
    from connectors.pubsub.publish_rows import RowStamp

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from connectors.pubsub.write_options import PubSubWriteOptions

__all__ = ["PubSubBatchWriter", "PubSubCommitMessage", "PubSubStreamWriter", "batch_writer", "stream_writer"]


@dataclass
class PubSubCommitMessage(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        rows: how many rows it has published.
    """

    rows: int


def batch_writer(raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> PubSubBatchWriter:
    """The writer of a batch.

    Raises:
        OptionError: an option, the mode or a column is not legal.
    """
    if overwrite:
        raise OptionError(
            "PUBSUB_SAVE_MODE",
            "A topic cannot be overwritten: messages that were published stay",
            SINK,
            "Use mode('append').",
        )
    options = _parse(raw)
    return PubSubBatchWriter(options, check_columns(schema, options))


def stream_writer(raw: Mapping[str, str], schema: StructType) -> PubSubStreamWriter:
    """The writer of a stream, in any output mode: every row is published.

    Raises:
        OptionError: an option or a column is not legal.
    """
    options = _parse(raw)
    return PubSubStreamWriter(options, check_columns(schema, options))


def _parse(raw: Mapping[str, str]) -> PubSubWriteOptions:
    from connectors.pubsub.write_options import parse_write_options  # noqa: PLC0415 - tasks must not import pydantic

    return parse_write_options(raw, os.environ)


class PubSubBatchWriter(DataSourceArrowWriter):
    """Publishes a batch. Its stamps begin with a name that is new for each ``save()``."""

    def __init__(self, options: PubSubWriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._run = secrets.token_hex(16)

    @extra_imports("pubsub", "the format pubsub")
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PubSubCommitMessage:
        """Publish the rows of a task."""
        settle_sink()
        partition = current_partition()
        stamp = RowStamp(self._options.id_attribute, f"{self._run}/0/{partition}/", partition)
        return PubSubCommitMessage(publish_batches(iterator, self._columns, self._options, stamp))


class PubSubStreamWriter(DataSourceStreamArrowWriter):
    """Publishes a stream."""

    def __init__(self, options: PubSubWriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    @extra_imports("pubsub", "the format pubsub")
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PubSubCommitMessage:
        """Publish the rows of a task."""
        settle_sink()
        if self._options.id_attribute:
            task = stream_task(
                "PUBSUB_NO_BATCH_ID", "idAttribute", "Set idAttribute=none, and report the version of Spark."
            )
            prefix, partition = f"{task.query}/{task.batch}/{task.partition}/", task.partition
        else:
            prefix, partition = "", current_partition()
        stamp = RowStamp(self._options.id_attribute, prefix, partition)
        return PubSubCommitMessage(publish_batches(iterator, self._columns, self._options, stamp))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: what a task has published is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: what a task has published stays."""
