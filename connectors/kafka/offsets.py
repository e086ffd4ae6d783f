"""Positions in Kafka as JSON: what users write in options, and what Spark keeps in its checkpoint.

Both have the form of Spark's own Kafka source: ``{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}``, where an offset is
the next one to read, -2 stands for the earliest and -1 for the latest. An offset of the checkpoint has the keys ``v``
and, where it must be, ``_start`` beside its topics; a topic of such a name gets a colon before it, which no name holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

from connectors.core.errors import OffsetError, OptionError
from connectors.core.offsets import (
    LARGEST_LONG,
    SENTINEL,
    START_KEY,
    VERSION,
    Offset,
    load_offset,
    ordered,
    parse_json,
    shown,
    whole_number,
)
from connectors.core.options.kinds import INTEGER
from connectors.kafka import FORMAT

EARLIEST: Final = -2
LATEST: Final = -1
TIMES_KEY: Final = "/times"
"""In the latest offset of a progress report, which no checkpoint holds: the time of the first unread record, by topic
and partition, in milliseconds since 1970. No topic has such a name."""
_RESERVED: Final = {"v", START_KEY, TIMES_KEY, *SENTINEL}
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_SHORT: Final = 1000
_LARGEST_PARTITION: Final = 2**31 - 1
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What brokers take as the name of a topic, but for . and .. (org.apache.kafka.common.internals.Topic)."""
_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMES_EXAMPLE: Final = '{"topicA": {"0":123456789, "1":456}, "topicB": {"0":789}}'
_ASSIGN_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[0,1]}'
_MALFORMED: Final = (ValueError, KeyError, AttributeError, TypeError, RecursionError)
"""What JSON of another form raises."""


class TopicPartition(NamedTuple):
    """A partition of a topic; sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets = dict[TopicPartition, int]
"""The next offset to read of each partition, or `EARLIEST` or `LATEST`."""


def illegal(what: str, action: str = "") -> OptionError:
    return OptionError("OPTION_ILLEGAL", what, FORMAT, action)


def refuse_nul(where: str, *texts: str) -> None:
    """Refuse texts that the client, written in C, would cut at a NUL; ``where`` names them, as one may be a secret."""
    if any("\0" in text for text in texts):
        what = "A text holds a NUL character, where the client would cut it off"
        raise OptionError("KAFKA_NUL", what, where.replace("\0", "\\0"))


def describe(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as errors show them: ``[orders-0, orders-1]``."""
    return f"[{', '.join(map(str, sorted(partitions)))}]"


# --- what users write ----------------------------------------------------------------------------------------------


def parse_json_offsets(text: str, *, times: bool = False) -> tuple[Offsets, dict[str, int]]:
    """Return the offsets of partitions that a user writes, and of topics with ``"earliest"`` or ``"latest"`` for all.

    With ``times`` the numbers are milliseconds since 1970, and no words are allowed. Another form raises a ValueError
    with the text of Spark's own source.
    """
    lowest = 0 if times else EARLIEST
    offsets: Offsets = {}
    topics: dict[str, int] = {}
    try:
        for topic, partitions in _parse_topics(text).items():
            if isinstance(partitions, str) and not times:
                topics[topic] = _WORDS[partitions.lower()]
                continue
            for number, value in partitions.items():
                if not _NUMBER.fullmatch(number):  # 00 would be another key for 0
                    raise ValueError
                offsets[_partition(topic, int(number))] = _whole(value, lowest, LARGEST_LONG)
    except _MALFORMED:
        raise _unexpected(_TIMES_EXAMPLE if times else _OFFSETS_EXAMPLE, text) from None
    return offsets, topics


def parse_assignment(text: str) -> frozenset[TopicPartition]:
    """Parse the partitions of the option ``assign``; raises a ValueError for a text of another form."""
    try:
        topics = _parse_topics(text)
        return frozenset(_partition(topic, number) for topic, numbers in topics.items() for number in numbers)
    except _MALFORMED:
        raise _unexpected(_ASSIGN_EXAMPLE, text) from None


def _unexpected(example: str, text: str) -> ValueError:
    return ValueError(f"Expected e.g. {example}, got {text if len(text) <= _SHORT else f'{text[:_SHORT]}...'}")


def _parse_topics(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError
    if any("\0" in topic for topic in value):  # the client would take it for a shorter name
        raise ValueError
    return value


def _partition(topic: str, number: Any) -> TopicPartition:
    return TopicPartition(topic, _whole(number, 0, _LARGEST_PARTITION))


def _whole(value: Any, lowest: int, highest: int) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError
    return value


class Anywhere(StrEnum):
    """A position in any partition; `GROUP` is where a consumer group has committed, or the earliest."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Specific:
    """An offset for each partition, or for all of a topic; `EARLIEST` and `LATEST` too."""

    offsets: Mapping[TopicPartition, int]
    topics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The first record as new as this, in every partition."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The first record as new as the time of its partition."""

    milliseconds: Mapping[TopicPartition, int]


Position = Anywhere | Specific | Timestamp | Timestamps


def parse_position(
    side: Literal["starting", "ending"], timestamp: str | None, by_timestamp: str | None, offsets: str | None
) -> Position | None:
    """Parse the three options of one side, also those that lose: the first wins. Return None for the default."""
    positions: list[Position] = []
    try:
        if timestamp is not None:
            positions.append(_parse_timestamp(timestamp))
        if by_timestamp is not None:
            positions.append(Timestamps(parse_json_offsets(by_timestamp, times=True)[0]))
        if offsets is not None:
            word = offsets.lower()
            is_word = word in _WORDS or (word == "group" and side == "starting")
            positions.append(Anywhere(word) if is_word else Specific(*parse_json_offsets(offsets)))
    except ValueError as error:
        raise illegal(str(error)) from None
    return positions[0] if positions else None


def _parse_timestamp(text: str) -> Timestamp:
    try:
        time = INTEGER.parse(text)
    except ValueError:
        raise ValueError(f"Expected a single long value, got {text}") from None
    if time < 0:  # to Kafka these are words: the latest, the earliest, the newest
        raise ValueError(f"Expected a time of at least 0, in milliseconds since 1970, got {text}")
    return Timestamp(time)


def check_batch_positions(start: Position, end: Position) -> None:
    """Refuse a batch read that would begin at the latest, end at the earliest, or begin later than it ends."""
    if start is Anywhere.LATEST:
        raise illegal(
            "starting offset can't be latest for batch queries on Kafka", "Begin at earliest, or at an offset."
        )
    if end is Anywhere.EARLIEST:
        raise illegal("ending offset can't be earliest for batch queries on Kafka", "End at latest, or at an offset.")
    if (name := _first_with(start, LATEST)) is not None:
        raise illegal(f"startingOffsets for {name} can't be latest for batch queries on Kafka", "Give -2 or an offset.")
    if (name := _first_with(end, EARLIEST)) is not None:
        raise illegal(f"ending offset for {name} can't be earliest for batch queries on Kafka", "Give -1 or an offset.")
    if isinstance(start, Timestamps) and isinstance(end, Timestamps):
        for partition, first in sorted(start.milliseconds.items()):
            if first > (last := end.milliseconds.get(partition, first)):
                raise illegal(
                    f"The specified start timestamp {first} is greater than the end timestamp {last} for topic "
                    f"{partition.topic} partition {partition.partition}",
                    "Give times in their order.",
                )


def _first_with(position: Position, offset: int) -> str | None:
    if not isinstance(position, Specific):
        return None
    named = [*sorted(position.offsets.items()), *sorted(position.topics.items())]
    return next((str(name) for name, value in named if value == offset), None)


# --- what the checkpoint holds -------------------------------------------------------------------------------------


def _nested(offsets: Mapping[TopicPartition, int], *, escape: bool) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        name = f":{partition.topic}" if escape and partition.topic in _RESERVED else partition.topic
        topics.setdefault(name, {})[str(partition.partition)] = offset
    return topics


def offset_json(offsets: Mapping[TopicPartition, int]) -> str:
    """Return offsets as a user would write them for ``startingOffsets``."""
    return json.dumps(_nested(offsets, escape=False), separators=(",", ":"))


def end_offset(offsets: Mapping[TopicPartition, int], start: Mapping[TopicPartition, int] | None = None) -> Offset:
    """Return an offset for the checkpoint, with the resolved ``start`` if it was computed from the sentinel."""
    value: Offset = {**_nested(offsets, escape=True), "v": VERSION}
    if start is not None:
        value[START_KEY] = _nested(start, escape=True)
    return ordered(value)


def read_offset(offset: Mapping[str, Any] | str) -> Offsets:
    """Return the positions that an offset of the checkpoint holds; also one written by Spark's own Kafka source."""
    return _positions(_load(offset))


def reported_offset(latest: Mapping[TopicPartition, int], times: Mapping[TopicPartition, int]) -> Offset:
    """Return the latest offsets for a progress report, with the times of first unread records."""
    value = end_offset(latest)
    return ordered({**value, TIMES_KEY: _nested(times, escape=True)}) if times else value


def record_times(reported: Mapping[str, Any]) -> Offsets:
    """Return the times that `reported_offset` wrote; none if there are none that can be read."""
    topics = reported.get(TIMES_KEY)
    try:
        times = _positions(topics) if isinstance(topics, Mapping) else {}
    except OffsetError:
        return {}
    return {partition: time_ms for partition, time_ms in times.items() if time_ms >= 0}


def resolved_start(end: Mapping[str, Any] | str) -> Offsets:
    """Return the start that an end offset carries; raises an `OffsetError` if it carries none."""
    value = _load(end)
    if isinstance(start := value.get(START_KEY), Mapping):
        return _positions(start)
    if _is_sparks(_parsed(end)):
        what = (
            "Spark's own source planned the first batch of this checkpoint, and the batch has not finished. Its offset "
            "does not say where the batch began"
        )
        raise OffsetError("KAFKA_FIRST_BATCH_UNFINISHED", what, f"checkpoint of a {FORMAT} source")
    raise _malformed(end)


def _parsed(offset: Mapping[str, Any] | str) -> Any:
    if not isinstance(offset, str):
        return offset
    try:
        return parse_json(offset)
    except ValueError:
        raise _malformed(offset) from None


def _is_sparks(value: Any) -> bool:
    """Return whether Spark's own source wrote an offset: topics, and nothing else."""
    return isinstance(value, Mapping) and all(isinstance(partitions, Mapping) for partitions in value.values())


def _load(offset: Mapping[str, Any] | str) -> Offset:
    value = _parsed(offset)
    if _is_sparks(value):
        value = {f":{topic}" if topic in _RESERVED else topic: numbers for topic, numbers in value.items()}
        value["v"] = VERSION
    if isinstance(value, Mapping) and not _RESERVED.isdisjoint(value.keys() - {"v", START_KEY, TIMES_KEY}):
        raise _malformed(offset)  # a topic of such a name has a colon before it
    return load_offset(value, FORMAT)


def _positions(value: Mapping[str, Any]) -> Offsets:
    """Return the positions of an object of topics: whole numbers by partition, as both sources write them.

    The words -1 and -2 are for options: in a checkpoint they would lose rows, or read them twice.
    """
    offsets: Offsets = {}
    try:
        for name, partitions in value.items():
            if name in _RESERVED:
                continue
            topic = name.removeprefix(":") if name[1:] in _RESERVED else name
            if not partitions or not TOPIC_NAME.fullmatch(topic):
                raise _malformed(value)
            for number, position in partitions.items():
                if not _NUMBER.fullmatch(number):  # 00 would be another key for 0
                    raise _malformed(value)
                offsets[_partition(topic, int(number))] = whole_number(position)
    except (AttributeError, TypeError, ValueError):
        raise _malformed(value) from None
    return offsets


def _malformed(offset: object) -> OffsetError:
    what, where = f"The offset {shown(offset)} is not one of Kafka", f"checkpoint of a {FORMAT} source"
    return OffsetError("OFFSET_MALFORMED", what, where)
