"""Which shards may be read, from where and to where: pure functions over lists of shards and states.

The rules, from which no record is lost and none comes before an older one of its key:

* A shard is read from its first record (TRIM), unless the query's start says otherwise of it.
* A shard that came of a split or a merge is read when all its parents are read to their end. A parent that is not
  listed any more, and of which the offset says nothing, counts as read.
* A listed shard that the offset does not name was read to its end before, if the offset names one of its descendants;
  otherwise it is new.
* The end of a closed shard is END: all that it has. What is closed does not change, so this too reads the same twice.
* A shard that is read to its end leaves the offset when it is not listed any more and its children are in the offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from connectors.core.errors import OffsetError, OptionError
from connectors.kinesis.cached_ranges import Piece
from connectors.kinesis.offsets import (
    CONNECTOR,
    END,
    LATEST,
    NEW,
    TRIM,
    Kind,
    Position,
    ShardState,
    StreamState,
    Where,
    after,
    at_time,
)

__all__ = [
    "Listing",
    "Seen",
    "Shard",
    "ShardRange",
    "advanced",
    "is_behind",
    "is_whole",
    "is_worth_a_batch",
    "newest",
    "next_state",
    "overdue",
    "readable",
    "resolve",
    "shard_ranges",
    "states_of",
    "unproven",
    "vanished",
    "with_unread",
]

_PIN_SLACK_MS = 1000
"""The service tells its time in whole seconds."""
_FUTURE_MS = 60_000
_PARTS_OF_RETENTION = 4


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard, as it is listed.

    Attributes:
        shard_id: its id.
        parents: the ids of the shards it came of; none, one of a split, two of a merge.
        closed: whether it takes no more records.
    """

    shard_id: str
    parents: tuple[str, ...] = ()
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """A stream and its shards, at one time.

    Attributes:
        stream: how the user names it: its name or its ARN.
        arn: its ARN.
        created_ms: when it was made.
        retention_ms: how long it keeps records.
        at_ms: the service's time of this listing.
        shards: its shards by id.
    """

    stream: str
    arn: str
    created_ms: int
    retention_ms: int
    at_ms: int
    shards: Mapping[str, Shard]

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.arn.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a shard's newest records.

    Attributes:
        number: the number of the newest record seen; None when there was none.
        arrival_ms: when it arrived.
        clean_ms: up to when, by the service's time, nothing came after it; None when that was not looked at.
        ended: the shard is closed.
    """

    number: int | None = None
    arrival_ms: int | None = None
    clean_ms: int | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class ShardRange:
    """What a task reads of a shard: from a position up to and with a record, or to its end.

    Attributes:
        stream: name or ARN, to call the service with.
        name: the name of the stream.
        shard: the id of the shard.
        begin: where it begins.
        end: AFTER the last record, or END, or (in batch reads) a TIME or LATEST.
        known_ms: up to when the query knows all earlier records, by the service's time; None when nothing is known.
        retention_ms: how long the stream keeps records.
        pieces: what of it the spool holds, in order; what is not there is read from the service.
    """

    stream: str
    name: str
    shard: str
    begin: Position
    end: Position
    known_ms: int | None = None
    retention_ms: int = 0
    pieces: tuple[Piece, ...] = ()


def resolve(listing: Listing, where: Where, option: str = "initialPosition") -> StreamState:
    """The state in which a new query begins.

    Args:
        listing: the stream as it is now.
        where: where to begin.
        option: its name, for errors.

    Raises:
        OptionError: a shard is named that is not there, or a time lies in the future.
    """
    named = where.of_stream(listing.name)
    if unknown := sorted(set(named) - set(listing.shards)):
        raise OptionError(
            "KINESIS_UNKNOWN_SHARD",
            f"The option {option} names the shard {unknown[0]}, which {listing.name} does not have",
            CONNECTOR,
            f"The shards are: {', '.join(sorted(listing.shards)[:20])}.",
        )
    if where.everywhere is not None:
        positions = dict.fromkeys(listing.shards, where.everywhere)
    else:
        passed = _ancestors(listing, named)
        positions = {each: named.get(each, END if each in passed else TRIM) for each in listing.shards}
    states = {each: ShardState(_pinned(listing, each, position, option)) for each, position in positions.items()}
    return StreamState(listing.created_ms, states)


def _pinned(listing: Listing, shard: str, position: Position, option: str) -> Position:
    """A position that an offset can hold, for one that a user gives."""
    if position is LATEST or position == LATEST:
        return END if listing.shards[shard].closed else at_time(listing.at_ms - _PIN_SLACK_MS)
    if position.kind is not Kind.TIME:
        return position
    if position.number > listing.at_ms + _FUTURE_MS:
        raise OptionError(
            "OPTION_ILLEGAL", f"The time of {option} lies in the future", listing.name, "Give latest, or a time passed."
        )
    if position.number < listing.at_ms - listing.retention_ms:
        return TRIM
    return at_time(min(position.number, listing.at_ms))  # the service refuses a time to come


def _ancestors(listing: Listing, shards: Mapping[str, object]) -> set[str]:
    """The listed shards that these came of."""
    found: set[str] = set()
    left = [parent for each in shards if each in listing.shards for parent in listing.shards[each].parents]
    while left:
        each = left.pop()
        if each in listing.shards and each not in found:
            found.add(each)
            left += listing.shards[each].parents
    return found


def states_of(state: StreamState, listing: Listing) -> dict[str, ShardState]:
    """The state of each listed shard, also of those that are new, without those that were read before and left."""
    passed = _ancestors(listing, state.shards)
    return {each: state.shards.get(each, NEW) for each in listing.shards if each in state.shards or each not in passed}


def vanished(state: StreamState, listing: Listing) -> list[str]:
    """The shards that were not read to their end and are not listed any more: what they still had is gone."""
    return sorted(each for each, one in state.shards.items() if not one.ended and each not in listing.shards)


def with_unread(state: StreamState, listing: Listing) -> StreamState:
    """A state that says of some shards of which nothing was read since when they are owed: since 1970.

    These are children whose parents are in the state and not listed any more. A shard is listed until the retention has
    passed since it was closed, so what its children had first may have been trimmed, and the query has not read it.
    As long as one parent is listed, nothing of them was.

    Args:
        state: the start of a batch.
        listing: the stream as it is now.
    """

    def is_owed(shard: str, one: ShardState) -> bool:
        parents = listing.shards[shard].parents
        is_unread = one.position == TRIM and one.known_ms is None
        return is_unread and any(each in state.shards for each in parents) and not any(map(listing.shards.get, parents))

    owed = [each for each, one in states_of(state, listing).items() if is_owed(each, one)]
    return replace(state, shards={**state.shards, **dict.fromkeys(owed, ShardState(TRIM, clean_ms=0))})


def is_whole(shard: str, position: Position, listing: Listing) -> bool:
    """Whether nothing of a shard that was not read can have been trimmed: one of its parents is listed still.

    So its start by time may lie longer ago than the retention; see `with_unread`.
    """
    listed = listing.shards.get(shard)
    parents = () if listed is None else listed.parents
    return position.kind in {Kind.TRIM, Kind.TIME} and any(each in listing.shards for each in parents)


def unproven(shard: str, state: ShardState, listing: Listing) -> bool:
    """Whether records of a shard may have been trimmed unread, as nothing is known of it for longer than the retention.

    Args:
        shard: its id.
        state: how far it was read.
        listing: the stream as it is now.
    """
    is_unread = not state.ended and shard in listing.shards and not is_whole(shard, state.position, listing)
    return is_unread and overdue(state, listing.at_ms, listing.retention_ms)


def readable(states: Mapping[str, ShardState], listing: Listing, *, preserve_order: bool = True) -> list[str]:
    """The shards that may be read from these states, in the order of their ids.

    Args:
        states: as of `states_of`.
        listing: the stream.
        preserve_order: a shard waits for its parents.
    """

    def waits(shard: str) -> bool:
        return any(parent in states and not states[parent].ended for parent in listing.shards[shard].parents)

    left = sorted(each for each, state in states.items() if not state.ended)
    return [each for each in left if not (preserve_order and waits(each))]


def is_behind(position: Position, number: int | None) -> bool:
    """Whether a record lies behind a position; one that was seen reading on from a time or TRIM does."""
    if number is None or position.kind is Kind.END:
        return False
    if position.kind is Kind.AFTER:
        return number > position.number
    return number >= position.number if position.kind is Kind.AT else True


def next_state(state: ShardState, seen: Seen) -> ShardState:
    """The state after everything that was seen has been read; the same position when nothing is new."""
    if seen.ended:
        return ShardState(END)
    if seen.number is not None and is_behind(state.position, seen.number):
        return ShardState(after(seen.number), seen.arrival_ms, seen.clean_ms)
    if seen.clean_ms is None or (seen.number is not None and state.position != after(seen.number)):
        return state
    return ShardState(state.position, state.arrival_ms, max(seen.clean_ms, state.clean_ms or 0))


def newest(one: Seen, other: Seen) -> Seen:
    """What is known of a shard that was looked at in two ways."""
    if one.ended or other.ended:
        return one if one.ended else other
    if one.number == other.number:
        clean = [each for each in (one.clean_ms, other.clean_ms) if each is not None]
        return Seen(one.number, one.arrival_ms, max(clean, default=None))
    return one if (one.number or -1) > (other.number or -1) else other


def overdue(state: ShardState, now_ms: int, retention_ms: int, parts: int = 1) -> bool:
    """Whether more than the retention, or a part of it, has passed since what the query knows of a shard."""
    known = state.known_ms
    return known is not None and known < now_ms - retention_ms // parts


def is_worth_a_batch(state: StreamState, ends: Mapping[str, ShardState], listing: Listing) -> bool:
    """Whether there is a reason for a batch: something to read, or a shard that has long been known to be idle.

    The latter makes a batch without rows, once in a quarter of the retention, so that later nobody takes the shard's
    silence for records that were trimmed unread.

    Args:
        state: its start.
        ends: the end of each listed shard that is in play, as of `next_state`.
        listing: the stream.
    """
    pairs = [(state.shards.get(shard, NEW), end) for shard, end in ends.items()]
    return any(end.position != begin.position or _is_stale(begin, end, listing) for begin, end in pairs)


def advanced(state: StreamState, ends: Mapping[str, ShardState], listing: Listing) -> StreamState:
    """The end of a batch; the arguments are those of `is_worth_a_batch`."""
    shards = dict(state.shards) | dict(ends)
    left = {each: one for each, one in shards.items() if not _is_over(each, shards, listing)}
    return StreamState(state.created_ms, left)


def _is_stale(state: ShardState, end: ShardState, listing: Listing) -> bool:
    if end.ended or end.known_ms is None:
        return False
    return state.known_ms is None or overdue(state, end.known_ms, listing.retention_ms, _PARTS_OF_RETENTION)


def _is_over(shard: str, shards: Mapping[str, ShardState], listing: Listing) -> bool:
    """Whether a shard can leave the offset; see the top."""
    if shard in listing.shards:
        return False
    children = [each for each, listed in listing.shards.items() if shard in listed.parents]
    return not shards[shard].ended or all(child in shards for child in children)


def shard_ranges(
    stream: str, name: str, start: StreamState | None, end: StreamState, retention_ms: int
) -> list[ShardRange]:
    """What a batch reads of a stream: a function of its two offsets.

    Args:
        stream: name or ARN, to call the service with.
        name: its name.
        start: None for a stream that the start does not name.
        end: the end.
        retention_ms: how long the stream keeps records.

    Raises:
        OffsetError: the end lies before the start.
    """
    found = []
    before = {} if start is None else start.shards
    for shard, state in sorted(end.shards.items()):
        begin = before.get(shard, NEW)
        if state.position == begin.position:
            continue
        if begin.ended or (state.position.kind is Kind.AFTER and not is_behind(begin.position, state.position.number)):
            raise OffsetError(
                "KINESIS_OFFSET_REVERSED",
                f"The batch ends at {state.position} and begins at {begin.position}",
                f"{name}, {shard}",
                "The checkpoint is damaged or was mixed from several; restore it, or start with a new one.",
            )
        found.append(ShardRange(stream, name, shard, begin.position, state.position, begin.known_ms, retention_ms))
    return found
