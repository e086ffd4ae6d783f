"""Reads a range of offsets in a task.

The read ends when its position reaches the end of the range: by the record before it, by a record after it, or by the
end of the partition. It never waits for the last offset, which may be a control record, an aborted one, or one that
compaction has removed (as in risingwave's issues 25121 and 25258).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from connectors.core.errors import SourceGoneError
from connectors.kafka.client.errors import named_error
from connectors.kafka.offsets import EARLIEST, LATEST
from connectors.kafka.source.consumer_pool import BATCH_BYTES, CONSUMERS, MOST_RECORDS, PooledConsumer, ReadSettings
from connectors.kafka.source.offset_gaps import OffsetGapPolicy, watermarks
from connectors.kafka.source.records import Event, Fetched
from connectors.kafka.source.splits import OffsetRange, start_behind_end

__all__ = ["PartitionReader", "ReadSettings", "read_range"]

_REFUSED_SECONDS: Final = 5.0
"""How long rows may still arrive after an authentication failed: with an old token, it may fail between two tasks."""
_OUT_OF_RANGE: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_IGNORED: Final = frozenset({"_STATE", "GROUP_AUTHORIZATION_FAILED"})
"""What the client says while it changes partitions, and of its group, which nobody joins or asks here."""
_OF_COORDINATOR: Final = "FindCoordinator response error"


def read_range(part: OffsetRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in order; `EARLIEST` and `LATEST` at its ends are looked up now.

    Raises:
        DataLossError: records are gone, and ``fail_on_data_loss`` is set.
        OffsetError: a batch read begins after the end of its partition.
        ServiceUnavailableError: nothing came for ``poll_timeout``.
    """
    if 0 <= part.end <= part.start:
        return
    consumer = CONSUMERS.acquire(part, settings)
    reader = PartitionReader(consumer, part)
    try:
        yield from reader.batches()
    except BaseException:
        reader.free()
        consumer.close()
        raise
    CONSUMERS.release(consumer)


class PartitionReader:
    """Reads one range: moves a position to its end and gathers the records on the way into batches."""

    def __init__(self, consumer: PooledConsumer, part: OffsetRange) -> None:
        self._consumer = consumer
        self._part = part
        self._partition = part.topic_partition
        self._position, self._end = part.start, part.end
        self._gathered: list[Fetched] = []
        self._gaps = OffsetGapPolicy(consumer.source, part, consumer.settings)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        self._resolve_ends()
        if self._position >= self._end:
            return
        consumer = self._consumer
        consumer.go(self._partition, self._position)
        self._position = consumer.next_offset(self._position, self._end)
        rows = size = 0
        progress = time.monotonic()
        while self._position < self._end:
            before = self._position, consumer.position
            records, events = consumer.fetch(self._position, self._end)
            if len(records):
                self._gathered.append(records)  # before an event raises: the client cannot close while it lacks one
                rows, size = rows + len(records), size + records.size
            self._position = consumer.next_offset(self._position, self._end)
            for event in events:
                self._handle(event)
            if rows >= MOST_RECORDS or size >= BATCH_BYTES:
                yield self._take_batch()
                rows = size = 0
                progress = time.monotonic()
            # Records that are skipped, and ends of aborted transactions, are progress too.
            if (self._position, consumer.position) != before or consumer.has_moved():
                progress = time.monotonic()
                consumer.source.last_word.forget()
            else:
                self._check_progress(time.monotonic() - progress)
        if rows:
            yield self._take_batch()
        consumer.position = self._end

    def free(self) -> None:
        """Release the gathered records to the client."""
        for records in self._gathered:
            records.free()
        self._gathered = []

    def _take_batch(self) -> pa.RecordBatch:
        headers = self._consumer.settings.headers
        batch = self._gathered[0].batch(self._gathered, self._partition, headers=headers)
        self.free()
        return batch

    def _resolve_ends(self) -> None:
        """Look up sentinels: a batch read is bound to offsets when its tasks run, as in Spark's own source."""
        if self._position >= 0 and self._end >= 0:
            return
        consumer = self._consumer
        low, high = watermarks(consumer.source, self._partition, consumer.settings.poll_timeout)
        offsets = {EARLIEST: low, LATEST: high}
        self._position = offsets.get(self._position, self._position)
        self._end = offsets.get(self._end, self._end)
        # An earliest offset after the end is what retention makes of a range, or of a part of one.
        if self._part.start >= 0 and self._position > self._end:
            raise start_behind_end("RESOLVED", self._partition, self._position, self._end)

    def _handle(self, event: Event) -> None:
        if event.name in _OUT_OF_RANGE:
            self._skip_gap()
        elif event.name not in _IGNORED and not event.text.startswith(_OF_COORDINATOR):
            problem = named_error(event.name, event.text, str(self._part), retriable=event.retriable)
            if isinstance(problem, SourceGoneError):
                self._skip_gap()
            elif not problem.transient:
                raise problem

    def _skip_gap(self) -> None:
        """Continue where the gap policy says; never backwards."""
        # Before the position there are only records to skip: nobody needs them.
        if self._consumer.position >= self._position:
            self._position = self._gaps.resume_offset(self._position, self._end)
        if self._position < self._end:
            self._consumer.jump(self._partition, self._position)
        else:
            self._consumer.partition = None

    def _check_progress(self, seconds: float) -> None:
        """Give up if there was no progress for too long."""
        refusal = self._consumer.source.last_word.refusal
        if refusal is not None and seconds > _REFUSED_SECONDS:
            raise refusal
        if seconds > self._consumer.settings.poll_timeout:
            self._position = self._gaps.give_up(self._position, self._end)
            self._consumer.partition = None
