"""Offsets of the ``kinesis`` source, as Spark's checkpoint keeps them.

    {"streams": {ARN: {"created": MS, "shards": {ID: {"p": POSITION, "ts": MS, "clean": MS}}}}, "v": 1}

``p`` is a `Position`: the number of a record, a time, TRIM or END; never a continuation number, which is no record's.
``ts`` is when that record arrived, and ``clean`` the service's time up to which nothing came after it: both say whether
the retention has passed over records that were not read. A shard that is not there begins at TRIM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from connectors.core.errors import OffsetError
from connectors.core.offsets import START_KEY, VERSION, Offset, load_offset, ordered
from connectors.kinesis.positions import CONNECTOR, TRIM, Kind, Position

__all__ = ["NEW", "ShardState", "StreamState", "Streams", "end_offset", "read_offset", "resolved_start"]


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
