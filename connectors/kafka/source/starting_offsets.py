"""From what the user asked for to offsets, and the checks that Spark's own source makes on the way."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal

from connectors.core.errors import OptionError
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.offsets import (
    EARLIEST,
    LATEST,
    Earliest,
    Group,
    Latest,
    Offsets,
    Position,
    Specific,
    Timestamp,
    TopicPartition,
    describe,
)

__all__ = ["resolve", "resolve_words", "unresolved"]

Side = Literal["start", "end"]
_SIDE_OPTIONS: Final = {"start": "startingOffsets", "end": "endingOffsets"}


def resolve(
    position: Position, partitions: Collection[TopicPartition], lookup: KafkaLookup, side: Side, *, latest_if_none: bool
) -> Offsets:
    """An offset, 0 or more, for each partition.

    Args:
        position: what was asked for.
        partitions: all partitions that are read.
        lookup: asks Kafka.
        side: which end is meant, for errors.
        latest_if_none: whether a time that no record has reached stands for the end; else it is an error.

    Raises:
        OptionError: the position does not fit the partitions, or no record is as new as a time.
    """
    found = unresolved(position, partitions, lookup, side, latest_if_none=latest_if_none)
    return resolve_words(found, lookup)


def resolve_words(offsets: Mapping[TopicPartition, int], lookup: KafkaLookup) -> Offsets:
    """The same with `EARLIEST` and `LATEST` looked up; a partition that is gone is left out."""
    found = {each: offset for each, offset in offsets.items() if offset >= 0}
    found |= lookup.earliest([each for each, offset in offsets.items() if offset == EARLIEST])
    found |= lookup.latest([each for each, offset in offsets.items() if offset == LATEST])
    return found


def unresolved(
    position: Position, partitions: Collection[TopicPartition], lookup: KafkaLookup, side: Side, *, latest_if_none: bool
) -> Offsets:
    """The same, but `EARLIEST` and `LATEST` stay, so that a task can look them up when it runs.

    Raises:
        OptionError: the position does not fit the partitions, or no record is as new as a time.
    """
    match position:
        case Earliest():
            return dict.fromkeys(partitions, EARLIEST)
        case Latest():
            return dict.fromkeys(partitions, LATEST)
        case Group():
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
    return _at_times(times, lookup, latest_if_none=latest_if_none)


def _specific(position: Specific, partitions: Collection[TopicPartition], side: Side) -> Offsets:
    offsets = {each: position.topics[each.topic] for each in partitions if each.topic in position.topics}
    offsets |= position.offsets
    unknown = {TopicPartition(topic, 0) for topic in position.topics} - {
        TopicPartition(each.topic, 0) for each in partitions
    }
    _check_assigned(
        {**offsets, **dict.fromkeys(unknown, 0)},
        partitions,
        "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        f"Partitions specified for Kafka {side} offsets don't match what are assigned",
        _SIDE_OPTIONS[side],
    )
    return offsets


def _check_assigned(
    named: Mapping[TopicPartition, int], partitions: Collection[TopicPartition], code: str, what: str, where: str
) -> None:
    if set(named) != set(partitions):
        raise OptionError(
            code,
            f"{what}. Maybe topic partitions are created or deleted while the query is running. "
            f"Specified: {describe(named)} Assigned: {describe(partitions)}",
            where,
            "Name every partition that is read, and no other; use -1 for latest and -2 for earliest.",
        )


def _at_times(times: Mapping[TopicPartition, int], lookup: KafkaLookup, *, latest_if_none: bool) -> Offsets:
    found = lookup.at_time(times)
    for each in sorted(found):
        if found[each] < 0 and not latest_if_none:
            raise OptionError(
                "KAFKA_NO_OFFSET_FOR_TIMESTAMP",
                f"No offset matched from request of topic-partition {each} and timestamp {times[each]}",
                "startingOffsetsByTimestampStrategy",
                "Begin at an earlier time, or set startingOffsetsByTimestampStrategy=latest.",
            )
    return {each: LATEST if offset < 0 else offset for each, offset in found.items()}
