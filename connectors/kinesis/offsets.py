"""Offsets of the ``kinesis`` source, as Spark's checkpoint keeps them, and the positions in them.

    {"streams": {ARN: {"created": MS, "shards": {ID: {"p": POSITION, "ts": MS, "clean": MS}}}}, "v": 1}

``p`` is a `Position`: the number of a record, a time, TRIM or END; never a continuation number, which is no record's.
``ts`` is when that record arrived, and ``clean`` the service's time up to which nothing came after it: both say whether
the retention has passed over records that were not read. A shard that is missing begins at TRIM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

from connectors.core.errors import OffsetError, OptionError
from connectors.core.offsets import START_KEY, VERSION, Offset, load_offset, ordered, shown, whole_number
from connectors.kinesis import FORMAT

T = TypeVar("T")

_SHOWN_CHARACTERS: Final = 120
_SEQUENCE: Final = re.compile(r"[0-9]{1,128}")
_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")
_LEAST_MILLISECONDS: Final = 10**11
"""In 1973: a smaller number is a date without dashes or counts seconds, and 0 means everything there is."""
_MOST_MILLISECONDS: Final = 253_402_300_799_999
"""The end of the year 9999: the client of the service takes no later time."""
_TIMES: Final = "Give ISO 8601, such as 2026-05-17T10:30:00Z, or milliseconds since 1970."
_SHARD: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_EXAMPLE: Final = '{"shardId-000000000000":{"iteratorType":"AFTER_SEQUENCE_NUMBER","iteratorPosition":"4959..."}}'


class PositionKind(StrEnum):
    """The kinds of position; their texts stand in offsets."""

    TRIM = "TRIM"
    TIME = "TS"
    AFTER = "AFTER"
    AT = "AT"
    END = "END"
    LATEST = "LATEST"


_NUMBERED: Final = {PositionKind.TIME, PositionKind.AFTER, PositionKind.AT}


def sequence_number(text: object) -> int:
    """Return the number of a record from its text; raises a `ValueError` for anything else."""
    if type(text) is not str or not _SEQUENCE.fullmatch(text):
        raise ValueError(f"{text!r:.40} is not a sequence number")
    return int(text)


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a shard; ``number`` is a sequence number, or milliseconds since 1970.

    TRIM is the oldest record, TIME the first record as new as a time, AFTER and AT the place after and before a record,
    END a closed shard's end. Only users write LATEST. Numbers compare as integers: as texts, "99" would follow "100".
    """

    kind: PositionKind
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}" if self.kind in _NUMBERED else str(self.kind)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read what `str` wrote; raises a `ValueError` for what no offset can hold."""
        name, colon, number = text.partition(":")
        kind = PositionKind(name)
        if (
            (kind in _NUMBERED) != bool(colon)
            or kind is PositionKind.LATEST
            or (colon and not _SEQUENCE.fullmatch(number))
        ):
            raise ValueError(text)
        if kind is PositionKind.TIME:
            whole_number(int(number), _MOST_MILLISECONDS)
        return cls(kind, int(number or 0))


TRIM: Final = Position(PositionKind.TRIM)
END: Final = Position(PositionKind.END)
LATEST: Final = Position(PositionKind.LATEST)


def after(number: int) -> Position:
    return Position(PositionKind.AFTER, number)


def at(number: int) -> Position:
    return Position(PositionKind.AT, number)


def at_time(milliseconds: int) -> Position:
    return Position(PositionKind.TIME, milliseconds)


@dataclass(frozen=True, slots=True)
class ShardPositions:
    """Where a query begins or a batch read ends: everywhere, or by stream (empty if none is named) and shard."""

    everywhere: Position | None = None
    named: Mapping[str, Mapping[str, Position]] = field(default_factory=dict)

    def of_stream(self, stream: str) -> Mapping[str, Position]:
        """Return the positions of the named shards of a stream."""
        return self.named.get(stream) or self.named.get("") or {}


_WORDS: Final = {"latest": LATEST, "trim_horizon": TRIM, "earliest": TRIM}


def parse_positions(option: str, text: str) -> ShardPositions:
    """Read the text of ``initialPosition`` or ``endingPosition``."""
    word, _, time = text.partition(" ")
    if word.lower() == "at_timestamp":
        if not time:
            raise _illegal(option, text, f"It needs a time after it. {_TIMES}")
        return ShardPositions(at_time(_time(option, time.strip())))
    if text.startswith("{"):
        try:
            return _from_json(option, text)
        except RecursionError:
            raise _illegal(option, text, f"It is nested too deep; an example: {_EXAMPLE}.") from None
    if text.lower() in _WORDS:
        return ShardPositions(_WORDS[text.lower()])
    raise _illegal(option, text, f"Give latest, trim_horizon, at_timestamp TIME, or JSON such as {_EXAMPLE}.")


def _time(option: str, text: str) -> int:
    """Return milliseconds since 1970 for an ISO 8601 time, UTC where it names no zone, or for a number of them."""
    if _MILLISECONDS.fullmatch(text):
        milliseconds = int(text)
        if 0 < milliseconds < _LEAST_MILLISECONDS:
            date = datetime.fromtimestamp(milliseconds / 1000, UTC).date().isoformat()
            raise _illegal(option, text, f"As milliseconds since 1970 that is {date}. {_TIMES}")
        if milliseconds > _MOST_MILLISECONDS:
            raise _illegal(option, text, f"As milliseconds since 1970 that is after the year 9999. {_TIMES}")
        return milliseconds
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _illegal(option, text, _TIMES) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise _illegal(option, text, "Give a time after 1970.")
    return milliseconds


def _from_json(option: str, text: str) -> ShardPositions:
    try:
        value = json.loads(text)
    except ValueError:
        raise _illegal(option, text, f"It is not JSON; an example: {_EXAMPLE}.") from None
    if "at_timestamp" in value:
        if len(value) > 1:
            raise _illegal(option, text, "Give the time as ISO 8601 and leave its format out.")
        return ShardPositions(at_time(_time(option, str(value["at_timestamp"]))))
    entries = {key: entry for key, entry in value.items() if key != "metadata"}
    if entries and all(isinstance(entry, dict) and "iteratorType" not in entry for entry in entries.values()):
        return ShardPositions(named={stream: _shards(option, text, shards) for stream, shards in entries.items()})
    return ShardPositions(named={"": _shards(option, text, entries)})


def _shards(option: str, text: str, shards: Mapping[str, Any]) -> dict[str, Position]:
    positions = {}
    for shard, value in shards.items():
        position = _shard_position(option, value) if _SHARD.fullmatch(shard) else None
        if position is None:
            raise _illegal(option, text, f"Give each shard a position, as in {_EXAMPLE}.")
        positions[shard] = position
    if not positions:
        raise _illegal(option, text, f"It names no shard; an example: {_EXAMPLE}.")
    return positions


def _shard_position(option: str, value: Any) -> Position | None:
    """Read a position as the older connectors write it, or as one word or number."""
    if isinstance(value, dict):
        kind, number = str(value.get("iteratorType", "")).upper(), str(value.get("iteratorPosition", ""))
    elif isinstance(value, str):
        kind, number = ("AFTER_SEQUENCE_NUMBER", value) if _SEQUENCE.fullmatch(value) else (value.upper(), "")
    else:
        return None
    if kind in {"AFTER_SEQUENCE_NUMBER", "AT_SEQUENCE_NUMBER"} and _SEQUENCE.fullmatch(number):
        return after(int(number)) if kind.startswith("AFTER") else at(int(number))
    if kind == "AT_TIMESTAMP":
        return at_time(_time(option, number))
    return {"TRIM_HORIZON": TRIM, "EARLIEST": TRIM, "LATEST": LATEST, "SHARD_END": END}.get(kind)


def _illegal(option: str, text: str, action: str) -> OptionError:
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
    return OptionError("OPTION_ILLEGAL", f"The option {option} cannot be {shown!r}", FORMAT, action)


@dataclass(frozen=True, slots=True)
class ShardState:
    """How far a shard has been read: when its last record arrived, and until when nothing came after it.

    Both by the service's time.
    """

    position: Position = TRIM
    arrival_ms: int | None = None
    clean_ms: int | None = None

    @property
    def ended(self) -> bool:
        """Whether the shard is closed and read to its end."""
        return self.position.kind is PositionKind.END

    @property
    def complete_ms(self) -> int | None:
        """The time up to which the query has every record, by the service's time; None when it cannot tell."""
        times = [time for time in (self.arrival_ms, self.clean_ms) if time is not None]
        if self.position.kind is PositionKind.TIME:
            times.append(self.position.number)
        return max(times, default=None)


NEW = ShardState()
"""A shard of which nothing was read."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """How far a stream has been read; one of the same name that was created at another time is another stream."""

    created_ms: int
    shards: Mapping[str, ShardState] = field(default_factory=dict)


Streams = dict[str, StreamState]
"""The state of each stream, by its ARN."""


def end_offset(streams: Mapping[str, StreamState], start: Mapping[str, StreamState] | None = None) -> Offset:
    """Return an offset for the checkpoint; with the resolved start if and only if it follows the sentinel."""
    value: Offset = {"streams": _written(streams), "v": VERSION}
    if start is not None:
        value[START_KEY] = _written(start)
    return ordered(value)


def read_offset(offset: Mapping[str, Any] | str) -> Streams:
    """Return the states that an offset holds; raises an `OffsetError` if it is of a newer version or another source."""
    return _read(load_offset(offset, FORMAT).get("streams"), offset)


def resolved_start(end: Mapping[str, Any] | str) -> Streams:
    """Return the start that an end offset carries; raises an `OffsetError` if it carries none."""
    return _read(load_offset(end, FORMAT).get(START_KEY), end)


def _written(streams: Mapping[str, StreamState]) -> Offset:
    written = {}
    for arn, stream in streams.items():
        shards = {}
        for shard, state in stream.shards.items():
            times = {"ts": state.arrival_ms, "clean": state.clean_ms}
            shards[shard] = {"p": str(state.position), **{key: ms for key, ms in times.items() if ms is not None}}
        written[arn] = {"created": stream.created_ms, "shards": shards}
    return written


def _read(value: Any, offset: object) -> Streams:
    try:
        return {
            of_type(str, arn): StreamState(
                whole_number(stream["created"], _MOST_MILLISECONDS), dict(_read_shards(stream["shards"].items()))
            )
            for arn, stream in value.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        what = f"The offset {shown(offset)} is not one of Kinesis"
        raise OffsetError("OFFSET_MALFORMED", what, f"checkpoint of a {FORMAT} source") from None


def _read_shards(shards: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, ShardState]]:
    for shard, state in shards:
        if (unknown := set(state) - {"p", "ts", "clean"}) or not _SHARD.fullmatch(shard):
            raise ValueError(shard, unknown)
        times = [whole_number(state[key], _MOST_MILLISECONDS) if key in state else None for key in ("ts", "clean")]
        yield shard, ShardState(Position.parse(state["p"]), *times)


def of_type(kind: type[T], value: Any) -> T:
    """Return a value from JSON; raises a `TypeError` if it is not just of this type."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is not a {kind.__name__}")
    return value
