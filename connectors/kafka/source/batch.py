"""Plans a batch read: the ranges of tasks, whose ends stay `EARLIEST` and `LATEST` unless they are split or filtered.

Filters on ``topic``, ``partition``, ``offset`` and ``timestamp`` spare reading. Spark applies every filter as well:
here only what cannot match is left out.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connectors.core.errors import OffsetError
from connectors.core.processes.spark import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
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
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What filters leave: partitions for which all tests hold; offsets before ``end``; times from ``since`` ms on."""

    tests: tuple[Callable[[TopicPartition], bool], ...] = field(default=())
    first: int = 0
    end: int = _LARGEST
    since: int | None = None

    @property
    def cut_offsets(self) -> bool:
        return self.first > 0 or self.end < _LARGEST or self.since is not None

    def wants(self, partition: TopicPartition) -> bool:
        return all(test(partition) for test in self.tests)

    def cut(self, ranges: Iterable[OffsetRange], lookup: KafkaLookup) -> list[OffsetRange]:
        """Return the parts of ranges, with numbers at both ends, in which records can match."""
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


_TESTS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    In: lambda own, value: own in value,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: str.startswith,
}
_SPANS: Final[dict[type[Filter], Callable[[Any], tuple[int, int]]]] = {
    EqualTo: lambda value: (value, value + 1),
    EqualNullSafe: lambda value: (value, value + 1),
    In: lambda value: (0, _LARGEST) if None in value else (min(value, default=0), max(value, default=-1) + 1),
    GreaterThan: lambda value: (value + 1, _LARGEST),
    GreaterThanOrEqual: lambda value: (value, _LARGEST),
    LessThan: lambda value: (0, value),
    LessThanOrEqual: lambda value: (0, value + 1),
}
"""The offsets that a filter leaves: the first, and the one after the last."""
_LOWER_BOUNDS: Final = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """Return what filters, which must all hold, leave; those that say nothing here are ignored."""
    bounds = Bounds()
    for condition in filters:
        kind, value = type(condition), getattr(condition, "value", None)
        match getattr(condition, "attribute", ()):
            case _ if value is None:
                continue
            case ("topic" | "partition" as column,) if kind in _TESTS:
                bounds = replace(bounds, tests=(*bounds.tests, _partition_test(column, _TESTS[kind], value)))
            case ("offset",) if kind in _SPANS:
                first, end = _SPANS[kind](value)
                bounds = replace(bounds, first=max(bounds.first, first), end=min(bounds.end, end))
            case ("timestamp",) if kind in _LOWER_BOUNDS and isinstance(value, dt.datetime):
                since = ((value if value.tzinfo else value.astimezone()) - _EPOCH) // dt.timedelta(milliseconds=1)
                # Records without a time have the one a millisecond before 1970, and Kafka does not find them by a time.
                if since >= 0:
                    bounds = replace(bounds, since=max(since, bounds.since or 0))
    return bounds


def _partition_test(column: str, test: Callable[[Any, Any], bool], value: Any) -> Callable[[TopicPartition], bool]:
    return lambda partition: test(getattr(partition, column), value)


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
        reason = f"{partition} ends at {offset}, and endingOffsets says {end[partition]}"
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
