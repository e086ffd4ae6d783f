"""Reads a range of offsets in a task.

The read ends when its position reaches the end of the range: by the record before it, by a record after it, or by the
end of the partition. It never waits for the last offset, which may be a control record, an aborted one, or one that
compaction has removed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from connectors.core.errors import DataLossError, ServiceUnavailableError, SourceGoneError, declared_action
from connectors.core.retry import WaitLog
from connectors.kafka.client.errors import named_error
from connectors.kafka.offsets import EARLIEST, LATEST, TopicPartition
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.schema import Event, Fetched
from connectors.kafka.source.consumer_pool import (
    BATCH_BYTES,
    CONSUMERS,
    MOST_RECORDS,
    ConsumerPool,
    PooledConsumer,
    RecordSource,
)
from connectors.kafka.source.planning import OffsetRange, start_behind_end

_log = logging.getLogger(__name__)
_WHAT: Final = (
    "Some data may have been lost because they are not available in Kafka any more; either the data was aged out by "
    "Kafka or the topic may have been deleted before all the data in the topic was processed"
)
_RETRY_SECONDS: Final = 0.1
_GONE_SECONDS: Final = 1.0
"""A new leader may deny for so long that the partition exists; counted from its first such response."""
_WATERMARK_SECONDS: Final = 10.0
_MOST_RETRIES: Final = 3
"""How often in a range an offset that exists is fetched again after the client reported it as missing."""
_ANSWERED_SECONDS: Final = 120.0
"""Without a record while brokers answer, unless the option ``kafkaConsumer.pollTimeoutMs`` says otherwise."""
_REFUSED_SECONDS: Final = 5.0
"""How long rows may still arrive after an authentication failed: with an old token, it may fail between two tasks."""
_OUT_OF_RANGE: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_IGNORED: Final = frozenset({"_STATE", "GROUP_AUTHORIZATION_FAILED"})
"""What the client says while it changes partitions, and of its group, which nobody joins or asks here."""
_OF_COORDINATOR: Final = "FindCoordinator response error"


def read_range(
    part: OffsetRange, options: KafkaReadOptions, run: str = "", consumers: ConsumerPool = CONSUMERS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in order, for a `PooledConsumer.run`; sentinels at its ends are looked up now."""
    if 0 <= part.end <= part.start:
        return
    consumer = consumers.acquire(part, options, run)
    reader = PartitionReader(consumer, part, options)
    try:
        yield from reader.batches()
    except BaseException:
        reader.free()
        consumer.close()
        raise
    consumers.release(consumer)


class PartitionReader:
    """Reads one range: moves a position to its end and gathers the records on the way into batches."""

    def __init__(
        self,
        consumer: PooledConsumer,
        part: OffsetRange,
        options: KafkaReadOptions,
        refused_seconds: float = _REFUSED_SECONDS,
    ) -> None:
        self._refused_seconds = refused_seconds
        self._consumer = consumer
        self._options, self._rule = options, options.client.outage_rule
        self._part = part
        self._partition = part.topic_partition
        self._position, self._end = part.start, part.end
        self._gathered: list[Fetched] = []
        self._without_time = self._first_without_time = 0
        self._gaps = OffsetGapPolicy(consumer.source, part, options)
        self._failed_at = self._ask_at = -math.inf
        self._log = WaitLog(lambda: f"records from offset {self._position} of {self._partition} on")

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._resolve_ends()
        if self._position >= self._end:
            return
        consumer = self._consumer
        consumer.go(self._partition, self._position)
        self._position = consumer.next_offset(self._position, self._end)
        rows = size = 0
        self._log.restart()
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
                self._log.restart()
            # Records that are skipped, and ends of aborted transactions, are progress too.
            if (self._position, consumer.position) != before or consumer.has_moved():
                self._log.restart()
                consumer.source.connection_errors.forget()
            else:
                self._log.tick()
                self._check_progress(self._log.seconds)
        if rows:
            yield self._take_batch()
        self._warn_of_times()
        consumer.position = self._end
        if self._part.end == LATEST:
            consumer.pause()  # nothing follows in this run, and what the next range asks waits behind an empty fetch

    def free(self) -> None:
        for records in self._gathered:
            records.free()
        self._gathered = []

    def _take_batch(self) -> pa.RecordBatch:
        headers = self._options.include_headers
        batch: pa.RecordBatch = self._gathered[0].batch(self._gathered, self._partition, headers=headers)
        self.free()
        if missing := batch.column("timestamp").null_count:
            if not self._without_time:
                first = batch.column("timestamp").is_null().index(True).as_py()
                self._first_without_time = batch.column("offset")[first].as_py()
            self._without_time += missing
        return batch

    def _warn_of_times(self) -> None:
        if self._without_time:
            _log.warning(
                "[KAFKA_MALFORMED_RECORD_TIMESTAMP] %d records of %s have a timestamp that is not valid milliseconds "
                "since 1970. It is NULL in their rows. The first is at offset %d. %s",
                self._without_time,
                self._part,
                self._first_without_time,
                declared_action("KAFKA_MALFORMED_RECORD_TIMESTAMP"),
            )

    def _resolve_ends(self) -> None:
        """Look up sentinels: a batch read is bound to offsets when its tasks run, as in Spark's own source."""
        if self._position >= 0 and self._end >= 0:
            return
        timeout = self._options.poll_timeout
        try:
            seconds = self._rule.seconds if timeout is None else timeout
            low, high = watermarks(self._consumer.source, self._partition, seconds)
        except ServiceUnavailableError as error:
            raise (self._rule.ending(error) if timeout is None else error) from None
        offsets = {EARLIEST: low, LATEST: high}
        self._position = offsets.get(self._position, self._position)
        self._end = offsets.get(self._end, self._end)
        # An earliest offset after the end is what retention makes of a range, or of a part of one.
        if self._part.start >= 0 and self._position > self._end:
            raise start_behind_end(self._partition, self._position, self._end, resolved=True)

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
        refusal = self._consumer.source.connection_errors.refusal
        if refusal is not None and seconds > self._refused_seconds:
            raise refusal
        timeout = self._options.poll_timeout
        if timeout is None:
            seconds, timeout = self._answered_seconds(seconds), _ANSWERED_SECONDS
        if seconds > timeout:
            self._position = self._gaps.give_up(self._position, self._end, timeout)
            self._consumer.partition = None

    def _answered_seconds(self, seconds: float) -> float:
        """Return for how much of a time without progress brokers have answered; raises the error of a long outage."""
        rule, now = self._rule, time.monotonic()
        if seconds > min(_ANSWERED_SECONDS, rule.seconds) and now >= self._ask_at:
            try:
                self._gaps.available(min(_WATERMARK_SECONDS, rule.seconds))
            except ServiceUnavailableError as error:
                if rule.gives_up(0, seconds):
                    raise rule.ending(self._consumer.source.connection_errors.explain(error)) from None
                self._failed_at = time.monotonic()
            else:
                self._ask_at = time.monotonic() + _WATERMARK_SECONDS
        return min(seconds, time.monotonic() - self._failed_at)


def report_data_loss(code: str, reason: str, where: str, *, fail: bool) -> None:
    """Raise a `DataLossError` with the texts of Spark's own source; unless ``fail`` is set, log it as a warning."""
    if fail:
        raise DataLossError(code, f"{_WHAT}. Reason: {reason}", where)
    _log.warning("[%s] %s. Reason: %s (%s)", code, _WHAT, reason, where)


def watermarks(source: RecordSource, partition: TopicPartition, seconds: float) -> tuple[int, int]:
    """Return the earliest offset of a partition, and the latest under the isolation level.

    ``rd_kafka_query_watermark_offsets`` asks for both, and when one request fails it now and then reports success with
    the result of the other twice, so that the partition looks empty. So each is asked for by itself. It raises what
    the requests failed with for ``seconds``, a `SourceGoneError` up to a second later.
    """
    started = time.monotonic()
    low, high = (_offset_of(source, partition, sentinel, started, seconds) for sentinel in (EARLIEST, LATEST))
    return low, high


def _offset_of(source: RecordSource, partition: TopicPartition, sentinel: int, started: float, seconds: float) -> int:
    gone_since: float | None = None
    log = WaitLog(lambda: f"the offsets of {partition}")
    while True:
        left = started + seconds - time.monotonic()
        try:
            return source.offset_of(partition, sentinel, max(_RETRY_SECONDS, left))
        except SourceGoneError:
            now = time.monotonic()
            gone_since = now if gone_since is None else gone_since
            if now - gone_since > _GONE_SECONDS:
                raise
        except ServiceUnavailableError:
            gone_since = None  # another leader may be elected
            if time.monotonic() - started > seconds:
                raise
        log.tick()
        time.sleep(_RETRY_SECONDS)


class OffsetGapPolicy:
    """Decides where a read continues when the next offset of its range is gone or does not arrive.

    Both methods raise a `DataLossError` for lost records if ``failOnDataLoss`` is set.
    """

    def __init__(self, source: RecordSource, part: OffsetRange, options: KafkaReadOptions) -> None:
        self._source = source
        self._part = part
        self._options = options
        self._retries = 0

    def resume_offset(self, position: int, end: int) -> int:
        """Return the offset to fetch after ``position`` was reported as missing; ``end`` if there is none before it.

        ``position`` itself if it exists: the report may be about a topic that was recreated since, or come from a
        broker that no longer leads the partition.
        """
        available = self.available()
        low, high = available or (0, 0)
        if low <= position < high and self._retries < _MOST_RETRIES:
            self._retries += 1
            return position
        partition = self._part.topic_partition
        if available is None:
            self._report_loss(f"{partition} does not exist any more")
        else:
            self._report_loss(
                f"Cannot fetch offsets [{position}, {end}) of {partition}; the earliest available offset is {low} and "
                f"the latest {high}"
            )
        return max(low, position) if low < end and position < high else end

    def give_up(self, position: int, end: int, seconds: float) -> int:
        """Return ``end`` if the records up to it are lost, after nothing arrived for ``seconds``; else raise."""
        explain = self._source.connection_errors.explain
        try:
            low, high = self.available() or (0, 0)
        except ServiceUnavailableError as error:
            raise explain(error) from None
        if high < end:  # the topic was recreated, or a leader lost records, since the range was planned
            self._report_loss(f"{self._part.topic_partition} ends at {high}, and was read up to {position}")
            return end
        what = f"No record arrived for {seconds:g} s at offset {position}. The partition holds offsets {low} to {high}"
        raise explain(ServiceUnavailableError("KAFKA_POLL_TIMEOUT", what, str(self._part)))

    def available(self, seconds: float = _WATERMARK_SECONDS) -> tuple[int, int] | None:
        """Return the earliest and the latest offset; None if the partition does not exist."""
        try:
            return watermarks(self._source, self._part.topic_partition, seconds)
        except SourceGoneError:
            return None

    def _report_loss(self, reason: str) -> None:
        fail = self._options.fail_on_data_loss
        report_data_loss("KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE", reason, str(self._part), fail=fail)
