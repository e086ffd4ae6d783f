"""From the positions that a user asks for to offsets, and from offsets to the ranges that tasks read.

The checks and the arithmetic are those of Spark's own source.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from connectors.core.errors import OffsetError, OptionError
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.offsets import (
    EARLIEST,
    LATEST,
    Anywhere,
    Offsets,
    Position,
    Specific,
    Timestamp,
    TopicPartition,
    describe,
)
from connectors.kafka.options.source import KafkaReadOptions, NoMatch

Side = Literal["start", "end"]
_SIDE_OPTIONS: Final = {"start": "startingOffsets", "end": "endingOffsets"}


def starting_offsets(options: KafkaReadOptions, partitions: Collection[TopicPartition], lookup: KafkaLookup) -> Offsets:
    """Return the offset, of at least 0, where a new stream begins in each partition."""
    latest = options.starting_no_match is NoMatch.LATEST
    position = options.start
    return resolve_sentinels(requested_offsets(position, partitions, lookup, "start", latest_if_none=latest), lookup)


def resolve_sentinels(offsets: Mapping[TopicPartition, int], lookup: KafkaLookup) -> Offsets:
    """Look `EARLIEST` and `LATEST` up; a partition that is gone is left out."""
    resolved = {partition: offset for partition, offset in offsets.items() if offset >= 0}
    resolved |= lookup.earliest([partition for partition, offset in offsets.items() if offset == EARLIEST])
    resolved |= lookup.latest([partition for partition, offset in offsets.items() if offset == LATEST])
    return resolved


def requested_offsets(
    position: Position, partitions: Collection[TopicPartition], lookup: KafkaLookup, side: Side, *, latest_if_none: bool
) -> Offsets:
    """Return an offset for each partition; `EARLIEST` and `LATEST` stay, so that a task can look them up.

    With ``latest_if_none`` a time after the last record stands for the end; else it raises an `OptionError`.
    """
    match position:
        case Anywhere.EARLIEST:
            return dict.fromkeys(partitions, EARLIEST)
        case Anywhere.LATEST:
            return dict.fromkeys(partitions, LATEST)
        case Anywhere.GROUP:
            return dict.fromkeys(partitions, EARLIEST) | lookup.committed(partitions)
        case Specific():
            return _specific(position, partitions, side)
        case Timestamp(milliseconds):
            times: Mapping[TopicPartition, int] = dict.fromkeys(partitions, milliseconds)
        case _:
            times = position.milliseconds
            _check_assigned(
                times,
                partitions,
                "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
                f"Partitions specified for Kafka {side} timestamp-based offsets don't match what are assigned",
                f"{_SIDE_OPTIONS[side]}ByTimestamp",
            )
    offsets = lookup.at_time(times)
    for partition in sorted(offsets):
        if offsets[partition] < 0 and not latest_if_none:
            what = f"No offset matched from request of topic-partition {partition} and timestamp {times[partition]}"
            raise OptionError("KAFKA_NO_OFFSET_FOR_TIMESTAMP", what, "startingOffsetsByTimestampStrategy")
    return {partition: LATEST if offset < 0 else offset for partition, offset in offsets.items()}


def _specific(position: Specific, partitions: Collection[TopicPartition], side: Side) -> Offsets:
    topics = position.topics
    offsets = {partition: topics[partition.topic] for partition in partitions if partition.topic in topics}
    offsets |= position.offsets
    unknown = topics.keys() - {partition.topic for partition in partitions}
    _check_assigned(
        {*offsets, *(TopicPartition(topic, 0) for topic in unknown)},
        partitions,
        "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        f"Partitions specified for Kafka {side} offsets don't match what are assigned",
        _SIDE_OPTIONS[side],
    )
    return offsets


def _check_assigned(
    named: Collection[TopicPartition], partitions: Collection[TopicPartition], code: str, what: str, where: str
) -> None:
    if set(named) != set(partitions):
        raise OptionError(
            code,
            f"{what}. Maybe topic partitions are created or deleted while the query is running. "
            f"Specified: {describe(named)} Assigned: {describe(partitions)}",
            where,
        )


_ONE_EACH: Final = 64
_SHARED_RANGES: Final = 8
"""The most ranges of one task: their fetches follow one another."""
_SHARED_RECORDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, without ``end`` itself; a batch read may have `EARLIEST` and `LATEST` at its ends."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets it holds, if both ends are numbers; there may be fewer records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic_partition} offsets {self.start} to {self.end}"


def split_ranges(
    ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Cut ranges into about ``min_partitions`` parts, each of at most ``max_records``; drop empty ones.

    Spark's own rule: a range gets its share of the parts by size, rounded, so there may be a few parts less.
    """
    parts = [part for part in ranges if part.size > 0]
    if max_records is not None:
        parts = [part for whole in parts for part in _cut(whole, -(-whole.size // max_records))]
    if min_partitions is not None and len(parts) < min_partitions:
        parts = _cut_by_size(parts, min_partitions)
    return parts


def tasks_of(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges of each task of a stream: one, but of many small ranges several.

    A task costs Spark more than a small range costs Kafka: with 1,000 partitions, most of a batch is tasks. So
    consecutive ranges with few records share a task, where all in all at least `_ONE_EACH` tasks remain, or
    ``min_partitions`` of them. None has more than ``max_records`` for that.
    """
    together = min(len(ranges) // max(min_partitions or 0, _ONE_EACH), _SHARED_RANGES)
    most = _SHARED_RECORDS if max_records is None else min(max_records, _SHARED_RECORDS)
    tasks: list[list[OffsetRange]] = []
    size = 0
    for part in ranges:
        if tasks and len(tasks[-1]) < together and size + part.size <= most:
            tasks[-1].append(part)
            size += part.size
        else:
            tasks.append([part])
            size = part.size
    return [tuple(parts) for parts in tasks]


def _cut_by_size(ranges: Sequence[OffsetRange], wanted: int) -> list[OffsetRange]:
    """Cut ranges in proportion to their sizes; those too small for two parts do not count in the proportion."""
    total = sum(part.size for part in ranges)
    whole = {part for part in ranges if _share(part.size, total, wanted) == 1}
    large = sum(part.size for part in ranges if part not in whole)
    left = wanted - len(whole)
    pieces = ([part] if part in whole else _cut(part, _share(part.size, large, left)) for part in ranges)
    return [*itertools.chain.from_iterable(pieces)]


def _share(size: int, total: int, wanted: int) -> int:
    return max(int(size / total * wanted + 0.5), 1)


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut a range into contiguous parts of nearly equal size; none is empty."""
    parts = min(parts, whole.size)
    cuts = [whole.start]
    for number in range(parts):
        left = whole.end - cuts[-1]
        cuts.append(cuts[-1] + left // (parts - number))
    return [replace(whole, start=first, end=last) for first, last in itertools.pairwise(cuts)]


def restore_sentinels(
    parts: Iterable[OffsetRange], requested: Mapping[TopicPartition, tuple[int, int]]
) -> list[OffsetRange]:
    """Put `EARLIEST` and `LATEST` back at the outer ends of ranges that were cut, so that tasks look them up.

    ``requested`` is start and end of each partition before they were resolved; its parts stand in their order.
    """
    restored = list(parts)
    first: dict[TopicPartition, int] = {}
    last: dict[TopicPartition, int] = {}
    for index, part in enumerate(restored):
        first.setdefault(part.topic_partition, index)
        last[part.topic_partition] = index
    for partition, (start, end) in requested.items():
        if partition in first and start == EARLIEST:
            restored[first[partition]] = replace(restored[first[partition]], start=EARLIEST)
        if partition in last and end == LATEST:
            restored[last[partition]] = replace(restored[last[partition]], end=LATEST)
    return restored


def start_behind_end(partition: TopicPartition, start: int, end: int, *, resolved: bool) -> OffsetError:
    """Return the error for a batch read that would begin after its end.

    ``resolved`` offsets were looked up; others are those of the options.
    """
    code = "KAFKA_UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
    if resolved:
        code = "KAFKA_RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
    what = f"The start offset {start} of {partition} is greater than its end offset {end}"
    return OffsetError(code, what, "startingOffsets, endingOffsets")
