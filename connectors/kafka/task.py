"""Which query, batch and partition a task of a stream's sink writes for."""

from __future__ import annotations

from connectors.core import task
from connectors.core.task import StreamTask

__all__ = ["StreamTask", "stream_task"]


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
