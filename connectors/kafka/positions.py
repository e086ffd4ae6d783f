"""Where a query begins and where a batch read ends, as the user said it, before Kafka was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from connectors.core.errors import OptionError
from connectors.core.options.kinds import INTEGER
from connectors.kafka.offsets import EARLIEST, LATEST, TopicPartition, parse_json_offsets

__all__ = [
    "CONNECTOR",
    "Earliest",
    "Group",
    "Latest",
    "Position",
    "Specific",
    "Timestamp",
    "Timestamps",
    "check_batch_positions",
    "illegal",
    "parse_position",
]

CONNECTOR: Final = "kafka_py"


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record there is."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Behind the last record there is."""


@dataclass(frozen=True, slots=True)
class Group:
    """Where a consumer group has committed; the earliest where it has not."""


@dataclass(frozen=True, slots=True)
class Specific:
    """An offset for each partition, or for all of a topic; `EARLIEST` and `LATEST` too."""

    offsets: Mapping[TopicPartition, int]
    topics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The first record as new as this, in milliseconds, in every partition."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The same, for each partition."""

    milliseconds: Mapping[TopicPartition, int]


Position = Earliest | Latest | Group | Specific | Timestamp | Timestamps


def illegal(what: str, action: str) -> OptionError:
    """The error for options that cannot be, with a text of our own or of Spark's own source."""
    return OptionError("OPTION_ILLEGAL", what, CONNECTOR, action)


def parse_position(
    side: Literal["starting", "ending"], timestamp: str | None, by_timestamp: str | None, offsets: str | None
) -> Position | None:
    """Read the three options of one side; the first that is given wins, in the order of the arguments.

    Returns:
        What was asked for; None for the default.

    Raises:
        OptionError: one is malformed, also one that does not win.
    """
    try:
        parsed = [
            None if text is None else parse(text)
            for text, parse in (
                (timestamp, _timestamp),
                (by_timestamp, _timestamps),
                (offsets, _group_or_offsets if side == "starting" else _offsets),
            )
        ]
    except ValueError as error:
        raise illegal(str(error), f"Correct the {side} position.") from None
    return next((each for each in parsed if each is not None), None)


def _timestamp(text: str) -> Position:
    try:
        time = INTEGER.parse(text)
    except ValueError:
        raise ValueError(f"Expected a single long value, got {text}") from None
    if time < 0:  # to Kafka these are words: the latest, the earliest, the newest
        raise ValueError(f"Expected a time of at least 0, in milliseconds since 1970, got {text}")
    return Timestamp(time)


def _timestamps(text: str) -> Position:
    return Timestamps(parse_json_offsets(text, times=True)[0])


def _offsets(text: str) -> Position:
    match text.lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
    return Specific(*parse_json_offsets(text))


def _group_or_offsets(text: str) -> Position:
    return Group() if text.lower() == "group" else _offsets(text)


def check_batch_positions(start: Position | None, end: Position | None) -> None:
    """What a batch read cannot begin or end with.

    Raises:
        OptionError: it does.
    """
    if isinstance(start, Latest):
        raise illegal(
            "starting offset can't be latest for batch queries on Kafka", "Begin at earliest, or at an offset."
        )
    if isinstance(start, Specific):
        for name in _named(start, LATEST):
            raise illegal(
                f"startingOffsets for {name} can't be latest for batch queries on Kafka", "Give -2 or an offset."
            )
    if isinstance(end, Earliest):
        raise illegal("ending offset can't be earliest for batch queries on Kafka", "End at latest, or at an offset.")
    if isinstance(end, Specific):
        for name in _named(end, EARLIEST):
            raise illegal(
                f"ending offset for {name} can't be earliest for batch queries on Kafka", "Give -1 or an offset."
            )
    if isinstance(start, Timestamps) and isinstance(end, Timestamps):
        for each, first in sorted(start.milliseconds.items()):
            if first > (last := end.milliseconds.get(each, first)):
                raise illegal(
                    f"The specified start timestamp {first} is greater than the end timestamp {last} for topic "
                    f"{each.topic} partition {each.partition}",
                    "Give times in their order.",
                )


def _named(position: Specific, offset: int) -> list[str]:
    """The partitions and topics that have this offset."""
    found = [str(each) for each, value in sorted(position.offsets.items()) if value == offset]
    return found + [topic for topic, value in sorted(position.topics.items()) if value == offset]
