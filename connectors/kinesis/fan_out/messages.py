"""What the source process orders of a fetcher of Kinesis, and what the fetcher notes to it, as values of JSON.

An order has a name, by which it replaces an earlier one or is withdrawn. Both travel inside of the messages of
`connectors.spool.fetching.messages`, which know their version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from connectors.core.errors import ConnectorError
from connectors.kinesis.offsets import Position
from connectors.kinesis.shards import ShardKey
from connectors.spool.fetching.messages import from_json, malformed, to_json

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


def message_to_json(message: Order | Deregister | Note) -> dict[str, Any]:
    """Return an order or a note as a JSON object."""
    return {_KINDS[type(message)]: to_json(message)}


def order_from_json(value: object) -> Order | Deregister:
    """Read an order that `message_to_json` wrote. `ConnectorError`: it is no order."""
    return _from_json(value, _ORDERS)  # type: ignore[no-any-return]  # of the kinds that are given


def note_from_json(value: object) -> Note:
    """Read a note that `message_to_json` wrote. `ConnectorError`: it is no note."""
    return _from_json(value, _NOTES)  # type: ignore[no-any-return]  # of the kinds that are given


def _from_json(value: object, kinds: dict[str, Any]) -> Any:
    if not isinstance(value, dict) or len(value) != 1 or not kinds.keys() >= value.keys():
        raise malformed("what it says of a shard has another shape")
    ((name, content),) = value.items()
    return from_json(content, kinds[name], name)
