"""From the positions that a user asks for to offsets, with the checks of Spark's own source."""

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

__all__ = ["requested_offsets", "resolve", "resolve_sentinels"]

Side = Literal["start", "end"]
_SIDE_OPTIONS: Final = {"start": "startingOffsets", "end": "endingOffsets"}


def resolve(
    position: Position, partitions: Collection[TopicPartition], lookup: KafkaLookup, side: Side, *, latest_if_none: bool
) -> Offsets:
    """Return an offset of at least 0 for each partition; arguments and errors as of `requested_offsets`."""
    offsets = requested_offsets(position, partitions, lookup, side, latest_if_none=latest_if_none)
    return resolve_sentinels(offsets, lookup)


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

    With ``latest_if_none`` a time after the last record stands for the end.

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
    offsets = lookup.at_time(times)
    for partition in sorted(offsets):
        if offsets[partition] < 0 and not latest_if_none:
            raise OptionError(
                "KAFKA_NO_OFFSET_FOR_TIMESTAMP",
                f"No offset matched from request of topic-partition {partition} and timestamp {times[partition]}",
                "startingOffsetsByTimestampStrategy",
                "Begin at an earlier time, or set startingOffsetsByTimestampStrategy=latest.",
            )
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
            "Name every partition that is read, and no other; use -1 for latest and -2 for earliest.",
        )
