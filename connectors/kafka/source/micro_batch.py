"""What the source process of a query does: where batches end, and which ranges they have.

`partitions` is a function of two offsets and of Kafka alone, since a batch that was not finished is planned again after
a restart before anything else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import ConnectorError, OffsetError
from connectors.core.offsets import is_sentinel
from connectors.kafka.client.admin import RetryingLookup
from connectors.kafka.client.group_offsets import GroupCommitter
from connectors.kafka.offsets import (
    Offsets,
    TopicPartition,
    describe,
    end_offset,
    offset_json,
    read_offset,
    resolved_start,
)
from connectors.kafka.options.source import NoMatch
from connectors.kafka.source.data_loss import report_loss
from connectors.kafka.source.latest_offsets import LatestWatch
from connectors.kafka.source.rate_limits import delays_batch, new_offsets, rate_limited
from connectors.kafka.source.splits import OffsetRange, split_ranges
from connectors.kafka.source.starting_offsets import resolve

if TYPE_CHECKING:
    from connectors.kafka.options.source import KafkaReadOptions

__all__ = ["KafkaStream"]

_log = logging.getLogger(__name__)
_REPLAY_HINT: Final = "Stop and start the query; it goes on from its checkpoint."


class KafkaStream:
    """The stream of one query.

    Args:
        options: the parsed options.
        clock: seconds, for ``maxTriggerDelay``.
    """

    def __init__(self, options: KafkaReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        if options.strategy is None:
            raise ValueError("the options were not made by parse_read_options")
        self._options = options
        self._strategy = options.strategy
        self._clock = clock
        self._lookup = RetryingLookup(options)
        self._watch = LatestWatch(self._ask_latest)
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._resolved: Offsets | None = None
        self._first_offsets: Offsets = {}
        self._called = False
        self._last_batch: float | None = None
        self._available_now = False
        self._targets: Offsets | None = None
        self._newest: Offsets = {}
        group = options.commit_offsets_to_group
        self._committer = None if group is None else GroupCommitter(options.client, group)

    def prepare_for_available_now(self) -> None:
        """From now on nothing is read that is newer than the next call of `latest_offset`."""
        self._available_now = True
        self._targets = None

    def latest_offset(self, start: Mapping[str, Any], *, everything: bool) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself if there is nothing new.

        Args:
            start: where the batch begins.
            everything: without limits, as under Trigger.Once.
        """
        begin = self._begin(start)  # before the end is asked for: a start at "latest" must not lie behind it
        latest = self._newest = self._latest(begin, everything=everything)
        if not latest and (begin or not is_sentinel(start)):
            return dict(start)
        end = self._end(begin, latest, everything=everything)
        if is_sentinel(start):
            return end_offset(end, begin)
        return dict(start) if end == begin else end_offset(end)

    def _begin(self, start: Mapping[str, Any]) -> Offsets:
        """Where the batch begins.

        A new query that finds nothing begins there, as Spark's own source notes it: all that comes later is read from
        its first record, wherever the query was to begin.
        """
        if not is_sentinel(start):
            return read_offset(start)
        if self._resolved is None:
            options = self._options
            self._resolved = self._lookup.ask(
                lambda lookup: resolve(
                    options.starting(streaming=True),
                    lookup.partitions(self._strategy),
                    lookup,
                    "start",
                    latest_if_none=options.starting_no_match is NoMatch.LATEST,
                )
            )
        return self._resolved

    def _latest(self, begin: Offsets, *, everything: bool) -> Offsets:
        """The latest offsets, or the targets of a bounded run."""
        if self._available_now:
            if self._targets is None:
                self._targets = self._not_before(begin, self._watch.fresh())
            return self._targets
        fresh = everything or not self._called
        self._called = True
        return self._not_before(begin, self._watch.fresh() if fresh else self._watch.remembered())

    def _ask_latest(self, look_for_partitions: bool) -> Offsets:  # noqa: FBT001 - called by the watch only
        def ask(lookup: Any) -> Offsets:
            if look_for_partitions or not self._assigned:
                self._assigned = lookup.partitions(self._strategy)
            found: Offsets = lookup.latest(self._assigned)
            if len(found) < len(self._assigned):  # something was deleted: without it, if it is really gone
                self._assigned = lookup.partitions(self._strategy)
                found = lookup.latest(self._assigned)
            return found

        return self._lookup.ask(ask)

    def _not_before(self, begin: Offsets, latest: Offsets) -> Offsets:
        """The latest offsets, asked for again while one lies before another that was there already.

        KAFKA-7703: a broker may answer with an offset that is too low. As Spark's own ``fetchLatestOffsets`` does.
        """
        for _ in range(self._options.offset_retries - 1):
            wrong = {each: end for each, end in latest.items() if end < begin.get(each, 0)}
            if not wrong:
                break
            _log.warning(
                "[KAFKA_OFFSETS_RETRIED] Found incorrect offsets in some partitions (partition, previous offset, "
                "fetched offset): %s",
                [(str(each), begin[each], end) for each, end in sorted(wrong.items())],
            )
            self._lookup.pause()
            latest = self._watch.fresh()
        return latest

    def _end(self, begin: Offsets, latest: Offsets, *, everything: bool) -> Offsets:
        """Where the batch ends, within the limits."""
        options = self._options
        new = self._begin_of_new(begin, latest)
        if everything:
            return latest
        if options.min_offsets_per_trigger is not None and not self._available_now:
            available, now = new_offsets(begin, latest, new), self._clock()
            if delays_batch(
                options.min_offsets_per_trigger, options.max_trigger_delay, available, now, self._last_batch
            ):
                return begin
            self._last_batch = now
        if options.max_offsets_per_trigger is not None:
            return rate_limited(options.max_offsets_per_trigger, begin, latest, new)
        return latest

    def _begin_of_new(self, begin: Offsets, latest: Offsets) -> Offsets:
        """The earliest offsets of partitions that came since; each is asked for once."""
        new = [each for each in latest if each not in begin]
        if unknown := [each for each in new if each not in self._first_offsets]:
            self._first_offsets |= self._lookup.ask(lambda lookup: lookup.earliest(unknown))
        return {each: self._first_offsets[each] for each in new if each in self._first_offsets}

    def report_latest_offset(self) -> dict[str, Any] | None:
        """The newest offsets when the last batch was planned, for Spark's progress reports.

        Not those of now: a query without limits has then read all there was, and its lag is 0, as with Spark's own.
        """
        return end_offset(self._newest) if self._newest else None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[OffsetRange]:
        """The ranges of a batch.

        Raises:
            DataLossError: rows are gone, and ``failOnDataLoss`` is set.
            OffsetError: in a bounded run, Kafka does not have any more what it had at its start.
        """
        if is_sentinel(end):
            return []
        until = read_offset(end)
        begin = resolved_start(end) if is_sentinel(start) else read_offset(start)
        if self._targets is not None:
            self._check_targets(until)
        begin = self._without_deleted(begin, until) | self._with_added(begin, until)
        ranges = []
        for each in sorted(until):
            if each not in begin:
                continue
            if until[each] < begin[each]:
                self._report(
                    "PARTITION_OFFSET_CHANGED",
                    f"Partition {each}'s offset was changed from {begin[each]} to {until[each]}",
                    str(each),
                )
            ranges.append(OffsetRange(each.topic, each.partition, begin[each], until[each]))
        return split_ranges(ranges, self._options.min_partitions, self._options.max_records_per_partition)

    def _without_deleted(self, begin: Offsets, until: Offsets) -> Offsets:
        deleted = [each for each in begin if each not in until]
        if deleted:
            group = self._options.client.get("group.id")
            kind = "PARTITIONS_DELETED" if group is None else "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT"
            also = "" if group is None else f"; kafka.group.id is {group}, which other consumers may share"
            self._report(kind, f"Partitions {describe(deleted)} have been deleted{also}", describe(deleted))
        return {each: offset for each, offset in begin.items() if each in until}

    def _with_added(self, begin: Offsets, until: Offsets) -> Offsets:
        """Partitions that came since begin at their first record, wherever the query once began."""
        added = [each for each in until if each not in begin]
        if not added:
            return {}
        first = self._lookup.ask(lambda lookup: lookup.earliest(added))
        if missing := [each for each in added if each not in first]:
            self._report(
                "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
                f"Cannot find initial offsets for partitions {describe(missing)}. They may have been deleted",
                describe(missing),
            )
        for each in sorted(each for each, offset in first.items() if offset != 0):
            self._report(
                "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                f"Added partition {each} starts from {first[each]} instead of 0",
                str(each),
            )
        return first

    def _report(self, kind: str, reason: str, where: str) -> None:
        report_loss(kind, reason, where, fail=self._options.fail_on_data_loss)

    def _check_targets(self, until: Offsets) -> None:
        """A bounded run reads what its start has seen, or fails: whatever ``failOnDataLoss`` says."""
        targets = self._targets or {}
        if set(until) != set(targets):
            raise self._changed(
                "KAFKA_MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED",
                "Kafka data source in Trigger.AvailableNow should provide the same topic partitions in pre-fetched "
                "offset to end offset for each microbatch. "
                f"Pre-fetched: {describe(targets)} End: {describe(until)}",
            )
        if beyond := {each: end for each, end in until.items() if end > targets[each]}:
            raise self._changed(
                "KAFKA_END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
                "For Kafka data source with Trigger.AvailableNow, end offset should have lower or equal offset per "
                f"each topic partition than pre-fetched offset. End: {offset_json(beyond)}",
            )
        latest = self._not_before(until, self._watch.fresh())
        if lost := [each for each in until if each not in latest]:
            raise self._changed(
                "KAFKA_LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW",
                "Some of partitions in Kafka topic(s) have been lost during running query with Trigger.AvailableNow: "
                f"{describe(lost)}",
            )
        if short := {each: end for each, end in until.items() if latest[each] < end}:
            raise self._changed(
                "KAFKA_END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
                "Some of partitions in Kafka topic(s) report available offset which is less than end offset during "
                f"running query with Trigger.AvailableNow: {offset_json(short)}",
            )

    def _changed(self, code: str, what: str) -> ConnectorError:
        return OffsetError(code, what, "trigger(availableNow=True)", _REPLAY_HINT)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark is done with a batch: tell the group, if there is one."""
        if self._committer is not None and not is_sentinel(end):
            self._committer.commit(read_offset(end))

    def stop(self) -> None:
        """End the threads and close the connections."""
        self._watch.stop()
        if self._committer is not None:
            self._committer.stop()
        self._lookup.close()
