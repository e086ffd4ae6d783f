"""Which query, batch and partition a task of a stream's sink writes for; Spark says so in local properties only."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext

from connectors.core.errors import ConnectorError

__all__ = ["StreamTask", "stream_task"]


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


def stream_task() -> StreamTask:
    """The task that runs now.

    Raises:
        ConnectorError: this is no task of a stream, or a Spark that does not say which.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    if context is None or not query or batch is None:
        raise ConnectorError(
            "KAFKA_NO_BATCH_ID",
            "This Spark does not tell a sink's task which query and batch it belongs to",
            "deliveryGuarantee, dedupHeaders",
            "Use deliveryGuarantee=at_least_once without dedupHeaders, and report the version of Spark.",
        )
    return StreamTask(str(query), int(batch), context.partitionId())
