"""Planning a batch read: every shard from its start to what there is, or to the end that the options name.

Filters on ``stream``, ``shardId``, ``approximateArrivalTimestamp`` and ``sequenceNumber`` spare reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from connectors.core.options.filters import allows, interval, time_interval
from connectors.kinesis.offsets import END, LATEST, Position, PositionKind, ShardState, after, at, at_time
from connectors.kinesis.shards import Listing, ShardKey, ShardRange, next_state, resolve
from connectors.kinesis.source.latest_record import PLANNING_SECONDS
from connectors.kinesis.source.micro_batch import check_named
from connectors.kinesis.source.pages import first_record, has_record
from connectors.kinesis.source.shard_monitor import ShardMonitor

if TYPE_CHECKING:
    from connectors.core.processes.spark import Filter
    from connectors.kinesis.client.client import Record
    from connectors.kinesis.options.source import KinesisReadOptions

_CLOCK_MS: Final = 60_000
"""How far the times of a shard's records may be out of order: AWS promises none, and stamps them within a second."""
_AWS_NUMBERS: Final = range(1 << 185, 3 << 184)
"""The sequence numbers of AWS, which all have 56 digits, so that they have the same order as numbers and as texts."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What filters leave of each shard: records that arrived from ``since`` to ``until`` ms, and sequence numbers."""

    filters: tuple[Filter, ...] = ()
    since: int | None = None
    until: int | None = None
    least: int | None = None
    most: int | None = None

    def wants(self, stream: str, shard: str) -> bool:
        return allows(self.filters, stream=stream, shardId=shard)

    def begin(self, position: Position, listing: Listing) -> Position:
        """Return the later one of a position and the first time at which a record can match."""
        oldest = listing.at_ms - listing.retention_ms
        if self.since is None or self.since <= oldest or position.kind not in {PositionKind.TRIM, PositionKind.TIME}:
            return position
        return at_time(min(max(self.since, position.number), listing.at_ms))

    def end(self, position: Position) -> Position:
        """Return the earlier one of a position and the last time at which a record can match."""
        if self.until is None or position.kind not in {PositionKind.LATEST, PositionKind.TIME}:
            return position
        return at_time(self.until if position == LATEST else min(self.until, position.number))

    def numbers(self) -> list[int]:
        """Return the sequence numbers at which a range may be cut."""
        return sorted({number for number in (self.least, self.most) if number is not None})

    def cut(self, part: ShardRange, has: set[int]) -> ShardRange | None:
        """Return the part of a range that can match; None if there is none. ``has``: the records that the shard has."""
        if self.least is not None and self.least == self.most and self.least not in has:
            return None
        begin, end = part.begin, part.end
        if self.least in has and _is_ahead(at(self.least), begin):
            begin = at(self.least)
        if self.most in has and (end.kind is not PositionKind.AFTER or self.most < end.number):
            end = after(self.most)
        if end.kind is PositionKind.AFTER and not _is_ahead(end, begin):
            return None
        return replace(part, begin=begin, end=end)


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """Return what filters, which must all hold, leave; those that say nothing here are ignored."""
    all_filters = tuple(filters)
    since, until = time_interval(all_filters, "approximateArrivalTimestamp")
    least, most = interval(all_filters, "sequenceNumber")
    is_one = least == most
    return Bounds(
        all_filters,
        None if since is None else max(since // 1000 - _CLOCK_MS, 0),
        None if until is None else max(until // 1000 + 1 + _CLOCK_MS, 0),
        _number(least, alone=is_one),
        _number(most, alone=is_one),
    )


def _number(text: str | None, *, alone: bool) -> int | None:
    """Return the number that a filter names, unless Spark, which compares texts, would order other numbers than we."""
    if text is None or not text.isascii() or not text.isdigit():
        return None
    number = int(text)
    return number if str(number) == text and (alone or number in _AWS_NUMBERS) else None


def plan_batch(
    options: KinesisReadOptions, patience: float = PLANNING_SECONDS, bounds: Bounds | None = None
) -> list[ShardRange]:
    """Return the ranges of a batch read with all ends resolved, so that every action reads the same rows.

    Raises a `ServiceUnavailableError` for a shard that makes no progress for ``patience`` seconds.
    """
    bounds = bounds or Bounds()
    monitor = ShardMonitor(options, patience)
    try:
        listings = {listing.arn: listing for listing in monitor.listings(fresh=True)}
        begin = {arn: resolve(listing, options.start) for arn, listing in listings.items()}
        check_named(monitor.client, options, begin, listings.values())
        starts = {
            (arn, shard): replace(state, position=bounds.begin(state.position, listing))
            for arn, listing in listings.items()
            for shard, state in sorted(begin[arn].shards.items())
            if not state.ended and bounds.wants(listing.name, shard)
        }
        ends = _ends(options, bounds, monitor, starts, listings)
        ranges = {}
        for (arn, shard), state in starts.items():
            listing, end = listings[arn], ends[arn, shard]
            if end != state.position:
                place = (listing.stream, listing.name, shard)
                whole = ShardRange(*place, state.position, end, retention_ms=listing.retention_ms)
                ranges[arn, shard] = whole
        return _cut(ranges, bounds, monitor)
    finally:
        monitor.stop()


def _cut(ranges: dict[ShardKey, ShardRange], bounds: Bounds, monitor: ShardMonitor) -> list[ShardRange]:
    """Return the parts of ranges whose sequence numbers can match; a range is cut at records that its shard has."""
    pairs = [(key, number) for key in ranges for number in bounds.numbers()]
    questions = [partial(has_record, monitor.pages(key, ranges[key].stream), number) for key, number in pairs]
    answers = dict(zip(pairs, monitor.scheduler.all_of(questions, "the records that filters name"), strict=True))
    parts = [
        bounds.cut(part, {number for number in bounds.numbers() if answers[key, number]})
        for key, part in ranges.items()
    ]
    return [part for part in parts if part is not None]


def _ends(
    options: KinesisReadOptions,
    bounds: Bounds,
    monitor: ShardMonitor,
    starts: dict[ShardKey, ShardState],
    listings: dict[str, Listing],
) -> dict[ShardKey, Position]:
    wanted = {key: bounds.end(_wanted_end(options, listings[key[0]], key[1])) for key in starts}
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
