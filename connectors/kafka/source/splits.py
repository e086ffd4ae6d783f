"""The ranges of offsets that tasks read: pure functions, with the arithmetic of Spark's own source."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from connectors.core.errors import OffsetError
from connectors.kafka.offsets import EARLIEST, LATEST, TopicPartition

__all__ = ["OffsetRange", "restore_sentinels", "split_ranges", "start_behind_end"]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, without ``end`` itself; a batch read may have `EARLIEST` and `LATEST` at its ends."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the topic."""
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
    """Cut ranges into at least ``min_partitions`` parts of at most ``max_records``; drop empty ones."""
    parts = [part for part in ranges if part.size > 0]
    if max_records is not None:
        parts = [part for whole in parts for part in _cut(whole, -(-whole.size // max_records))]
    if min_partitions is not None and len(parts) < min_partitions:
        parts = _cut_by_size(parts, min_partitions)
    return parts


def _cut_by_size(ranges: Sequence[OffsetRange], wanted: int) -> list[OffsetRange]:
    """Cut ranges in proportion to their sizes; those too small for two parts do not count in the proportion."""
    total = sum(part.size for part in ranges)
    whole = {part for part in ranges if _share(part.size, total, wanted) == 1}
    large = sum(part.size for part in ranges if part not in whole)
    left = wanted - len(whole)
    pieces = ([part] if part in whole else _cut(part, _share(part.size, large, left)) for part in ranges)
    return [*itertools.chain.from_iterable(pieces)]


def _share(size: int, total: int, wanted: int) -> int:
    """Return a proportional share, rounded half up, at least one."""
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


def start_behind_end(stage: str, partition: TopicPartition, start: int, end: int) -> OffsetError:
    """Return the error for a batch read that would begin after its end.

    ``stage`` is ``UNRESOLVED`` for offsets of the options, ``RESOLVED`` for those that were looked up.
    """
    return OffsetError(
        f"KAFKA_{stage}_START_OFFSET_GREATER_THAN_END_OFFSET",
        f"The start offset {start} of {partition} is greater than its end offset {end}",
        "startingOffsets, endingOffsets",
        "Begin at or before the end. If the topic was recreated, its offsets begin at 0 again; with "
        "kafka.isolation.level=read_committed the end lies before the first open transaction.",
    )
