"""Planning a batch read: ranges whose ends stay words until tasks run, unless they must be split or filtered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from connectors.core.errors import OffsetError
from connectors.kafka.filters import Bounds
from connectors.kafka.lookup import PatientLookup
from connectors.kafka.offsets import EARLIEST, LATEST, Offsets, TopicPartition, describe
from connectors.kafka.options import NoMatch
from connectors.kafka.positions import Latest, Timestamp, Timestamps
from connectors.kafka.ranges import OffsetRange, keep_words, split_ranges, start_behind_end
from connectors.kafka.resolve import resolve_words, unresolved

if TYPE_CHECKING:
    from connectors.kafka.client import KafkaLookup
    from connectors.kafka.options import KafkaReadOptions

__all__ = ["plan_batch"]


def plan_batch(options: KafkaReadOptions, bounds: Bounds) -> list[OffsetRange]:
    """The ranges of a batch read.

    Args:
        options: the parsed options.
        bounds: what the query's filters leave.

    Raises:
        OffsetError: the start lies behind the end, or the two name different partitions.
    """
    lookup = PatientLookup(options)
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
