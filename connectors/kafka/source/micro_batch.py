"""What the source process of a query does: where batches end, and which ranges they have.

`KafkaStream.partitions` is a function of two offsets and of Kafka alone, since a batch that was not finished is planned
again after a restart before anything else.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from connectors.core.errors import OffsetError
from connectors.core.offsets import is_sentinel
from connectors.kafka.client.admin import LOOKUPS, KafkaLookup, RetryingLookup
from connectors.kafka.client.group_offsets import GroupCommitter
from connectors.kafka.client.record_times import RecordTimes, TimeReader
from connectors.kafka.offsets import (
    Offsets,
    TopicPartition,
    describe,
    end_offset,
    offset_json,
    read_offset,
    reported_offset,
    resolved_start,
)
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.source.planning import OffsetRange, split_ranges, starting_offsets
from connectors.kafka.source.reader import report_data_loss

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 0.005
"""How long a call waits for a response to its own request: long enough for a broker nearby."""
_IDLE_SECONDS: Final = 0.25
"""Calls that are further apart are not those of an idle query: what is in memory is as old as the last of them."""
_LONG_PATIENCE_SECONDS: Final = 5.0  # how long such a call waits
_QUIET_SECONDS: Final = 1.0
"""A query without new records for so long is asked for less often."""
_QUIET_PAUSE_SECONDS: Final = 0.05
_NEW_PARTITIONS_SECONDS: Final = 1.0


def offset_counts(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """Return how many offsets each partition has between its start and its end, where it has any."""
    counts = {partition: offset - start.get(partition, offset) for partition, offset in end.items()}
    return {partition: count for partition, count in counts.items() if count > 0}


def rate_limited(limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """Return the end of a batch of about ``limit`` offsets, in proportion to what each partition has.

    As in Spark's own source a share below one is rounded up, so that no partition starves, and any other down: a batch
    may be larger than the limit by up to one offset for each partition.
    """
    counts = offset_counts(start, end)
    total = sum(counts.values())
    limited = dict(end)
    for partition, count in counts.items():
        share = limit * (count / total)
        rounded = math.ceil(share) if share < 1 else math.floor(share)
        limited[partition] = min(end[partition], start[partition] + rounded)
    return limited


class KafkaStream:
    """The stream of one query; ``clock`` gives seconds, for ``maxTriggerDelay`` and between calls.

    Attributes:
        run: the `PooledConsumer.run` of the tasks of the next batch.
    """

    def __init__(
        self,
        options: KafkaReadOptions,
        clock: Callable[[], float] = time.monotonic,
        lookup: RetryingLookup | None = None,
        times: RecordTimes | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._lookup = lookup or RetryingLookup(options)
        self._watch = LatestWatch(lambda new: self._lookup.ask(lambda lookup: self._ask_latest(lookup, new)), clock)
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._resolved: Offsets | None = None
        self._first_offsets: Offsets = {}
        self._called = False
        self._last_batch = -math.inf
        self._available_now = False
        self._targets: Offsets | None = None
        self._newest: Offsets = {}
        self._planned: Offsets = {}
        self.run = secrets.token_hex(8)
        self._topic_ids: dict[str, str] = {}
        reader = TimeReader(options.client)
        self._times = times or RecordTimes(reader, reader.close)
        group = options.commit_offsets_to_group
        self._committer = None if group is None else GroupCommitter(options.client, group)

    def prepare_for_available_now(self) -> None:
        """Read nothing that is newer than the next call of `latest_offset`."""
        self._available_now = True
        self._targets = None

    def latest_offset(self, start: Mapping[str, Any], *, everything: bool) -> dict[str, Any]:
        """Return the end of the batch that begins at ``start``; ``start`` itself if there is nothing new.

        ``everything`` ignores the limits, as under Trigger.Once.
        """
        begin = self._begin(start)  # before the end is asked for: a start at "latest" must not lie after it
        latest = self._newest = self._latest(begin, everything=everything)
        if not latest and (begin or not is_sentinel(start)):
            return dict(start)
        end = self._planned = latest if everything else self._limited(begin, latest)
        self._note_topics(begin, end)
        if is_sentinel(start):
            return end_offset(end, begin)
        return dict(start) if end == begin else end_offset(end)

    def _begin(self, start: Mapping[str, Any]) -> Offsets:
        """Return where the batch begins.

        A new query that finds no partitions begins there, as in Spark's own source: all that appear later are read from
        their first record, whatever the start of the query.
        """
        if not is_sentinel(start):
            return read_offset(start)
        if self._resolved is None:
            options = self._options
            self._resolved = self._lookup.ask(
                lambda lookup: starting_offsets(options, lookup.partitions(options.strategy), lookup)
            )
        return self._resolved

    def _latest(self, begin: Offsets, *, everything: bool) -> Offsets:
        if self._available_now:
            if self._targets is None:
                self._targets = self._not_before(begin, self._watch.fresh())
            return self._targets
        fresh = everything or not self._called
        self._called = True
        return self._not_before(begin, self._watch.fresh() if fresh else self._watch.remembered())

    def _ask_latest(self, lookup: KafkaLookup, new_partitions: bool) -> Offsets:  # noqa: FBT001 - of LatestWatch
        if new_partitions or not self._assigned:
            self._assigned = lookup.partitions(self._options.strategy)
        latest = lookup.latest(self._assigned)
        if len(latest) < len(self._assigned):  # something was deleted: without it, if it is really gone
            self._assigned = lookup.partitions(self._options.strategy)
            latest = lookup.latest(self._assigned)
        return latest

    def _not_before(self, begin: Offsets, latest: Offsets) -> Offsets:
        """Return the latest offsets, asked for again while one lies before an offset that already existed.

        A broker may report one that is too low (KAFKA-7703); Spark's own ``fetchLatestOffsets`` does the same.
        """
        for _ in range((self._options.offset_retries or LOOKUPS) - 1):
            wrong = {partition: end for partition, end in latest.items() if end < begin.get(partition, 0)}
            if not wrong:
                break
            _log.warning(
                "[KAFKA_OFFSETS_RETRIED] Found incorrect offsets in some partitions (partition, previous offset, "
                "fetched offset): %s",
                [(str(partition), begin[partition], end) for partition, end in sorted(wrong.items())],
            )
            self._lookup.pause()
            latest = self._watch.fresh()
        return latest

    def _limited(self, begin: Offsets, latest: Offsets) -> Offsets:
        """Return where the batch ends within the limits; ``begin`` if it waits for more."""
        options, now = self._options, self._clock()
        start = self._with_first_offsets(begin, latest)
        least = options.min_offsets_per_trigger
        if least is not None and not self._available_now:
            early = now - self._last_batch < options.max_trigger_delay
            if early and sum(offset_counts(start, latest).values()) < least:
                return begin
            self._last_batch = now
        if options.max_offsets_per_trigger is not None:
            return rate_limited(options.max_offsets_per_trigger, start, latest)
        return latest

    def _with_first_offsets(self, begin: Offsets, latest: Offsets) -> Offsets:
        if unknown := latest.keys() - begin.keys() - self._first_offsets.keys():
            self._first_offsets |= self._lookup.ask(lambda lookup: lookup.earliest(unknown))
        return self._first_offsets | begin

    def _note_topics(self, begin: Offsets, end: Offsets) -> None:
        """Begin another run if a topic was recreated since its last batch: records fetched ahead are of the old one.

        Offsets need not show it, when the new topic has as many: then rows are lost that nobody else reports. The ends
        are known by now, so they are of the topic whose id is asked for, or of an older one.
        """
        changed = {partition.topic for partition, offset in end.items() if begin.get(partition) != offset}
        if not changed:
            return
        ids = self._lookup.ask(lambda lookup: lookup.topic_ids(changed))
        recreated = {topic for topic, topic_id in ids.items() if self._topic_ids.get(topic, topic_id) != topic_id}
        self._topic_ids |= ids
        if recreated:
            self.run = secrets.token_hex(8)
        for partition, offset in sorted(begin.items()):
            if partition.topic in recreated and 0 < offset <= end.get(partition, -1):
                self._report(
                    "KAFKA_DATA_LOSS.TOPIC_RECREATED",
                    f"The topic of {partition} was deleted and created again while the query was running. The query "
                    f"continues at offset {offset}",
                    str(partition),
                )

    def report_latest_offset(self) -> dict[str, Any] | None:
        """Return the latest offsets when the last batch was planned, for Spark's progress reports.

        Not the present ones: a query without limits has then read everything, and its lag is 0, as with Spark's own.
        Of partitions in which it leaves records unread, the time of the first of these is reported too.
        """
        if not self._newest:
            return None
        planned = self._planned
        unread = {part: planned[part] for part, offset in self._newest.items() if planned.get(part, offset) < offset}
        return reported_offset(self._newest, self._times.of(unread) if unread else {})

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[OffsetRange]:
        """Return the ranges of a batch; raises if rows are gone and ``failOnDataLoss`` is set, and in bounded runs."""
        if is_sentinel(end):
            return []
        until = read_offset(end)
        begin = resolved_start(end) if is_sentinel(start) else read_offset(start)
        if self._targets is not None:
            self._check_targets(self._targets, until)
        elif not self._newest:
            self._check_replayed(until)
        begin = self._without_deleted(begin, until) | self._added(begin, until)
        ranges = [OffsetRange(*partition, offset, until[partition]) for partition, offset in sorted(begin.items())]
        for part in ranges:
            if part.end < part.start:
                partition = str(part.topic_partition)
                self._report(
                    "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",
                    f"Partition {partition}'s offset was changed from {part.start} to {part.end}",
                    partition,
                )
        return split_ranges(ranges, self._options.min_partitions, self._options.max_records_per_partition)

    def _without_deleted(self, begin: Offsets, until: Offsets) -> Offsets:
        if deleted := begin.keys() - until.keys():
            group = self._options.client.get("group.id")
            code = "KAFKA_DATA_LOSS.PARTITIONS_DELETED"
            if group is not None:
                code = "KAFKA_DATA_LOSS.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT"
            also = "" if group is None else f"; kafka.group.id is {group}, which other consumers may share"
            self._report(code, f"Partitions {describe(deleted)} have been deleted{also}", describe(deleted))
        return {partition: offset for partition, offset in begin.items() if partition in until}

    def _added(self, begin: Offsets, until: Offsets) -> Offsets:
        """Return the earliest offsets of new partitions: these begin there, whatever the start of the query."""
        added = until.keys() - begin.keys()
        if not added:
            return {}
        first = self._lookup.ask(lambda lookup: lookup.earliest(added))
        if missing := added - first.keys():
            self._report(
                "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
                f"Cannot find initial offsets for partitions {describe(missing)}. They may have been deleted",
                describe(missing),
            )
        for partition, offset in sorted(first.items()):
            if offset != 0:
                self._report(
                    "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                    f"Added partition {partition} starts from {offset} instead of 0",
                    str(partition),
                )
        return first

    def _report(self, code: str, reason: str, where: str) -> None:
        report_data_loss(code, reason, where, fail=self._options.fail_on_data_loss)

    def _check_replayed(self, until: Offsets) -> None:
        """Compare the end of a batch of an earlier run with what there is: else its tasks would wait for records."""
        latest = self._not_before(until, self._watch.fresh())
        for partition, end in sorted(until.items()):
            if end > latest.get(partition, end):
                self._report(
                    "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE",
                    f"The unfinished batch of the checkpoint ends at {end}, but partition {partition} ends at "
                    f"{latest[partition]}",
                    str(partition),
                )

    def _check_targets(self, targets: Offsets, until: Offsets) -> None:
        """Raise if a bounded run cannot read what its start has seen, whatever ``failOnDataLoss`` says."""
        if set(until) != set(targets):
            raise _changed(
                "KAFKA_MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED",
                "Kafka data source in Trigger.AvailableNow should provide the same topic partitions in pre-fetched "
                "offset to end offset for each microbatch. "
                f"Pre-fetched: {describe(targets)} End: {describe(until)}",
            )
        if beyond := {partition: end for partition, end in until.items() if end > targets[partition]}:
            raise _changed(
                "KAFKA_END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
                "For Kafka data source with Trigger.AvailableNow, end offset should have lower or equal offset per "
                f"each topic partition than pre-fetched offset. End: {offset_json(beyond)}",
            )
        latest = self._not_before(until, self._watch.fresh())
        if lost := until.keys() - latest.keys():
            raise _changed(
                "KAFKA_LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW",
                "Some of partitions in Kafka topic(s) have been lost during running query with Trigger.AvailableNow: "
                f"{describe(lost)}",
            )
        if short := {partition: end for partition, end in until.items() if latest[partition] < end}:
            raise _changed(
                "KAFKA_END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
                "Some of partitions in Kafka topic(s) report available offset which is less than end offset during "
                f"running query with Trigger.AvailableNow: {offset_json(short)}",
            )

    def commit(self, end: Mapping[str, Any]) -> None:
        if self._committer is not None and not is_sentinel(end):
            self._committer.commit(read_offset(end))

    def stop(self) -> None:
        self._watch.stop()
        self._times.stop()
        if self._committer is not None:
            self._committer.stop()
        self._lookup.stop()


def _changed(code: str, what: str) -> OffsetError:
    return OffsetError(code, what, "trigger(availableNow=True)")


class LatestWatch:
    """Asks Kafka for the latest offsets in a thread: Spark wants them every 10 ms while no records arrive.

    ``ask`` returns the latest offsets; with True it also looks for new partitions. An idle query waits for ``patience``
    seconds, another one for ``long_patience``. When nothing has been new for a second, a call of an idle query begins
    with ``quiet_pause``: each call costs processor time here, in Spark and in the broker.
    """

    def __init__(
        self,
        ask: Callable[[bool], Offsets],
        clock: Callable[[], float] = time.monotonic,
        patience: float = _PATIENCE_SECONDS,
        long_patience: float = _LONG_PATIENCE_SECONDS,
        quiet_pause: float = _QUIET_PAUSE_SECONDS,
    ) -> None:
        self._ask = ask
        self._quiet_pause = quiet_pause
        self._clock = clock
        self._patience, self._long_patience = patience, long_patience
        self._changed = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._called_at = -math.inf
        self._new_at = clock()
        self._latest: Offsets = {}
        self._error: BaseException | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def fresh(self) -> Offsets:
        """Ask now, and return the response, however long it takes."""
        latest = self._ask(True)
        with self._changed:
            self._latest = latest
        return latest

    def remembered(self) -> Offsets:
        """Have the thread ask, and return the response, or the last one if it takes long; raises its error."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="kafka-latest", daemon=True)
                self._thread.start()
            idle = self._clock() - self._called_at < _IDLE_SECONDS
            if idle and self._clock() - self._new_at > _QUIET_SECONDS:
                self._changed.wait_for(lambda: self._stopped, self._quiet_pause)
            # The response to a request that is pending now may be older than this call.
            self._asked += 1
            wanted = self._asked
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._answered >= wanted or (idle and self._error is not None),
                self._patience if idle else self._long_patience,
            )
            self._called_at = self._clock()
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return self._latest

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _serve(self) -> None:
        searched_at = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._asked > self._answered)
                if self._stopped:
                    return
                number = self._asked
            search = time.monotonic() - searched_at >= _NEW_PARTITIONS_SECONDS
            error: BaseException | None = None
            try:
                latest = self._ask(search)
                searched_at = time.monotonic() if search else searched_at
            except Exception as problem:  # noqa: BLE001 - raised by the next call
                error = problem
            with self._changed:
                if error is None:
                    self._new_at = self._new_at if latest == self._latest else self._clock()
                    self._latest = latest
                self._answered, self._error = number, error
                self._changed.notify_all()
