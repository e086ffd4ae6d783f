"""Which query, batch and partition a task of a sink writes for; Spark says so in the task's local properties only."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext

from connectors.core.errors import ConnectorError

__all__ = ["StreamTask", "current_partition", "stream_task"]


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
