"""Plans a batch read: the ranges of tasks, whose ends stay `EARLIEST` and `LATEST` unless they are split or filtered.

Filters on ``topic``, ``partition``, ``offset`` and ``timestamp`` spare reading. Spark applies every filter as well:
here only what cannot match is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from connectors.core.errors import OffsetError
from connectors.core.options.filters import allows, interval, time_interval
from connectors.core.processes.spark import Filter
from connectors.kafka.client.admin import KafkaLookup, RetryingLookup
from connectors.kafka.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    Specific,
    Timestamp,
    Timestamps,
    TopicPartition,
    describe,
)
from connectors.kafka.options.source import KafkaReadOptions, NoMatch
from connectors.kafka.source.planning import (
    OffsetRange,
    requested_offsets,
    resolve_sentinels,
    restore_sentinels,
    split_ranges,
    start_behind_end,
)
from connectors.kafka.source.reader import report_data_loss

_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """What filters leave: partitions that match; offsets before ``end``; times from ``since`` ms on."""

    filters: tuple[Filter, ...] = ()
    first: int = 0
    end: int = _LARGEST
    since: int | None = None

    @property
    def cut_offsets(self) -> bool:
        return self.first > 0 or self.end < _LARGEST or self.since is not None

    def wants(self, partition: TopicPartition) -> bool:
        return allows(self.filters, topic=partition.topic, partition=partition.partition)

    def cut(self, ranges: Iterable[OffsetRange], lookup: KafkaLookup) -> list[OffsetRange]:
        """Return the parts of ranges that can have matching records, with numbers at both ends."""
        parts = [replace(part, start=max(part.start, self.first), end=min(part.end, self.end)) for part in ranges]
        if self.since is None:
            return parts
        offsets = lookup.at_time({part.topic_partition: self.since for part in parts})
        # All records before the first that is as new are older; without such a record all are.
        starts = {partition: _LARGEST if offset < 0 else offset for partition, offset in offsets.items()}
        return [
            replace(part, start=min(part.end, max(part.start, starts.get(part.topic_partition, part.start))))
            for part in parts
        ]


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """Return what filters, which must all hold, leave; those that say nothing here are ignored."""
    all_filters = tuple(filters)
    first, last = interval(all_filters, "offset")
    since, _ = time_interval(all_filters, "timestamp")
    bounds = Bounds(all_filters, max(first or 0, 0), _LARGEST if last is None else last + 1)
    # Records without a time have the one a millisecond before 1970, and Kafka does not find them by a time.
    return bounds if since is None or since < 0 else replace(bounds, since=since // 1000)


def plan_batch(options: KafkaReadOptions, bounds: Bounds) -> list[OffsetRange]:
    with contextlib.closing(RetryingLookup(options)) as patient:
        return patient.ask(lambda lookup: _plan(options, bounds, lookup))


def _plan(options: KafkaReadOptions, bounds: Bounds, lookup: KafkaLookup) -> list[OffsetRange]:
    assigned = lookup.partitions(options.strategy)
    latest = options.starting_no_match is NoMatch.LATEST
    start = requested_offsets(options.start, assigned, lookup, "start", latest_if_none=latest)
    # A start at the end means the end as it is now.
    start |= lookup.latest([partition for partition, offset in start.items() if offset == LATEST])
    end = requested_offsets(options.end, assigned, lookup, "end", latest_if_none=True)
    if isinstance(options.end, Timestamp | Timestamps):
        # Records that arrive from now on are newer than that time, and not part of this read, whenever its tasks run.
        end |= lookup.latest([partition for partition, offset in end.items() if offset == LATEST])
    if isinstance(options.end, Specific) and not options.fail_on_data_loss:
        end |= _ends_of_log(start, end, lookup)
    _check_order(start, end, resolved=False)
    requested = {partition: (start[partition], end[partition]) for partition in filter(bounds.wants, sorted(start))}
    least, most = options.min_partitions, options.max_records_per_partition
    if most is None and (least or 0) <= len(requested) and not bounds.cut_offsets:
        ranges = [OffsetRange(*partition, *ends) for partition, ends in requested.items()]
        return [part for part in ranges if part.start < 0 or part.end < 0 or part.size > 0]
    start = resolve_sentinels({partition: start[partition] for partition in requested}, lookup)
    end = resolve_sentinels({partition: end[partition] for partition in requested}, lookup)
    _check_order(start, end, resolved=True)
    whole = [OffsetRange(*partition, start[partition], end[partition]) for partition in sorted(start)]
    if bounds.cut_offsets:
        return split_ranges(bounds.cut(whole, lookup), least, most)
    return restore_sentinels(split_ranges(whole, least, most), requested)


def _ends_of_log(start: Offsets, end: Offsets, lookup: KafkaLookup) -> Offsets:
    """Return the ends of partitions whose logs end before ``endingOffsets``: tasks would wait for records in vain."""
    latest = lookup.latest([partition for partition, offset in end.items() if offset >= 0])
    beyond = {partition: offset for partition, offset in latest.items() if offset < end[partition]}
    for partition, offset in sorted(beyond.items()):
        reason = f"{partition} ends at {offset}, but endingOffsets is {end[partition]}"
        report_data_loss("KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE", reason, str(partition), fail=False)
    return {partition: max(offset, start.get(partition, 0)) for partition, offset in beyond.items()}


def _check_order(start: Offsets, end: Offsets, *, resolved: bool) -> None:
    if set(start) != set(end):
        raise OffsetError(
            "KAFKA_MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
            f"Topic partitions differ between start and end. Start: {describe(start)} End: {describe(end)}",
            "startingOffsets, endingOffsets",
        )
    for partition in sorted(start):
        if start[partition] > end[partition] and end[partition] not in {EARLIEST, LATEST}:
            raise start_behind_end(partition, start[partition], end[partition], resolved=resolved)
