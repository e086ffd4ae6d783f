"""Planning a batch read: every shard from its start to what there is, or to the end that the options say."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from connectors.kinesis.offsets import END, LATEST, Kind, Position, ShardState, at
from connectors.kinesis.shards import Listing, ShardRange, next_state, resolve
from connectors.kinesis.source.iterators import first_record
from connectors.kinesis.source.micro_batch import check_named
from connectors.kinesis.source.shard_monitor import ShardKey, ShardWatch

if TYPE_CHECKING:
    from connectors.kinesis.client.responses import Record
    from connectors.kinesis.options.source import KinesisReadOptions

__all__ = ["plan_batch"]


def plan_batch(options: KinesisReadOptions) -> list[ShardRange]:
    """The ranges of a batch read, with all ends found: every action reads the same rows.

    Raises:
        ConnectorError: the service cannot be asked, or a position is none of its shard.
    """
    watch = ShardWatch(options)
    try:
        return _plan(options, watch)
    finally:
        watch.stop()


def _plan(options: KinesisReadOptions, watch: ShardWatch) -> list[ShardRange]:
    listings = watch.listings(fresh=True)
    begin = {each.arn: resolve(each, options.start) for each in listings}
    check_named(watch, options, begin, listings)
    starts = {
        (listing.arn, shard): state
        for listing in listings
        for shard, state in begin[listing.arn].shards.items()
        if not state.ended
    }
    ends = _ends(options, watch, starts, {each.arn: each for each in listings})
    return [
        ShardRange(
            listing.stream, listing.name, shard, state.position, ends[arn, shard], retention_ms=listing.retention_ms
        )
        for listing in listings
        for (arn, shard), state in sorted(starts.items())
        if arn == listing.arn and ends[arn, shard] != state.position
    ]


def _ends(
    options: KinesisReadOptions, watch: ShardWatch, starts: dict[ShardKey, ShardState], listings: dict[str, Listing]
) -> dict[ShardKey, Position]:
    """Where each range ends."""
    said = {key: _said(options, listings[key[0]], key[1]) for key in starts}
    open_ended = {
        key: state
        for key, state in starts.items()
        if said[key].kind is not Kind.TRIM and not listings[key[0]].shards[key[1]].closed
    }
    watch.follow(open_ended, list(listings.values()))
    watch.refresh(exact=True)
    newest = {
        key: next_state(state, watch.seen(key)) if watch.follows(key) else ShardState(END)
        for key, state in starts.items()
    }
    timed = {
        key: each
        for key, each in said.items()
        if each.kind is Kind.TIME and _has_passed(each, newest[key], listings[key[0]])
    }
    looks = {key: watch.look(key, listings[key[0]].stream) for key in timed}
    first = watch.look_at_all(*(partial(first_record, looks[key], each) for key, each in timed.items()))
    found = dict(zip(timed, first, strict=True))
    return {key: _end(key, said[key], newest[key].position, starts[key], found) for key in starts}


def _has_passed(moment: Position, newest: ShardState, listing: Listing) -> bool:
    """Whether records may have arrived since a moment; of one in the future the service must not be asked."""
    return moment.number <= (listing.at_ms if newest.ended else newest.arrival_ms or 0)


def _said(options: KinesisReadOptions, listing: Listing, shard: str) -> Position:
    """What the options say of the end of a shard."""
    if options.end.everywhere is not None:
        return options.end.everywhere
    resolve(listing, options.end, "endingPosition")  # refuses a shard that is not there
    return options.end.of_stream(listing.name).get(shard, LATEST)


def _end(
    key: ShardKey, said: Position, newest: Position, start: ShardState, first: dict[ShardKey, Record | None]
) -> Position:
    if said.kind in {Kind.AFTER, Kind.AT}:
        if newest != END and _is_ahead(said, newest):
            return newest
        return said if _is_ahead(said, start.position) else start.position
    if said.kind is Kind.TRIM or (said.kind is start.position.kind and said.number <= start.position.number):
        return start.position
    record = first.get(key)
    if record is None:
        return newest
    # Nothing at all lies between the start and a first record that is as new as the end.
    return at(record.number) if _is_ahead(at(record.number), start.position) else start.position


def _is_ahead(end: Position, start: Position) -> bool:
    return (
        start.kind not in {Kind.AFTER, Kind.AT}
        or end.number > start.number
        or (end.number == start.number and end.kind is Kind.AFTER and start.kind is Kind.AT)
    )
