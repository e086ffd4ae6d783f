"""Offsets of the ``kinesis`` source, as Spark's checkpoint keeps them.

    {"streams": {ARN: {"created": MS, "shards": {ID: {"p": POSITION, "ts": MS, "clean": MS}}}}, "v": 1}

``p`` is a `Position`: the number of a record, a time, TRIM or END; never a continuation number, which is no record's.
``ts`` is when that record arrived, and ``clean`` the service's time up to which nothing came after it: both say whether
the retention has passed over records that were not read. A shard that is not there begins at TRIM.

Positions in shards, and the forms in which users write them.

A position is the place behind a record, the beginning of what a shard still has, a time, or a shard's end. Numbers of
records are compared as integers: as texts, "99" would come after "100".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from connectors.core.errors import OffsetError, OptionError
from connectors.core.offsets import START_KEY, VERSION, Offset, load_offset, ordered

__all__ = [
    "CONNECTOR",
    "END",
    "LATEST",
    "NEW",
    "TRIM",
    "Kind",
    "Position",
    "ShardState",
    "StreamState",
    "Streams",
    "Where",
    "after",
    "at",
    "at_time",
    "end_offset",
    "parse_where",
    "read_offset",
    "resolved_start",
]


CONNECTOR: Final = "kinesis"
_SHOWN: Final = 120
_SEQUENCE: Final = re.compile(r"[0-9]{1,128}")
_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")
_LEAST_MILLISECONDS: Final = 10**11
"""In 1973: a smaller number is a date without dashes or counts seconds, and 0 means all that is there."""
_MOST_MILLISECONDS: Final = 253_402_300_799_999
"""The end of the year 9999: the client of the service takes no later time."""
_TIMES: Final = "Give ISO 8601, such as 2026-05-17T10:30:00Z, or milliseconds since 1970."
_SHARD: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_EXAMPLE: Final = '{"shardId-000000000000":{"iteratorType":"AFTER_SEQUENCE_NUMBER","iteratorPosition":"4959..."}}'


class Kind(StrEnum):
    """The kinds of position; their texts stand in offsets."""

    TRIM = "TRIM"
    TIME = "TS"
    AFTER = "AFTER"
    AT = "AT"
    END = "END"
    LATEST = "LATEST"


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a shard.

    Attributes:
        kind: TRIM is the oldest record that is kept, TIME the first record as new as a time, AFTER and AT the place
            behind and before a record, END a closed shard's end. LATEST is only ever written by users.
        number: the sequence number, or milliseconds since 1970.
    """

    kind: Kind
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}" if self.kind in _NUMBERED else str(self.kind)

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position that `str` wrote.

        Raises:
            ValueError: it is none that an offset can hold.
        """
        kind, colon, number = text.partition(":")
        found = Kind(kind)
        if (found in _NUMBERED) != bool(colon) or found is Kind.LATEST or (colon and not _SEQUENCE.fullmatch(number)):
            raise ValueError(text)
        return cls(found, int(number or 0))


_NUMBERED: Final = {Kind.TIME, Kind.AFTER, Kind.AT}
TRIM: Final = Position(Kind.TRIM)
END: Final = Position(Kind.END)
LATEST: Final = Position(Kind.LATEST)


def after(number: int) -> Position:
    """The place behind a record."""
    return Position(Kind.AFTER, number)


def at(number: int) -> Position:
    """The place before a record."""
    return Position(Kind.AT, number)


def at_time(milliseconds: int) -> Position:
    """The first record as new as a time."""
    return Position(Kind.TIME, milliseconds)


@dataclass(frozen=True, slots=True)
class Where:
    """Where a query begins or a batch read ends.

    Attributes:
        everywhere: the position in all shards; None when they are named.
        named: positions by shard, by stream; the stream is empty when the user named none.
    """

    everywhere: Position | None = None
    named: Mapping[str, Mapping[str, Position]] = field(default_factory=dict)

    def of_stream(self, stream: str) -> Mapping[str, Position]:
        """The positions that were named for a stream."""
        return self.named.get(stream) or self.named.get("") or {}


def parse_where(option: str, text: str, time_option: str, time: str | None) -> Where:
    """Read ``initialPosition`` or ``endingPosition``.

    Args:
        option: its name, for errors.
        text: ``latest``, ``trim_horizon``, ``earliest``, ``at_timestamp``, ``at_timestamp TIME``, or JSON.
        time_option: the name of the option with the time.
        time: its text.

    Raises:
        OptionError: it is none of these, or the time is missing, illegal or not wanted.
    """
    word, _, rest = text.partition(" ")
    found = _WORDS.get(word.lower()) if not rest else None
    if found is None and word.lower() == "at_timestamp":
        said = rest.strip() or time
        if said is None:
            raise OptionError(
                "OPTION_MISSING", f"{option}=at_timestamp needs a time", CONNECTOR, f"Give {time_option}."
            )
        if rest and time is not None:
            raise OptionError(
                "OPTION_CONFLICT", f"The options {option} and {time_option} both have a time", CONNECTOR, "Give one."
            )
        return Where(at_time(_time(time_option if not rest else option, said)))
    if text.startswith("{"):
        try:
            where = _from_json(option, text)
        except RecursionError:
            raise _illegal(option, text, f"It is nested too deep; an example: {_EXAMPLE}.") from None
    elif found is not None:
        where = Where(found)
    else:
        raise _illegal(option, text, f"Give latest, trim_horizon, earliest, at_timestamp, or JSON such as {_EXAMPLE}.")
    if time is not None:
        raise OptionError(
            "OPTION_CONFLICT",
            f"The options {option} and {time_option} conflict: the position is not at_timestamp",
            CONNECTOR,
            f"Leave {time_option} out, or give {option}=at_timestamp.",
        )
    return where


_WORDS: Final = {"latest": LATEST, "trim_horizon": TRIM, "earliest": TRIM}


def _as_date(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).date().isoformat()


def _time(option: str, text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time, UTC where it says nothing else, or of a number of them."""
    if _MILLISECONDS.fullmatch(text):
        if 0 < int(text) < _LEAST_MILLISECONDS:
            raise _illegal(option, text, f"As milliseconds since 1970 that is {_as_date(int(text))}. {_TIMES}")
        if int(text) > _MOST_MILLISECONDS:
            raise _illegal(option, text, f"As milliseconds since 1970 that is after the year 9999. {_TIMES}")
        return int(text)
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


def _from_json(option: str, text: str) -> Where:
    try:
        value = json.loads(text)
    except ValueError:
        raise _illegal(option, text, f"It is no JSON; an example: {_EXAMPLE}.") from None
    if set(value) >= {"at_timestamp"}:
        if set(value) != {"at_timestamp"}:
            raise _illegal(option, text, "Give the time as ISO 8601 and leave its format out.")
        return Where(at_time(_time(option, str(value["at_timestamp"]))))
    entries = {key: each for key, each in value.items() if key != "metadata"}
    if all(_is_stream(each) for each in entries.values()) and entries:
        return Where(named={stream: _shards(option, text, shards) for stream, shards in entries.items()})
    return Where(named={"": _shards(option, text, entries)})


def _is_stream(value: Any) -> bool:
    return isinstance(value, dict) and "iteratorType" not in value


def _shards(option: str, text: str, shards: Mapping[str, Any]) -> dict[str, Position]:
    found = {}
    for shard, value in shards.items():
        position = _shard_position(option, value) if _SHARD.fullmatch(shard) else None
        if position is None:
            raise _illegal(option, text, f"Give each shard a position, as in {_EXAMPLE}.")
        found[shard] = position
    if not found:
        raise _illegal(option, text, f"It names no shard; an example: {_EXAMPLE}.")
    return found


def _shard_position(option: str, value: Any) -> Position | None:
    """A position as the older connectors write it, or as one word or number."""
    if isinstance(value, dict):
        kind, said = str(value.get("iteratorType", "")).upper(), str(value.get("iteratorPosition", ""))
    elif isinstance(value, str):
        kind, said = ("AFTER_SEQUENCE_NUMBER", value) if _SEQUENCE.fullmatch(value) else (value.upper(), "")
    else:
        return None
    if kind in {"AFTER_SEQUENCE_NUMBER", "AT_SEQUENCE_NUMBER"} and _SEQUENCE.fullmatch(said):
        return after(int(said)) if kind.startswith("AFTER") else at(int(said))
    if kind == "AT_TIMESTAMP":
        return at_time(_time(option, said))
    return {"TRIM_HORIZON": TRIM, "EARLIEST": TRIM, "LATEST": LATEST, "SHARD_END": END}.get(kind)


def _illegal(option: str, text: str, advice: str) -> OptionError:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return OptionError("OPTION_ILLEGAL", f"The option {option} cannot be {shown!r}", CONNECTOR, advice)


@dataclass(frozen=True, slots=True)
class ShardState:
    """How far a shard has been read.

    Attributes:
        position: the place up to which it was read.
        arrival_ms: when the last record read arrived, by the service's time.
        clean_ms: up to when nothing has come after it, by the service's time.
    """

    position: Position = TRIM
    arrival_ms: int | None = None
    clean_ms: int | None = None

    @property
    def ended(self) -> bool:
        """Whether the shard is closed and read to its end."""
        return self.position.kind is Kind.END

    @property
    def known_ms(self) -> int | None:
        """Up to when the query knows all records; None when nothing is known."""
        times = [each for each in (self.arrival_ms, self.clean_ms) if each is not None]
        if self.position.kind is Kind.TIME:
            times.append(self.position.number)
        return max(times, default=None)


NEW = ShardState()
"""A shard of which nothing was read."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """How far a stream has been read.

    Attributes:
        created_ms: when the stream was made: one of the same name that was made later is another.
        shards: the state of each shard that is not new.
    """

    created_ms: int
    shards: Mapping[str, ShardState] = field(default_factory=dict)


Streams = dict[str, StreamState]
"""The state of each stream, by its ARN."""


def end_offset(streams: Mapping[str, StreamState], start: Mapping[str, StreamState] | None = None) -> Offset:
    """An offset for the checkpoint.

    Args:
        streams: the states.
        start: the resolved start, if and only if the start it was computed from is the sentinel.
    """
    value: Offset = {"streams": _written(streams), "v": VERSION}
    if start is not None:
        value[START_KEY] = _written(start)
    return ordered(value)


def read_offset(offset: Mapping[str, Any] | str) -> Streams:
    """The states that an offset of the checkpoint holds.

    Raises:
        OffsetError: it is malformed, of a newer version, or of another source.
    """
    return _read(load_offset(offset, CONNECTOR).get("streams"), offset)


def resolved_start(end: Mapping[str, Any] | str) -> Streams:
    """The start that an end offset carries.

    Raises:
        OffsetError: it carries none.
    """
    return _read(load_offset(end, CONNECTOR).get(START_KEY), end)


def _written(streams: Mapping[str, StreamState]) -> Offset:
    return {
        arn: {
            "created": stream.created_ms,
            "shards": {shard: _written_shard(state) for shard, state in stream.shards.items()},
        }
        for arn, stream in streams.items()
    }


def _written_shard(state: ShardState) -> Offset:
    times = {"ts": state.arrival_ms, "clean": state.clean_ms}
    return {"p": str(state.position), **{key: value for key, value in times.items() if value is not None}}


def _read(value: Any, offset: object) -> Streams:
    try:
        return {
            _of(str, arn): StreamState(_of(int, stream["created"]), dict(_read_shards(stream["shards"].items())))
            for arn, stream in value.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise OffsetError(
            "OFFSET_MALFORMED",
            f"The offset {str(offset)[:200]!r} is not one of Kinesis",
            f"checkpoint of a {CONNECTOR} source",
            "The checkpoint is damaged or belongs to another source; restore it, or start with a new one.",
        ) from None


def _read_shards(shards: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, ShardState]]:
    for shard, state in shards:
        if unknown := set(state) - {"p", "ts", "clean"}:
            raise ValueError(unknown)
        times = [None if state.get(key) is None else _of(int, state[key]) for key in ("ts", "clean")]
        yield shard, ShardState(Position.parse(state["p"]), *times)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(value)
    return value
