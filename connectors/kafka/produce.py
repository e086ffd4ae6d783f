"""Producing the rows of a task: into the client's queue, out of it, and no error left unseen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Final

from connectors.core.pool import Kept
from connectors.kafka.fast_path import native_reason
from connectors.kafka.native_sink import NativeSink
from connectors.kafka.rows import Columns, Record, records
from connectors.kafka.sink import RecordSink

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.kafka.settings import ClientSettings
    from connectors.kafka.task import StreamTask

__all__ = ["close_sinks", "produce_batches", "with_dedup_headers"]


def _discard(sink: RecordSink | NativeSink) -> None:
    sink.discard()


_sinks: Final[Kept[tuple[ClientSettings, bool], RecordSink | NativeSink]] = Kept(_discard)
"""The producers that this worker keeps, by their settings and whether they are fast ones; their queues are empty."""


def produce_batches(
    batches: Iterable[pa.RecordBatch],
    columns: Columns,
    settings: ClientSettings,
    task: StreamTask | None = None,
    *,
    native: bool = True,
) -> int:
    """Write all rows of some batches, and wait until each is acknowledged.

    Args:
        batches: rows.
        columns: what is read of them.
        settings: of the producer.
        task: adds headers that name it, query, batch and row.
        native: take the fast way where it can do what is asked.

    Returns:
        The number of rows.

    Raises:
        ConnectorError: a row could not be written; others may have been.
    """
    plain = task is not None or columns.headers or columns.timestamp or settings.token_provider is not None
    fast = native and not plain and not native_reason()
    kept = _sinks.take((settings, fast))
    sink = kept or (NativeSink(settings) if fast else RecordSink(settings))
    numbers = count()
    rows = 0
    try:
        if kept is not None:
            kept.begin()
        for batch in batches:
            if isinstance(sink, NativeSink):
                sink.send(batch, columns)
            else:
                found: Iterable[Record] = records(batch, columns)
                sink.send(found if task is None else with_dedup_headers(found, task, numbers))
            rows += batch.num_rows
        sink.finish()
    except BaseException:
        sink.discard()
        raise
    _sinks.give((settings, fast), sink)
    return rows


def with_dedup_headers(found: Iterable[Record], task: StreamTask, numbers: Iterator[int]) -> Iterator[Record]:
    """Records with the headers of ``dedupHeaders``."""
    fixed = [
        ("spark.query", task.query.encode()),
        ("spark.batch", str(task.batch).encode()),
        ("spark.partition", str(task.partition).encode()),
    ]
    for topic, key, value, partition, time, headers in found:
        own = [*(headers or ()), *fixed, ("spark.row", str(next(numbers)).encode())]
        yield topic, key, value, partition, time, own


def close_sinks() -> None:
    """Close the producers that this worker keeps."""
    _sinks.close()
