"""Which query, batch and partition a task of a stream's sink writes for."""

from __future__ import annotations

from pyspark import TaskContext

from connectors.core import datasource as task
from connectors.core.datasource import StreamTask

__all__ = ["StreamTask", "query_run", "stream_task"]


def stream_task() -> StreamTask:
    """The task that runs now.

    Raises:
        ConnectorError: this is no task of a stream, or a Spark that does not say which.
    """
    return task.stream_task(
        "KAFKA_NO_BATCH_ID",
        "deliveryGuarantee, dedupHeaders",
        "Use deliveryGuarantee=at_least_once without dedupHeaders, and report the version of Spark.",
    )


def query_run() -> str:
    """Names this run of the query, from its start to its end; empty where Spark does not say.

    The jobs of a query are a group of that name: ``setJobGroup`` of Spark's StreamExecution.
    """
    context = TaskContext.get()
    run = context.getLocalProperty("spark.jobGroup.id") if context is not None else None
    return str(run or "")
