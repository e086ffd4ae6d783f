"""A source whose columns are its own takes no schema of the user, as Spark's own Kafka source takes none.

Which query, batch and partition a task of a sink writes for; Spark says so in the task's local properties only.

How far a part of a source is behind: what a connector's module ``lag`` gives to `connectors.observe`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from connectors.core.errors import ConnectorError, OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["PartitionLag", "StreamTask", "as_object", "check_schema", "current_partition", "stream_task"]


def check_schema(given: StructType, own: StructType, connector: str) -> None:
    """Refuse a schema that the user has given; where Spark makes a reader is the first place that sees it.

    Args:
        given: what Spark hands over: the source's own, or what came with ``.schema(...)``.
        own: the source's. Whether a column may be null does not count.
        connector: the name of the format.

    Raises:
        OptionError: they differ.
    """
    if given.simpleString() != own.simpleString():
        raise OptionError(
            "SCHEMA_NOT_SUPPORTED",
            f"{connector} source has a fixed schema and cannot be set with a custom one",
            connector,
            f"Leave .schema(...) out, and select or cast columns after load(); they are {own.simpleString()}.",
        )


@dataclass(frozen=True, slots=True)
class StreamTask:
    """A task of a sink.

    Attributes:
        query: the id of the query; it stays with the checkpoint.
        batch: the number of the batch; a repeated batch keeps it.
        partition: the number of the partition.
    """

    query: str
    batch: int
    partition: int


def stream_task(code: str, needed_by: str, action: str) -> StreamTask:
    """The task of a stream that runs now.

    Args:
        code: of the error.
        needed_by: the options that need this.
        action: what the user can do without it.

    Raises:
        ConnectorError: this is no task of a stream, or a Spark that does not say which.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    if context is None or not query or batch is None:
        raise ConnectorError(
            code, "This Spark does not tell a sink's task which query and batch it belongs to", needed_by, action
        )
    return StreamTask(str(query), int(batch), context.partitionId())


def current_partition() -> int:
    """The number of the partition that the task which runs now writes; 0 outside of tasks."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a partition is behind.

    Attributes:
        records: records between what the query has read and the newest; None where the source does not count them.
        milliseconds: how far the query is behind in time, at least; 0 without lag.
    """

    records: int | None
    milliseconds: int


def as_object(offset: Any) -> Mapping[str, Any]:
    """An offset as an object; progress reports hold it as text, as an object, or not at all."""
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        value = None
    return value if isinstance(value, Mapping) else {}
