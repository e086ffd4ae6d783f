"""What the source process orders of a fetcher of Kinesis, and what the fetcher notes to it, as values of JSON.

An order has a name, by which it replaces an earlier one or is withdrawn. Both travel inside of the messages of
`connectors.spool.fetching.messages`, which know their version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

from connectors.core.errors import ConnectorError, error_from_json
from connectors.kinesis.cached_ranges import ShardKey
from connectors.kinesis.offsets import Position
from connectors.spool.fetching.messages import malformed
from connectors.spool.segments.shapes import NOTHING, misfit

# Orders


@dataclass(frozen=True, slots=True)
class Order:
    """Follow a shard, by the ARN of a consumer, from a position on."""

    key: ShardKey
    consumer: str
    created_ms: int
    position: Position


@dataclass(frozen=True, slots=True)
class Deregister:
    """Deregister a consumer, by its ARN, when the fetcher ends."""

    consumer: str


def order_name(order: Order | Deregister | ShardKey) -> str:
    """Return the name of an order, or of that for a shard."""
    match order:
        case Deregister():
            return f"deregister {order.consumer}"
        case Order():
            return order_name(order.key)
    return "follow " + " ".join(order)


# Notes


@dataclass(frozen=True, slots=True)
class Live:
    """Whether the subscription of a shard works has changed."""

    key: ShardKey
    live: bool


@dataclass(frozen=True, slots=True)
class UpToDate:
    """Until a time, in milliseconds since 1970, nothing came after a position."""

    key: ShardKey
    position: Position
    until_ms: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The service takes no subscription from the position that was ordered."""

    key: ShardKey


@dataclass(frozen=True, slots=True)
class Gone:
    """The consumer that was to be used for a shard does not exist."""

    key: ShardKey


@dataclass(frozen=True, slots=True)
class Ended:
    """A closed shard was read to its end."""

    key: ShardKey


@dataclass(frozen=True, slots=True)
class NotSubscribed:
    """A subscription could not be opened."""

    error: ConnectorError


@dataclass(frozen=True, slots=True)
class NotDeregistered:
    """A consumer could not be deregistered."""

    reason: str


Note: TypeAlias = Live | UpToDate | Refused | Gone | Ended | NotSubscribed | NotDeregistered
_ORDERS: Final = {"follow": Order, "deregister": Deregister}
_NOTES: Final = {
    "live": Live,
    "up_to_date": UpToDate,
    "refused": Refused,
    "gone": Gone,
    "ended": Ended,
    "not_subscribed": NotSubscribed,
    "not_deregistered": NotDeregistered,
}
_KINDS: Final = {kind: name for name, kind in {**_ORDERS, **_NOTES}.items()}
_ERROR: Final = dict.fromkeys(("kind", "code", "what", "where", "action"), str)


def _position(value: object) -> bool:
    try:
        return type(value) is str and Position.parse(value) is not None
    except ValueError:
        return False


_SHAPES: Final[Mapping[str, Any]] = {
    "key": (str, str),
    "consumer": str,
    "created_ms": int,
    "position": _position,
    "live": bool,
    "until_ms": int,
    "error": _ERROR,
    "reason": str,
}
"""By the names of fields, which mean the same in each message."""
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "key": tuple,
    "position": Position.parse,
    "error": error_from_json,
}
"""What makes a field of its JSON value."""


def order_to_json(order: Order | Deregister) -> dict[str, Any]:
    """Return an order as a JSON object."""
    return _to_json(order)


def note_to_json(note: Note) -> dict[str, Any]:
    """Return a note as a JSON object."""
    return _to_json(note)


def order_from_json(value: object) -> Order | Deregister:
    """Read what `order_to_json` wrote. `ConnectorError`: it is no order."""
    return _from_json(value, _ORDERS)  # type: ignore[no-any-return]  # of the kinds that are given


def note_from_json(value: object) -> Note:
    """Read what `note_to_json` wrote. `ConnectorError`: it is no note."""
    return _from_json(value, _NOTES)  # type: ignore[no-any-return]  # of the kinds that are given


def _to_json(message: Any) -> dict[str, Any]:
    return {_KINDS[type(message)]: {each.name: _plain(getattr(message, each.name)) for each in fields(message)}}


def _plain(value: Any) -> Any:
    match value:
        case Position():
            return str(value)
        case ConnectorError():
            return value.to_json()
        case tuple():
            return list(value)
    return value


def _from_json(value: Any, kinds: Mapping[str, Any]) -> Any:
    shapes = {
        f"{name}?": {each.name: _SHAPES[each.name] for each in fields(kind)} | {"*": NOTHING}
        for name, kind in kinds.items()
    }
    if misfit(value, {**shapes, "*": NOTHING}) or len(value) != 1:
        raise malformed("what it says of a shard has another shape")
    ((name, content),) = value.items()
    return kinds[name](**{each: _READERS[each](item) if each in _READERS else item for each, item in content.items()})
