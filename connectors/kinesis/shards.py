"""Which shards may be read, and from where to where: pure functions of shards and states.

The rules that lose no record, and let none come before an older one of its key:

* A shard is read from its first record (TRIM), unless the query's start says otherwise.
* A child of a split or merge is read after a batch that ended all its parents. A parent that is neither listed nor in
  the offset counts as read.
* A listed shard that the offset doesn't name was read before if the offset names a descendant; otherwise it is new.
* A closed shard ends at END. It doesn't change, so it reads the same twice.
* A shard that was read to its end leaves the offset once it is not listed and its children are in the offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from connectors.core.errors import OffsetError, OptionError
from connectors.kinesis import FORMAT
from connectors.kinesis.offsets import (
    END,
    LATEST,
    NEW,
    TRIM,
    Position,
    PositionKind,
    ShardPositions,
    ShardState,
    StreamState,
    after,
    at_time,
)

_PIN_SLACK_MS = 1000
"""The service tells its time in whole seconds."""
_FUTURE_MS = 60_000
_PARTS_OF_RETENTION = 4


ShardKey = tuple[str, str]
"""ARN of a stream and id of a shard."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as it is listed; its parents are none, one of a split, or two of a merge."""

    shard_id: str
    parents: tuple[str, ...] = ()
    closed: bool = False


@dataclass(frozen=True, slots=True)
class HashRange:
    """The hash keys that a shard takes, or took before it was closed: from ``first`` to ``last``."""

    shard: str
    first: int
    last: int
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """A stream and its shards, at ``at_ms`` of the service's time; ``stream`` is its name or ARN in the options."""

    stream: str
    arn: str
    created_ms: int
    retention_ms: int
    at_ms: int
    shards: Mapping[str, Shard]

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.arn.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest record seen of a shard, and when it arrived; ``ended`` is for a closed shard.

    Nothing came after it until ``clean_ms`` of the service's time; None when nobody asked.
    """

    number: int | None = None
    arrival_ms: int | None = None
    clean_ms: int | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a batch's range that a segment holds: of its rows, the records after ``begin`` up to ``last``.

    With ``ended`` the shard ends with it.
    """

    segment: str
    digest: str
    first_row: int
    end_row: int
    begin: Position
    last: int
    ended: bool


@dataclass(frozen=True, slots=True)
class ShardRange:
    """What a task reads of a shard; ``pieces`` come from the spool, the rest is polled.

    ``stream`` is the name or ARN for calls. The end is AFTER a record or END; in batch reads it may be a TIME or
    LATEST. ``complete_ms`` is that of `ShardState`.
    """

    stream: str
    name: str
    shard: str
    begin: Position
    end: Position
    complete_ms: int | None = None
    retention_ms: int = 0
    pieces: tuple[Piece, ...] = ()


def resolve(listing: Listing, positions: ShardPositions, option: str = "initialPosition") -> StreamState:
    """Return the state in which a new query begins.

    Raises an `OptionError` that names ``option`` for an unknown shard or a time in the future.
    """
    named = positions.of_stream(listing.name)
    if unknown := sorted(set(named) - set(listing.shards)):
        what = f"The option {option} names the shard {unknown[0]}, which {listing.name} does not have"
        action = f"The shards are: {', '.join(sorted(listing.shards)[:20])}."
        raise OptionError("KINESIS_UNKNOWN_SHARD", what, FORMAT, action)
    if positions.everywhere is not None:
        chosen = dict.fromkeys(listing.shards, positions.everywhere)
    else:
        passed = _ancestors(listing, named)
        chosen = {shard: named.get(shard, END if shard in passed else TRIM) for shard in listing.shards}
    states = {shard: ShardState(_pinned(listing, shard, position, option)) for shard, position in chosen.items()}
    return StreamState(listing.created_ms, states)


def _pinned(listing: Listing, shard: str, position: Position, option: str) -> Position:
    if position == LATEST:
        return END if listing.shards[shard].closed else at_time(listing.at_ms - _PIN_SLACK_MS)
    if position.kind is not PositionKind.TIME:
        return position
    if position.number > listing.at_ms + _FUTURE_MS:
        what = f"The time in {option} is in the future"
        raise OptionError("OPTION_ILLEGAL", what, listing.name, "Give latest, or a time in the past.")
    if position.number < listing.at_ms - listing.retention_ms:
        return TRIM
    return at_time(min(position.number, listing.at_ms))  # the service refuses a time to come


def _ancestors(listing: Listing, shards: Mapping[str, object]) -> set[str]:
    ancestors: set[str] = set()
    left = [parent for shard in shards if shard in listing.shards for parent in listing.shards[shard].parents]
    while left:
        shard = left.pop()
        if shard in listing.shards and shard not in ancestors:
            ancestors.add(shard)
            left += listing.shards[shard].parents
    return ancestors


def states_of(state: StreamState, listing: Listing) -> dict[str, ShardState]:
    """Return the state of each listed shard, also of new ones, without those that were read before and left."""
    passed = _ancestors(listing, state.shards)
    shards = [shard for shard in listing.shards if shard in state.shards or shard not in passed]
    return {shard: state.shards.get(shard, NEW) for shard in shards}


def vanished(state: StreamState, listing: Listing) -> list[str]:
    """Return the shards that were not read to their end and are not listed any more: the rest of them is gone."""
    return sorted(shard for shard, one in state.shards.items() if not one.ended and shard not in listing.shards)


def with_unread(state: StreamState, listing: Listing) -> StreamState:
    """Return a batch's start that also names the unread children of shards that are not listed any more.

    A shard is listed until the retention has passed since it closed, so the children's first records may be trimmed
    unread: they count as unread since 1970. While one parent is listed, none were trimmed.
    """

    def is_unread(shard: str, one: ShardState) -> bool:
        parents = set(listing.shards[shard].parents)
        is_new = one.position == TRIM and one.complete_ms is None
        return is_new and not parents.isdisjoint(state.shards) and parents.isdisjoint(listing.shards)

    unread = [shard for shard, one in states_of(state, listing).items() if is_unread(shard, one)]
    return replace(state, shards={**state.shards, **dict.fromkeys(unread, ShardState(TRIM, clean_ms=0))})


def is_whole(shard: str, position: Position, listing: Listing) -> bool:
    """Return whether no unread record of a shard can have been trimmed, since a parent is still listed."""
    parents = listing.shards[shard].parents if shard in listing.shards else ()
    return position.kind in {PositionKind.TRIM, PositionKind.TIME} and any(
        parent in listing.shards for parent in parents
    )


def unproven(shard: str, state: ShardState, listing: Listing) -> bool:
    """Return whether records of a shard may have been trimmed unread: `complete_ms` is before the retention."""
    is_open = not state.ended and shard in listing.shards and not is_whole(shard, state.position, listing)
    return is_open and overdue(state, listing.at_ms, listing.retention_ms)


def readable(states: Mapping[str, ShardState], listing: Listing, *, preserve_order: bool = True) -> list[str]:
    """Return the shards that may be read, by id; with ``preserve_order`` a shard waits for its parents."""

    def waits(shard: str) -> bool:
        return any(parent in states and not states[parent].ended for parent in listing.shards[shard].parents)

    left = sorted(shard for shard, state in states.items() if not state.ended)
    return [shard for shard in left if not (preserve_order and waits(shard))]


def is_after(position: Position, number: int | None) -> bool:
    """Return whether a record lies after a position; one that was seen reading on from a time or TRIM does."""
    if number is None or position.kind is PositionKind.END:
        return False
    if position.kind is PositionKind.AFTER:
        return number > position.number
    return number >= position.number if position.kind is PositionKind.AT else True


def next_state(state: ShardState, seen: Seen) -> ShardState:
    """Return the state after everything that was seen has been read; the same position when nothing is new."""
    if seen.ended:
        return ShardState(END)
    if seen.number is not None and is_after(state.position, seen.number):
        return ShardState(after(seen.number), seen.arrival_ms, seen.clean_ms)
    if seen.clean_ms is None or (seen.number is not None and state.position != after(seen.number)):
        return state
    return ShardState(state.position, state.arrival_ms, max(seen.clean_ms, state.clean_ms or 0))


def newest(one: Seen, other: Seen) -> Seen:
    """Combine what was seen of a shard by polling with what was pushed."""
    if one.ended or other.ended:
        return one if one.ended else other
    if one.number == other.number:
        clean = [seen.clean_ms for seen in (one, other) if seen.clean_ms is not None]
        return Seen(one.number, one.arrival_ms, max(clean, default=None))
    return one if (one.number or -1) > (other.number or -1) else other


def overdue(state: ShardState, now_ms: int, retention_ms: int, parts: int = 1) -> bool:
    """Return whether more than the retention, or a part of it, has passed since `complete_ms`."""
    return state.complete_ms is not None and state.complete_ms < now_ms - retention_ms // parts


def is_worth_a_batch(state: StreamState, ends: Mapping[str, ShardState], listing: Listing) -> bool:
    """Return whether there is something to read up to the ends, or a shard has been idle for long.

    An idle shard makes an empty batch once in a quarter of the retention: later, its silence must not look like records
    that were trimmed unread.
    """
    pairs = [(state.shards.get(shard, NEW), end) for shard, end in ends.items()]
    return any(end.position != begin.position or _is_stale(begin, end, listing) for begin, end in pairs)


def _is_stale(state: ShardState, end: ShardState, listing: Listing) -> bool:
    if end.ended or end.complete_ms is None:
        return False
    return state.complete_ms is None or overdue(state, end.complete_ms, listing.retention_ms, _PARTS_OF_RETENTION)


def advanced(state: StreamState, ends: Mapping[str, ShardState], listing: Listing) -> StreamState:
    """Return the end of a batch; the arguments are those of `is_worth_a_batch`."""
    shards = dict(state.shards) | dict(ends)
    left = {shard: one for shard, one in shards.items() if not _is_over(shard, shards, listing)}
    return StreamState(state.created_ms, left)


def _is_over(shard: str, shards: Mapping[str, ShardState], listing: Listing) -> bool:
    if shard in listing.shards:
        return False
    children = [child for child, listed in listing.shards.items() if shard in listed.parents]
    return not shards[shard].ended or all(child in shards for child in children)


def shard_ranges(listing: Listing, start: StreamState | None, end: StreamState) -> list[ShardRange]:
    """Return what a batch reads of a stream: a function of its two offsets; the start may not name the stream."""
    ranges = []
    before = {} if start is None else start.shards
    for shard, state in sorted(end.shards.items()):
        begin = before.get(shard, NEW)
        if state.position == begin.position:
            continue
        if begin.ended or (
            state.position.kind is PositionKind.AFTER and not is_after(begin.position, state.position.number)
        ):
            what = f"The batch ends at {state.position}, before it begins at {begin.position}"
            raise OffsetError("KINESIS_OFFSET_REVERSED", what, f"{listing.name}, {shard}")
        whole = (begin.position, state.position, begin.complete_ms, listing.retention_ms)
        ranges.append(ShardRange(listing.stream, listing.name, shard, *whole))
    return ranges
