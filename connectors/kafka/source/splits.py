"""The ranges of offsets that tasks read: pure functions, with the arithmetic of Spark's own source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from connectors.core.errors import OffsetError
from connectors.kafka.offsets import EARLIEST, LATEST, TopicPartition

__all__ = ["OffsetRange", "keep_words", "split_ranges", "start_behind_end"]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition: from ``start`` up to, not with, ``end``; a batch read may have words at its ends."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition it lies in."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets it holds; there may be fewer records. Only right for numbers."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic_partition} offsets {self.start} to {self.end}"


def split_ranges(
    ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Cut large ranges, so that there are enough of them and none is too large; empty ones are left out.

    Args:
        ranges: with numbers at both ends.
        min_partitions: how many there should be at least.
        max_records: how many offsets each may hold at most.
    """
    found = [each for each in ranges if each.size > 0]
    if max_records is not None:
        found = [part for each in found for part in _cut(each, -(-each.size // max_records))]
    if min_partitions is not None and len(found) < min_partitions:
        found = _enough(found, min_partitions)
    return found


def _enough(ranges: Sequence[OffsetRange], wanted: int) -> list[OffsetRange]:
    """Cut ranges in proportion to their sizes; those too small for two parts do not count in the proportion."""
    total = sum(each.size for each in ranges)
    whole = {each for each in ranges if _parts(each.size, total, wanted) == 1}
    large = sum(each.size for each in ranges if each not in whole)
    left = wanted - len(whole)
    return [
        part for each in ranges for part in ([each] if each in whole else _cut(each, _parts(each.size, large, left)))
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    """A proportional share, rounded half up, at least one."""
    return max(int(size / total * wanted + 0.5), 1)


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """So many contiguous ranges of nearly equal size; no part is empty."""
    parts = min(parts, whole.size)
    cuts = [whole.start]
    for number in range(parts):
        left = whole.end - cuts[-1]
        cuts.append(cuts[-1] + left // (parts - number))
    return [replace(whole, start=first, end=last) for first, last in pairwise(cuts)]


def keep_words(parts: Iterable[OffsetRange], words: Mapping[TopicPartition, tuple[int, int]]) -> list[OffsetRange]:
    """Put ``earliest`` and ``latest`` back at the outer ends of cut ranges, so that they are found when tasks run.

    Args:
        parts: cut from resolved ranges, in order.
        words: what each partition was asked with: its start and its end.
    """
    found = list(parts)
    first: dict[TopicPartition, int] = {}
    last: dict[TopicPartition, int] = {}
    for index, part in enumerate(found):
        first.setdefault(part.topic_partition, index)
        last[part.topic_partition] = index
    for each, (start, end) in words.items():
        if each in first and start == EARLIEST:
            found[first[each]] = replace(found[first[each]], start=EARLIEST)
        if each in last and end == LATEST:
            found[last[each]] = replace(found[last[each]], end=LATEST)
    return found


def start_behind_end(stage: str, where: TopicPartition, start: int, end: int) -> OffsetError:
    """The error for a batch read that would begin behind its end.

    Args:
        stage: ``UNRESOLVED`` as the options say it, ``RESOLVED`` as words and times were found.
        where: the partition.
        start: where it would begin.
        end: where it would end.
    """
    return OffsetError(
        f"KAFKA_{stage}_START_OFFSET_GREATER_THAN_END_OFFSET",
        f"The start offset {start} of {where} is greater than its end offset {end}",
        "startingOffsets, endingOffsets",
        "Begin at or before the end. If the topic was deleted and made anew, its offsets begin at 0 again; with "
        "kafka.isolation.level=read_committed the end lies before the first open transaction.",
    )
