"""Planning a batch read: ranges whose ends stay words until tasks run, unless they must be split or filtered.

Filters of a batch read that spare reading: on ``topic``, ``partition``, ``offset`` and ``timestamp``.

Every filter is also left to Spark: here, only what cannot match is not read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
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

from connectors.core.errors import OffsetError
from connectors.kafka.client.admin import RetryingLookup
from connectors.kafka.offsets import EARLIEST, LATEST, Latest, Offsets, Timestamp, Timestamps, TopicPartition, describe
from connectors.kafka.options.source import NoMatch
from connectors.kafka.source.splits import OffsetRange, keep_words, split_ranges, start_behind_end
from connectors.kafka.source.starting_offsets import resolve_words, unresolved

if TYPE_CHECKING:
    from connectors.kafka.client.admin import KafkaLookup
    from connectors.kafka.options.source import KafkaReadOptions

__all__ = ["Bounds", "bounds_of", "plan_batch"]


_LARGEST: Final = 2**63 - 1
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What filters leave.

    Attributes:
        tests: each must hold for a partition that is read.
        first: the lowest offset that can match.
        end: behind the highest offset that can match.
        since: milliseconds that no matching record is older than.
    """

    tests: tuple[Callable[[TopicPartition], bool], ...] = field(default=())
    first: int = 0
    end: int = _LARGEST
    since: int | None = None

    @property
    def cut_offsets(self) -> bool:
        """Whether a part of a partition may be left out."""
        return self.first > 0 or self.end < _LARGEST or self.since is not None

    def wants(self, partition: TopicPartition) -> bool:
        """Whether records of a partition can match."""
        return all(test(partition) for test in self.tests)

    def cut(self, ranges: Iterable[OffsetRange], lookup: KafkaLookup) -> list[OffsetRange]:
        """The parts of ranges, with numbers at both ends, in which records can match."""
        kept = [replace(each, start=max(each.start, self.first), end=min(each.end, self.end)) for each in ranges]
        if self.since is None:
            return kept
        found = lookup.at_time({each.topic_partition: self.since for each in kept})
        # Every record before the first that is as new is older; without such a record all are.
        begins = {where: _LARGEST if offset < 0 else offset for where, offset in found.items()}
        return [
            replace(each, start=min(each.end, max(each.start, begins.get(each.topic_partition, each.start))))
            for each in kept
        ]


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """What some filters, which must all hold, leave; filters that say nothing here are passed over."""
    bounds = Bounds()
    for each in filters:
        column = getattr(each, "attribute", ())
        if column in {("topic",), ("partition",)}:
            bounds = _on_partition(bounds, each, column[0])
        elif column == ("offset",):
            first, end = _span(each)
            bounds = replace(bounds, first=max(bounds.first, first), end=min(bounds.end, end))
        elif column == ("timestamp",):
            since = _since(each)
            if since is not None:
                bounds = replace(bounds, since=since if bounds.since is None else max(since, bounds.since))
    return bounds


_TESTS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: lambda own, value: bool(own == value),
    EqualNullSafe: lambda own, value: bool(own == value),
    In: lambda own, value: own in value,
    GreaterThan: lambda own, value: bool(own > value),
    GreaterThanOrEqual: lambda own, value: bool(own >= value),
    LessThan: lambda own, value: bool(own < value),
    LessThanOrEqual: lambda own, value: bool(own <= value),
    StringStartsWith: lambda own, value: bool(own.startswith(value)),
}


def _on_partition(bounds: Bounds, each: Any, column: str) -> Bounds:
    test = _TESTS.get(type(each))
    value = getattr(each, "value", None)
    if test is None or value is None:
        return bounds

    def holds(partition: TopicPartition) -> bool:
        return test(getattr(partition, column), value)

    return replace(bounds, tests=(*bounds.tests, holds))


_SPANS: Final[dict[type[Filter], Callable[[Any], tuple[int, int]]]] = {
    EqualTo: lambda value: (value, value + 1),
    EqualNullSafe: lambda value: (value, value + 1),
    In: lambda value: (min(value, default=0), max(value, default=-1) + 1),
    GreaterThan: lambda value: (value + 1, _LARGEST),
    GreaterThanOrEqual: lambda value: (value, _LARGEST),
    LessThan: lambda value: (0, value),
    LessThanOrEqual: lambda value: (0, value + 1),
}


def _span(each: Any) -> tuple[int, int]:
    """The offsets that a filter leaves: from the first, up to and not with the second."""
    span = _SPANS.get(type(each))
    value = getattr(each, "value", None)
    if span is None or value is None or (isinstance(each, In) and None in value):
        return 0, _LARGEST
    return span(value)


def _since(each: Any) -> int | None:
    """The time, in milliseconds, that no matching record is older than; none before 1970.

    Records without a time have the one a millisecond before 1970, and would not be found by a time.
    """
    value = getattr(each, "value", None)
    if not isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual) or not isinstance(
        value, dt.datetime
    ):
        return None
    aware = value if value.tzinfo is not None else value.astimezone()
    since = (aware - _EPOCH) // dt.timedelta(milliseconds=1)
    return since if since >= 0 else None


def plan_batch(options: KafkaReadOptions, bounds: Bounds) -> list[OffsetRange]:
    """The ranges of a batch read.

    Args:
        options: the parsed options.
        bounds: what the query's filters leave.

    Raises:
        OffsetError: the start lies behind the end, or the two name different partitions.
    """
    lookup = RetryingLookup(options)
    try:
        return lookup.ask(lambda asked: _plan(options, bounds, asked))
    finally:
        lookup.close()


def _plan(options: KafkaReadOptions, bounds: Bounds, lookup: KafkaLookup) -> list[OffsetRange]:
    if options.strategy is None:
        raise ValueError("the options were not made by parse_read_options")
    assigned = lookup.partitions(options.strategy)
    start = unresolved(
        options.starting(streaming=False),
        assigned,
        lookup,
        "start",
        latest_if_none=options.starting_no_match is NoMatch.LATEST,
    )
    # A start at the end means the end as it is now.
    start |= lookup.latest([each for each, offset in start.items() if offset == LATEST])
    end = unresolved(options.end or Latest(), assigned, lookup, "end", latest_if_none=True)
    if isinstance(options.end, Timestamp | Timestamps):
        # What comes from now on is newer than that time: it is none of this read, whenever its tasks run.
        end |= lookup.latest([each for each, offset in end.items() if offset == LATEST])
    _check(start, end, "UNRESOLVED")
    wanted = [each for each in sorted(start) if bounds.wants(each)]
    words = {each: (start[each], end[each]) for each in wanted}
    splits = options.max_records_per_partition is not None or (options.min_partitions or 0) > len(wanted)
    if not splits and not bounds.cut_offsets:
        return [
            OffsetRange(each.topic, each.partition, first, last)
            for each, (first, last) in words.items()
            if first < 0 or last < 0 or first < last
        ]
    first = resolve_words({each: start[each] for each in wanted}, lookup)
    last = resolve_words({each: end[each] for each in wanted}, lookup)
    _check(first, last, "RESOLVED")
    whole = _ranges(first, last)
    if bounds.cut_offsets:
        return split_ranges(bounds.cut(whole, lookup), options.min_partitions, options.max_records_per_partition)
    return keep_words(split_ranges(whole, options.min_partitions, options.max_records_per_partition), words)


def _ranges(first: Offsets, last: Offsets) -> Iterable[OffsetRange]:
    return [OffsetRange(each.topic, each.partition, first[each], last[each]) for each in sorted(first) if each in last]


def _check(start: Offsets, end: Offsets, stage: str) -> None:
    if set(start) != set(end):
        raise OffsetError(
            "KAFKA_MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
            f"Topic partitions differ between start and end. Start: {describe(start)} End: {describe(end)}",
            "startingOffsets, endingOffsets",
            "Name the same partitions in both.",
        )
    behind: list[TopicPartition] = [
        each for each in start if start[each] > end[each] and end[each] not in {EARLIEST, LATEST}
    ]
    for each in sorted(behind):
        raise start_behind_end(stage, each, start[each], end[each])
