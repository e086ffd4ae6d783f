"""Positions in Kafka as JSON: what users write in options, and what Spark keeps in its checkpoint.

Both have the form of Spark's own Kafka source: ``{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}``, where an offset is
the next one to read, -2 stands for the earliest and -1 for the latest. An offset of the checkpoint has the keys ``v``
and, where it must be, ``_start`` beside its topics; a topic that has such a name is written with a colon before it,
which no name of a topic can hold. An offset that Spark's own source has written is read as well.

Where a query begins and where a batch read ends, as the user said it, before Kafka was asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from connectors.core.errors import OffsetError, OptionError
from connectors.core.offsets import SENTINEL, START_KEY, VERSION, Offset, load_offset, ordered
from connectors.core.options.kinds import INTEGER

__all__ = [
    "CONNECTOR",
    "EARLIEST",
    "LATEST",
    "Earliest",
    "Group",
    "Latest",
    "Offsets",
    "Position",
    "Specific",
    "Timestamp",
    "Timestamps",
    "TopicPartition",
    "check_batch_positions",
    "describe",
    "end_offset",
    "illegal",
    "offset_json",
    "parse_assignment",
    "parse_json_offsets",
    "parse_position",
    "read_offset",
    "refuse_nul",
    "resolved_start",
]


EARLIEST: Final = -2
LATEST: Final = -1
_CONNECTOR: Final = "kafka_py"
_RESERVED: Final = {"v", START_KEY, *SENTINEL}
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_SHORT: Final = 1000
_LARGEST_PARTITION: Final = 2**31 - 1
_LARGEST_OFFSET: Final = 2**63 - 1
_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMES_EXAMPLE: Final = '{"topicA": {"0":123456789, "1":456}, "topicB": {"0":789}}'
_ASSIGN_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[0,1]}'


class TopicPartition(NamedTuple):
    """A partition of a topic; sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets = dict[TopicPartition, int]
"""An offset for each partition: the next one to read, or `EARLIEST` or `LATEST`."""


def parse_json_offsets(text: str, *, times: bool = False) -> tuple[Offsets, dict[str, int]]:
    """Offsets, or times in milliseconds, as a user writes them.

    Args:
        text: JSON; a topic may have ``"earliest"`` or ``"latest"`` instead of offsets for its partitions.
        times: the numbers are times; words are no times.

    Returns:
        What was said of partitions, and what was said of whole topics.

    Raises:
        ValueError: it is not of that form; the text is the one of Spark's own source.
    """
    example = _TIMES_EXAMPLE if times else _OFFSETS_EXAMPLE
    found: Offsets = {}
    topics: dict[str, int] = {}
    try:
        for topic, partitions in _topics(text).items():
            if isinstance(partitions, str) and not times:
                topics[topic] = _WORDS[partitions.lower()]
                continue
            for number, value in partitions.items():
                found[TopicPartition(topic, _partition(_number(number)))] = _offset(value, times=times)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise ValueError(f"Expected e.g. {example}, got {_shown(text)}") from None
    return found, topics


def parse_assignment(text: str) -> frozenset[TopicPartition]:
    """The partitions of the option ``assign``: ``{"topicA":[0,1]}``.

    Raises:
        ValueError: it is not of that form.
    """
    try:
        return frozenset(
            TopicPartition(topic, _partition(number)) for topic, numbers in _topics(text).items() for number in numbers
        )
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise ValueError(f"Expected e.g. {_ASSIGN_EXAMPLE}, got {_shown(text)}") from None


def _shown(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


def _topics(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError
    if any("\0" in topic for topic in value):  # the client would take it for a shorter name
        raise ValueError
    return value


def _number(text: str) -> int:
    """A whole number in the one way to write it: others would overwrite each other."""
    if not _NUMBER.fullmatch(text):
        raise ValueError
    return int(text)


def _partition(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= _LARGEST_PARTITION:
        raise ValueError
    return number


def _offset(value: Any, *, times: bool) -> int:
    lowest = 0 if times else EARLIEST
    if type(value) is not int or not lowest <= value <= _LARGEST_OFFSET:
        raise ValueError
    return value


def describe(partitions: Iterable[TopicPartition]) -> str:
    """Partitions as errors show them: ``[orders-0, orders-1]``."""
    return f"[{', '.join(str(each) for each in sorted(partitions))}]"


def _nested(offsets: Mapping[TopicPartition, int], *, escape: bool) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for each in sorted(offsets):
        name = f":{each.topic}" if escape and each.topic in _RESERVED else each.topic
        topics.setdefault(name, {})[str(each.partition)] = offsets[each]
    return topics


def offset_json(offsets: Mapping[TopicPartition, int]) -> str:
    """Offsets as a user would write them for ``startingOffsets``."""
    return json.dumps(_nested(offsets, escape=False), separators=(",", ":"))


def end_offset(offsets: Mapping[TopicPartition, int], start: Mapping[TopicPartition, int] | None = None) -> Offset:
    """An offset for the checkpoint.

    Args:
        offsets: the position of each partition.
        start: the resolved start, if and only if the start it was computed from is the sentinel.
    """
    value: Offset = {**_nested(offsets, escape=True), "v": VERSION}
    if start is not None:
        value[START_KEY] = _nested(start, escape=True)
    return ordered(value)


def read_offset(offset: Mapping[str, Any] | str) -> Offsets:
    """The positions that an offset of the checkpoint holds; also one written by Spark's own Kafka source.

    Raises:
        OffsetError: it is malformed, of a newer version, or of another source.
    """
    return _positions(_load(offset))


def resolved_start(end: Mapping[str, Any] | str) -> Offsets:
    """The start that an end offset carries.

    Raises:
        OffsetError: it carries none.
    """
    loaded = _load(end)
    start = loaded.get(START_KEY)
    if isinstance(start, Mapping):
        return _positions(start)
    if _is_sparks(_parsed(end)):
        raise OffsetError(
            "KAFKA_FIRST_BATCH_UNFINISHED",
            "The first batch of this checkpoint was planned by Spark's own source and has not finished; its offset "
            "does not say where the batch began",
            f"checkpoint of a {_CONNECTOR} source",
            "A query can be moved when one batch has finished: run it with Spark's own source until then, or start "
            "here with a new checkpoint and startingOffsets.",
        )
    raise _malformed(end)


def _parsed(offset: Mapping[str, Any] | str) -> Any:
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        raise _malformed(offset) from None


def _is_sparks(value: Any) -> bool:
    """Whether it is as Spark's own source writes it: topics, and nothing else."""
    return isinstance(value, Mapping) and all(isinstance(each, Mapping) for each in value.values())


def _load(offset: Mapping[str, Any] | str) -> Offset:
    value = _parsed(offset)
    if _is_sparks(value):
        value = {**{f":{topic}" if topic in _RESERVED else topic: each for topic, each in value.items()}, "v": VERSION}
    return load_offset(value, _CONNECTOR)


def _positions(value: Mapping[str, Any]) -> Offsets:
    found: Offsets = {}
    try:
        for name, partitions in value.items():
            if name in _RESERVED:
                continue
            if "\0" in name:
                raise _malformed(value)
            for number, position in partitions.items():
                found[TopicPartition(name.removeprefix(":"), int(number))] = int(position)
    except (AttributeError, TypeError, ValueError):
        raise _malformed(value) from None
    return found


def _malformed(offset: object) -> OffsetError:
    return OffsetError(
        "OFFSET_MALFORMED",
        f"The offset {str(offset)[:200]!r} is not one of Kafka",
        f"checkpoint of a {_CONNECTOR} source",
        "The checkpoint is damaged or belongs to another source; restore it, or start with a new one.",
    )


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


def refuse_nul(where: str, *texts: str) -> None:
    """Refuse a text that C would cut at a NUL character, and with that take for another one.

    Args:
        where: what the text is; it is not shown, since it may be a secret.
        *texts: go to the client.

    Raises:
        OptionError: one holds a NUL.
    """
    if any("\0" in text for text in texts):
        shown = where.replace("\0", "\\0")
        what = "A text holds a NUL character, at which the client would cut it"
        raise OptionError("KAFKA_NUL", what, shown, "Correct it.")
