"""Planning a batch read: every shard from its start to what there is, or to the end that the options name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from connectors.kinesis.offsets import END, LATEST, Position, PositionKind, ShardState, at
from connectors.kinesis.shards import Listing, ShardKey, ShardRange, next_state, resolve
from connectors.kinesis.source.latest_record import PLANNING_SECONDS
from connectors.kinesis.source.micro_batch import check_named
from connectors.kinesis.source.pages import first_record
from connectors.kinesis.source.shard_monitor import ShardMonitor

if TYPE_CHECKING:
    from connectors.kinesis.client.client import Record
    from connectors.kinesis.options.source import KinesisReadOptions


def plan_batch(options: KinesisReadOptions, patience: float = PLANNING_SECONDS) -> list[ShardRange]:
    """Return the ranges of a batch read with all ends resolved, so that every action reads the same rows.

    Raises a `ServiceUnavailableError` for a shard that makes no progress for ``patience`` seconds.
    """
    monitor = ShardMonitor(options, patience)
    try:
        listings = {listing.arn: listing for listing in monitor.listings(fresh=True)}
        begin = {arn: resolve(listing, options.start) for arn, listing in listings.items()}
        check_named(monitor.client, options, begin, listings.values())
        starts = {
            (arn, shard): state
            for arn in listings
            for shard, state in sorted(begin[arn].shards.items())
            if not state.ended
        }
        ends = _ends(options, monitor, starts, listings)
    finally:
        monitor.stop()
    ranges = []
    for (arn, shard), state in starts.items():
        listing, end = listings[arn], ends[arn, shard]
        if end != state.position:
            place = (listing.stream, listing.name, shard)
            ranges.append(ShardRange(*place, state.position, end, retention_ms=listing.retention_ms))
    return ranges


def _ends(
    options: KinesisReadOptions, monitor: ShardMonitor, starts: dict[ShardKey, ShardState], listings: dict[str, Listing]
) -> dict[ShardKey, Position]:
    wanted = {key: _wanted_end(options, listings[key[0]], key[1]) for key in starts}
    open_ended = {
        key: state
        for key, state in starts.items()
        if wanted[key].kind is not PositionKind.TRIM and not listings[key[0]].shards[key[1]].closed
    }
    monitor.follow(open_ended, list(listings.values()))
    monitor.refresh(exact=True)
    newest = {key: next_state(state, monitor.seen(key)) for key, state in starts.items()}
    timed = [
        key
        for key, end in wanted.items()
        if end.kind is PositionKind.TIME and _has_passed(end, newest[key], listings[key[0]])
    ]
    questions = [partial(first_record, monitor.pages(key, listings[key[0]].stream), wanted[key]) for key in timed]
    first = dict(
        zip(timed, monitor.scheduler.all_of(questions, "the first records as new as endingPosition"), strict=True)
    )
    return {key: _end(wanted[key], newest[key].position, starts[key].position, first.get(key)) for key in starts}


def _has_passed(moment: Position, newest: ShardState, listing: Listing) -> bool:
    """Return whether records may have arrived since a moment; the service refuses one in the future."""
    return moment.number <= (listing.at_ms if newest.ended else newest.arrival_ms or 0)


def _wanted_end(options: KinesisReadOptions, listing: Listing, shard: str) -> Position:
    if options.end.everywhere is not None:
        return options.end.everywhere
    resolve(listing, options.end, "endingPosition")  # refuses a shard that does not exist
    return options.end.of_stream(listing.name).get(shard, LATEST)


def _end(wanted: Position, newest: Position, start: Position, first: Record | None) -> Position:
    """Return where a range ends; ``first`` is the first record as new as a wanted time."""
    if wanted.kind in {PositionKind.AFTER, PositionKind.AT}:
        if newest != END and _is_ahead(wanted, newest):
            return newest
        return wanted if _is_ahead(wanted, start) else start
    if wanted.kind is PositionKind.TRIM or (wanted.kind is start.kind and wanted.number <= start.number):
        return start
    if first is None:
        return newest
    # Nothing at all lies between the start and a first record that is as new as the end.
    return at(first.number) if _is_ahead(at(first.number), start) else start


def _is_ahead(end: Position, start: Position) -> bool:
    return (
        start.kind not in {PositionKind.AFTER, PositionKind.AT}
        or end.number > start.number
        or (end.number == start.number and end.kind is PositionKind.AFTER and start.kind is PositionKind.AT)
    )
