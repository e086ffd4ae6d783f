"""Filters of a batch read that spare reading: on ``topic``, ``partition``, ``offset`` and ``timestamp``.

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

from connectors.kafka.offsets import TopicPartition
from connectors.kafka.ranges import OffsetRange

if TYPE_CHECKING:
    from connectors.kafka.client import KafkaLookup

__all__ = ["Bounds", "bounds_of"]

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
