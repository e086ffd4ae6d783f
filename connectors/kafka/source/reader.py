"""Reading a range of offsets in a task: a consumer that is kept from task to task, and a loop that ends on position.

The loop ends when the position reaches the end of the range: by the record before it, by a record behind it, or by the
end of the partition. It never waits for the last offset, which may be a control record, an aborted one, or one that
compaction has taken away (as in risingwave's issues 25121 and 25258).

The first and the last offset of a partition, for a task: each is asked for by itself, and again while it may be had.

librdkafka can be asked for both at once (``rd_kafka_query_watermark_offsets``). It then asks two questions, and when
one answer is an error it now and then reports success with the other answer twice: a partition that looks empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from connectors.core.errors import ServiceUnavailableError, SourceGoneError
from connectors.kafka.client.errors import named_error
from connectors.kafka.offsets import EARLIEST, LATEST, TopicPartition
from connectors.kafka.source.consumer_pool import (
    BATCH_BYTES,
    MOST_RECORDS,
    KeptConsumer,
    ReadSettings,
    borrow,
    give_back,
)
from connectors.kafka.source.data_loss import report_loss
from connectors.kafka.source.records import Event, Fetched, RecordSource
from connectors.kafka.source.splits import OffsetRange, start_behind_end

__all__ = ["ReadSettings", "read_range", "watermarks"]


_PAUSE_SECONDS: Final = 0.1
_GONE_SECONDS: Final = 1.0
"""A leader that has just come to a partition may say for so long, from its first such answer, that there is none.

However late that is: who believes a single answer may take records for lost that are there.
"""


def watermarks(source: RecordSource, where: TopicPartition, seconds: float) -> tuple[int, int]:
    """The earliest offset of a partition, and the latest under the isolation.

    Args:
        source: asks Kafka.
        where: the partition.
        seconds: how long answers are waited for; a second longer, where the last ones were that there is no partition.

    Raises:
        SourceGoneError: the partition is not there.
        ConnectorError: no answer came, or none will.
    """
    started = time.monotonic()
    return _offset_of(source, where, EARLIEST, started, seconds), _offset_of(source, where, LATEST, started, seconds)


def _offset_of(source: RecordSource, where: TopicPartition, word: int, started: float, seconds: float) -> int:
    gone_since: float | None = None
    while True:
        passed = time.monotonic() - started
        try:
            return source.offset_of(where, word, max(_PAUSE_SECONDS, seconds - passed))
        except SourceGoneError:
            now = time.monotonic()
            gone_since = now if gone_since is None else gone_since
            if now - gone_since > _GONE_SECONDS:
                raise
        except ServiceUnavailableError:
            gone_since = None  # there is another leader soon
            if time.monotonic() - started > seconds:
                raise
        time.sleep(_PAUSE_SECONDS)


_REFUSED_SECONDS: Final = 5.0
"""How long rows may still come after a log-in was refused: it may have been while nobody read, with an old token."""
_WATERMARK_SECONDS: Final = 10.0
_STATE: Final = "_STATE"
"""What the client says while it changes partitions: it passes."""
_OF_GROUP: Final = "GROUP_AUTHORIZATION_FAILED"
_OF_COORDINATOR: Final = "FindCoordinator response error"
"""The client looks for the coordinator of a group that nobody joins or asks here: it needs no right on it."""
_OUT_OF_RANGE: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_MOST_DOUBTS: Final = 3
"""How often in a range a position that is there is fetched again, when the client has said that it is not."""
_END: Final = "_PARTITION_EOF"


def read_range(part: OffsetRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in order; words at its ends are looked up now.

    Raises:
        DataLossError: records are gone, and ``fail_on_data_loss`` is set.
        OffsetError: a batch read begins behind the end of its partition.
        ServiceUnavailableError: nothing came for ``poll_timeout``.
    """
    if 0 <= part.end <= part.start:
        return
    reader = borrow(settings, part.topic_partition, part.start)
    run = _Run(reader, part)
    try:
        yield from run.batches()
    except BaseException:
        run.free()
        reader.close()
        raise
    give_back(reader)


class _Run:
    """Reads one range."""

    def __init__(self, reader: KeptConsumer, part: OffsetRange) -> None:
        self._reader = reader
        self._settings = reader.settings
        self._where = part.topic_partition
        self._part = part
        self._end = part.end
        self._position = part.start
        self._parts: list[Fetched] = []
        self._doubts = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        self._look_up_words()
        if self._position >= self._end:
            return
        self._reader.go(self._where, self._position)
        self._pass_to_end_of_partition()
        rows = size = 0
        progress = time.monotonic()
        while self._position < self._end:
            before = self._position
            found = self._reader.fetch(self._end)
            came = len(found) > 0
            part = self._accept(found)
            self._pass_to_end_of_partition()
            if part is not None:
                rows, size = rows + len(part), size + part.size
            if rows >= MOST_RECORDS or size >= BATCH_BYTES:
                yield self._take_batch()
                rows = size = 0
                progress = time.monotonic()
            # Records that are passed over, and ends of transactions that were aborted, are progress too.
            if self._position > before or came or self._reader.has_moved():
                progress = time.monotonic()
                self._reader.source.last_word.forget()
            else:
                self._wait_on(time.monotonic() - progress)
        if rows:
            yield self._take_batch()
        self._reader.position = self._end

    def _wait_on(self, seconds: float) -> None:
        """Give up, if it makes no sense to wait any longer.

        Args:
            seconds: without progress.
        """
        refusal = self._reader.source.last_word.refusal
        if refusal is not None and seconds > _REFUSED_SECONDS:
            raise refusal
        if seconds > self._settings.poll_timeout:
            self._give_up()

    def _take_batch(self) -> pa.RecordBatch:
        """The rows gathered so far."""
        first = self._parts[0]
        batch = first.batch(self._parts, self._where, headers=self._settings.headers)
        self.free()
        return batch

    def free(self) -> None:
        """Give back what was gathered."""
        for part in self._parts:
            part.free()
        self._parts = []

    def _look_up_words(self) -> None:
        """A batch read is bound to offsets when its tasks run, as in Spark's own source."""
        if self._position >= 0 and self._end >= 0:
            return
        low, high = watermarks(self._reader.source, self._where, self._settings.poll_timeout)
        words = {EARLIEST: low, LATEST: high}
        self._position = words.get(self._position, self._position)
        self._end = words.get(self._end, self._end)
        # An earliest offset behind the end is what retention makes of a range, or of a part of one.
        if self._part.start >= 0 and self._position > self._end:
            raise start_behind_end("RESOLVED", self._where, self._position, self._end)

    def _accept(self, found: Fetched) -> Fetched | None:
        """Gather the records of the range; those behind it are kept for the next one. Moves the position."""
        records = None
        if len(found):
            # Records from before a jump are passed over, so none comes twice.
            first, last = np.searchsorted(found.offsets, [self._position, self._end])
            if last < len(found):
                self._reader.ahead = found.cut(int(last), len(found))
            if first:
                found.cut(0, int(first)).free()
            if last > first:
                records = found.cut(int(first), int(last))
                self._parts.append(records)  # before an event raises: the client cannot close while one is out
                self._position = int(found.offsets[last - 1]) + 1
            if last < len(found):
                self._position = self._end
        for event in found.events:
            if event.where in {None, self._where}:  # else of a partition that was read before
                self._handle(event)
        return records

    def _pass_to_end_of_partition(self) -> None:
        """There is no record from here to where the partition ends, when none was fetched ahead.

        That end may be older than the end of the range; then more is on its way.
        """
        if self._reader.ahead is None:
            self._position = min(max(self._position, self._reader.end_of_partition), self._end)

    def _handle(self, event: Event) -> None:
        """Something else than a record."""
        if event.name == _END:
            self._reader.end_of_partition = max(self._reader.end_of_partition, event.offset)
        elif event.name in _OUT_OF_RANGE:
            self._out_of_range()
        elif event.name not in {_STATE, _OF_GROUP} and not event.text.startswith(_OF_COORDINATOR):
            problem = named_error(event.name, event.text, str(self._part), retriable=event.retriable)
            if isinstance(problem, SourceGoneError):
                self._out_of_range()
            elif not problem.transient:
                raise problem

    def _out_of_range(self) -> None:
        """The position is not there: go on at the first record there is, if rows may be lost; never backwards."""
        if self._reader.position < self._position:
            # What was to be passed over is gone, and nobody needs it.
            self._reader.jump(self._where, self._position)
            return
        ends = self._watermarks()
        low, high = ends or (0, 0)
        if low <= self._position < high and self._doubts < _MOST_DOUBTS:
            # It is there: that was said of a topic that was made anew since, or by a broker that leads it no more.
            self._doubts += 1
            self._reader.jump(self._where, self._position)
            return
        self._reader.where = None  # it stands nowhere now
        if ends is None:
            self._lost(f"{self._where} does not exist any more")
        else:
            self._lost(
                f"Cannot fetch offsets [{self._position}, {self._end}) of {self._where}; the earliest available offset "
                f"is {low} and the latest {high}"
            )
        if low >= self._end or high <= self._position:
            self._position = self._end
        else:
            self._position = max(low, self._position)
            self._reader.jump(self._where, self._position)

    def _watermarks(self) -> tuple[int, int] | None:
        """Where the partition begins and ends; None if it is not there."""
        try:
            return watermarks(self._reader.source, self._where, _WATERMARK_SECONDS)
        except SourceGoneError:
            return None

    def _lost(self, reason: str) -> None:
        report_loss("COULD_NOT_READ_OFFSET_RANGE", reason, str(self._part), fail=self._settings.fail_on_data_loss)

    def _give_up(self) -> None:
        explain = self._reader.source.last_word.explain
        try:
            low, high = self._watermarks() or (0, 0)
        except ServiceUnavailableError as error:
            raise explain(error) from None
        if high < self._end:
            # The records were there when the range was planned: their topic was made anew, or a leader lost them.
            self._reader.where = None
            self._lost(f"{self._where} ends at {high}, and was read up to {self._position}")
            self._position = self._end
            return
        raise explain(
            ServiceUnavailableError(
                "KAFKA_POLL_TIMEOUT",
                f"Nothing came for {self._settings.poll_timeout:g} s at offset {self._position}; the partition holds "
                f"{low} to {high}",
                str(self._part),
                "Check the brokers, or raise kafkaConsumer.pollTimeoutMs.",
            )
        )
