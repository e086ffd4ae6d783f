"""The driver's side of a stream: where batches end, and which ranges they have.

`partitions` is a function of two offsets: after a restart, an unfinished batch is planned again first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from connectors.core.errors import ConnectorError, OffsetError, OptionError, SourceGoneError
from connectors.core.offsets import is_sentinel
from connectors.core.retry import wait_out
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.client.errors import INVALID_ARGUMENT, NOT_FOUND
from connectors.kinesis.offsets import (
    END,
    PositionKind,
    ShardState,
    Streams,
    StreamState,
    after,
    at_time,
    end_offset,
    read_offset,
    resolved_start,
)
from connectors.kinesis.shards import (
    Listing,
    Seen,
    ShardKey,
    ShardRange,
    advanced,
    is_after,
    is_whole,
    is_worth_a_batch,
    next_state,
    readable,
    resolve,
    shard_ranges,
    states_of,
    unproven,
    with_unread,
)
from connectors.kinesis.source.pages import (
    BYTES_A_SECOND,
    RECORDS_A_SECOND,
    ShardPages,
    check_trimmed,
    check_vanished,
    first_record,
)
from connectors.kinesis.source.shard_monitor import ENDED, ShardMonitor

if TYPE_CHECKING:
    from connectors.kinesis.options.source import KinesisReadOptions

K = TypeVar("K", str, ShardKey)

_SHARE_OF_A_CORE: Final = 0.05
_PASSED_ON: Final = 0.2
"""Of the time in which an end is found: what it takes Spark to send a start, and to take an end that is known."""
_LONGEST_PAUSE: Final = 1.0
_LONG_MS: Final = 5000
"""Of arrivals in a shard: a batch with as much takes seconds, and other shards aren't read meanwhile."""
_SEARCH_SECONDS: Final = 5.0
"""How long such a batch waits for the ends of other shards."""
_COUNTED_RECORDS: Final = 10_000
_COUNTED_BYTES: Final = 4 << 20


class KinesisStream:
    """The stream of one query; `stop` ends its monitor too."""

    def __init__(self, options: KinesisReadOptions, monitor: ShardMonitor) -> None:
        self._options = options
        self._monitor = monitor
        self._push_source = monitor.push_source
        self._resolved: Streams | None = None
        self._called = False
        self._checked: set[tuple[ShardKey, ShardState]] = set()
        self._answered: tuple[dict[str, Any], int, dict[str, Any]] | None = None
        """The last start, the version of the monitor, and the end."""
        self._parsed_start: tuple[dict[str, Any], Streams] | None = None
        self._cpu_seconds = 0.0
        self._pause_until = 0.0
        self._available_now = False
        self._targets: dict[ShardKey, Seen] | None = None
        self._listings: list[Listing] = []

    def prepare_for_available_now(self) -> None:
        """From now on read nothing that is newer than the next call of `latest_offset`."""
        self._available_now = True
        self._push_source.bound(bounded=True)
        self._targets = None

    def latest_offset(self, start: Mapping[str, Any], *, everything: bool) -> dict[str, Any]:
        """Return the end of the next batch, without limits if ``everything``; ``start`` itself if there is nothing new.

        Raises a `ConnectorError` when the service cannot be asked, a stream was recreated, or records are gone.
        """
        self._monitor.set_busy(())
        if is_sentinel(start):
            self._push_source.start_over()
        try:
            return self._latest(start, everything=everything)
        except ConnectorError as error:
            if error.code in {INVALID_ARGUMENT, NOT_FOUND}:
                self._begin(start, self._monitor.listings(fresh=True))  # a stream or shard that is another one now
            raise

    def _latest(self, start: Mapping[str, Any], *, everything: bool) -> dict[str, Any]:
        if self._available_now:
            seen = self._bounded(start)
            begin = self._begin(start, self._listings)
            return self._end(start, begin, seen, self._listings, everything=everything)
        # Spark before 4.2 does not say whether a run is bounded, so only its first call asks for everything.
        self._push_source.bound(bounded=everything)
        fresh = everything or not self._called
        again = None if fresh or self._answered is None or self._answered[0] != start else self._answered
        if again is not None:
            self._pause()
        version, began = self._monitor.version, time.thread_time()
        listings = self._monitor.listings(fresh=fresh)
        if again is not None and again[1] == version:
            self._pause_until = time.monotonic() + self._cpu_seconds * _PASSED_ON / _SHARE_OF_A_CORE
            return dict(again[2])
        begin = self._begin(start, listings)
        self._follow(begin, listings, all_of_them=False)
        if fresh:
            self._monitor.refresh(exact=everything)
        elif self._is_long(begin):
            self._monitor.finish_searches(_SEARCH_SECONDS)
            version = self._monitor.version
        self._called = True
        end = self._end(start, begin, self._monitor.seen, listings, everything=everything)
        self._answered = (dict(start), version, end)
        self._cpu_seconds = time.thread_time() - began
        self._pause_until = time.monotonic() + self._cpu_seconds / _SHARE_OF_A_CORE
        return end

    def _is_long(self, begin: Streams) -> bool:
        """Return whether a batch would read a shard for seconds, and no limit keeps it short."""
        if self._options.max_records_per_trigger is not None or self._options.max_bytes_per_trigger is not None:
            return False
        return any(
            (self._monitor.seen((arn, shard)).arrival_ms or 0) - state.arrival_ms > _LONG_MS
            for arn, stream in begin.items()
            for shard, state in stream.shards.items()
            if state.arrival_ms is not None
        )

    def _pause(self) -> None:
        # Spark asks every 10 ms. An answer about a thousand shards takes as long as a question; few need no wait.
        if (wait := self._pause_until - time.monotonic()) > 0:
            time.sleep(min(wait, _LONGEST_PAUSE))

    def _bounded(self, start: Mapping[str, Any]) -> Callable[[ShardKey], Seen]:
        """Return what there was at the start of a bounded run, by shard."""
        if self._targets is None:
            self._listings = self._monitor.listings(fresh=True)
            begin = self._begin(start, self._listings)
            keys = self._follow(begin, self._listings, all_of_them=True)
            self._monitor.refresh(exact=True)
            self._targets = {key: self._monitor.seen(key) for key in keys}
            self._monitor.follow({}, self._listings)
        targets = self._targets
        return lambda key: targets.get(key, ENDED)

    def _begin(self, start: Mapping[str, Any], listings: Iterable[Listing]) -> Streams:
        """Return where a batch begins, with every stream that is read; refuses streams and records that are gone."""
        if not is_sentinel(start):
            if self._parsed_start is None or self._parsed_start[0] != start:
                self._parsed_start = (dict(start), read_offset(start))
            begin = dict(self._parsed_start[1])
        elif self._resolved is not None:
            begin = dict(self._resolved)
        else:
            begin = {listing.arn: resolve(listing, self._options.start) for listing in listings}
            check_named(self._monitor.client, self._options, begin, listings)
            self._resolved = dict(begin)
        for listing in listings:
            state = begin.setdefault(listing.arn, StreamState(listing.created_ms))
            same_stream(state, listing)
            check_vanished(state, listing, fail=self._options.fail_on_data_loss)
            self._check_trimmed(state, listing)
        return begin

    def _check_trimmed(self, state: StreamState, listing: Listing) -> None:
        """Check once each shard whose records may have been trimmed unread."""
        for shard, one in with_unread(state, listing).shards.items():
            key = (listing.arn, shard)
            if unproven(shard, one, listing) and (key, one) not in self._checked:
                pages, fail = self._monitor.pages(key, listing.stream), self._options.fail_on_data_loss
                check = partial(check_trimmed, pages, one.position, one.complete_ms or 0, fail=fail)
                self._monitor.scheduler.all_of([check], f"the oldest records of {listing.name}")
                self._checked.add((key, one))

    def _follow(self, begin: Streams, listings: Iterable[Listing], *, all_of_them: bool) -> list[ShardKey]:
        """Follow the open shards that can be read now, or all that can ever be."""
        wanted: dict[ShardKey, ShardState] = {}
        for listing in listings:
            states = states_of(begin[listing.arn], listing)
            shards = readable(states, listing, preserve_order=not all_of_them)
            wanted |= {(listing.arn, shard): states[shard] for shard in shards if not listing.shards[shard].closed}
        self._monitor.follow(wanted, list(listings))
        return list(wanted)

    def _end(
        self,
        start: Mapping[str, Any],
        begin: Streams,
        seen: Callable[[ShardKey], Seen],
        listings: Iterable[Listing],
        *,
        everything: bool,
    ) -> dict[str, Any]:
        ends: dict[ShardKey, ShardState] = {}
        starts: dict[ShardKey, ShardState] = {}
        for listing in listings:
            states = states_of(begin[listing.arn], listing)
            for shard in readable(states, listing):
                key = (listing.arn, shard)
                starts[key], ends[key] = states[shard], next_state(states[shard], seen(key))
            for shard, state in states.items():
                ends.setdefault((listing.arn, shard), state)
        if not everything:
            ends |= self._limited(starts, ends, {listing.arn: listing for listing in listings})
        end = dict(begin)
        for listing in listings:
            own = {shard: state for (arn, shard), state in ends.items() if arn == listing.arn}
            before = begin[listing.arn]
            if is_sentinel(start) or is_worth_a_batch(before, own, listing):
                end[listing.arn] = advanced(before, own, listing)
        if is_sentinel(start):
            return end_offset(end, begin)
        return dict(start) if end == begin else end_offset(end)

    def _limited(
        self,
        starts: Mapping[ShardKey, ShardState],
        ends: Mapping[ShardKey, ShardState],
        listings: Mapping[str, Listing],
    ) -> dict[ShardKey, ShardState]:
        records, size = self._options.max_records_per_trigger, self._options.max_bytes_per_trigger
        moved = {key: state for key, state in starts.items() if ends[key].position != state.position}
        if not moved or (records is None and size is None):
            return {}
        by_shard = shares(moved, records, size)
        keeps_limits = self._monitor.keeps_limits
        limited: dict[ShardKey, ShardState] = {}
        questions: dict[ShardKey, Callable[[], ShardState]] = {}
        for key, state in moved.items():
            share = by_shard.get(key)
            if share is None:
                limited[key] = state
            elif not (keeps_limits and is_within(state, ends[key], share)):
                is_counted = share.is_counted or not keeps_limits
                find = counted_end if is_counted else partial(_timed_end, at_ms=listings[key[0]].at_ms)
                pages = self._monitor.pages(key, listings[key[0]].stream)
                questions[key] = partial(find, pages, state, ends[key], share)
        answers = self._monitor.scheduler.all_of(questions.values(), "the end of a batch with a limit")
        return limited | dict(zip(questions, answers, strict=True))

    def report_latest_offset(self) -> dict[str, Any] | None:
        if self._answered is None:
            return None
        streams: Streams = {}
        for listing in self._monitor.last_listings():
            states = {
                shard: next_state(ShardState(), self._monitor.seen((listing.arn, shard))) for shard in listing.shards
            }
            streams[listing.arn] = StreamState(listing.created_ms, states)
        return end_offset(streams)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ShardRange]:
        """Return a batch's ranges; an `OffsetError` or `SourceGoneError` if the offsets don't fit the streams."""
        if is_sentinel(end):
            return []
        until = read_offset(end)
        begin = resolved_start(end) if is_sentinel(start) else read_offset(start)
        listings = {listing.arn: listing for listing in self._monitor.last_listings()}
        ranges: list[ShardRange] = []
        busy: list[ShardKey] = []
        for arn, state in until.items():
            if state == begin.get(arn):
                continue
            listing = listings.get(arn)
            if listing is None:
                what = "The unfinished batch reads a stream that the options no longer name"
                raise OffsetError("KINESIS_STREAM_NOT_READ", what, arn)
            same_stream(state, listing)
            before = with_unread(begin[arn], listing) if arn in begin else None
            for part in shard_ranges(listing, before, state):
                # The time of a shard that is whole proves nothing.
                complete_ms = None if is_whole(part.shard, part.begin, listing) else part.complete_ms
                pieces = self._push_source.pieces((arn, part.shard), state.created_ms, part.begin, part.end)
                ranges.append(replace(part, complete_ms=complete_ms, pieces=pieces))
                busy.append((arn, part.shard))
        self._monitor.set_busy(busy)
        return ranges

    def commit(self, end: Mapping[str, Any]) -> None:
        """Note that batches up to an offset are never planned again."""
        if not is_sentinel(end):
            self._push_source.forget(read_offset(end))

    def stop(self) -> None:
        self._monitor.stop()


def same_stream(state: StreamState, listing: Listing) -> None:
    if state.created_ms != listing.created_ms:
        what = (
            f"The stream was deleted and created again: the checkpoint's was created at {state.created_ms} ms after "
            f"1970, the present one at {listing.created_ms}"
        )
        raise SourceGoneError("KINESIS_STREAM_RECREATED", what, listing.name)


def check_named(
    client: KinesisClient, options: KinesisReadOptions, begin: Streams, listings: Iterable[Listing]
) -> None:
    if options.start.everywhere is not None:
        return
    for listing in listings:
        for shard, state in begin[listing.arn].shards.items():
            if state.position.kind not in {PositionKind.AFTER, PositionKind.AT}:
                continue
            try:
                wait_out(partial(client.iterator, listing.stream, shard, state.position), options.outage_rule)
            except ConnectorError as error:
                if error.code not in {INVALID_ARGUMENT, NOT_FOUND}:
                    raise
                number = state.position.number
                what = f"The option initialPosition names the record {number}, but the shard has no such record"
                raise OptionError("KINESIS_FOREIGN_SEQUENCE_NUMBER", what, f"{listing.name}, {shard}") from None


@dataclass(frozen=True, slots=True)
class Share:
    """What a batch may take of one shard: the most records and the most bytes of data; None for any."""

    records: int | None
    size: int | None

    @property
    def is_counted(self) -> bool:
        """Whether it is small enough to be counted record by record."""
        few = self.records is not None and self.records <= _COUNTED_RECORDS
        return few or (self.size is not None and self.size <= _COUNTED_BYTES)

    @property
    def span_ms(self) -> int:
        """A time in which no more than this can have arrived: a shard takes 1,000 records and 1 MiB a second."""
        limits = ((self.records, RECORDS_A_SECOND), (self.size, BYTES_A_SECOND))
        return min(most * 1000 // a_second for most, a_second in limits if most is not None)


def shares(states: Mapping[K, ShardState], max_records: int | None, max_bytes: int | None) -> dict[K, Share]:
    """Return each shard's share of a batch; with fewer records than shards, those furthest behind take part."""
    order = sorted(states, key=lambda shard: (states[shard].complete_ms or 0, shard))
    if max_records is not None:
        order = order[:max_records]
    count = len(order)
    records = None if max_records is None else max_records // count
    size = None if max_bytes is None else max(1, max_bytes // count)
    return dict.fromkeys(order, Share(records, size))


def is_within(state: ShardState, end: ShardState, share: Share) -> bool:
    """Return whether all that arrived between a start and an end is within a share, at the limits of a shard of AWS."""
    if state.arrival_ms is None or end.arrival_ms is None or end.position.kind is not PositionKind.AFTER:
        return False
    return end.arrival_ms - state.arrival_ms + 1000 <= share.span_ms


def counted_end(pages: ShardPages, state: ShardState, end: ShardState, share: Share) -> ShardState:
    """Return where a share that begins at ``state`` ends, by reading it; at least one record is taken."""
    count = size = 0
    reached = state

    def limit() -> int:
        return _COUNTED_RECORDS if share.records is None else min(_COUNTED_RECORDS, share.records - count)

    for page in pages.read(state.position, limit, was_read=state.complete_ms is not None):
        for record in page.records:
            if not is_after(state.position, record.number):
                continue
            count, size = count + 1, size + len(record.Data)
            if count > 1 and share.size is not None and size > share.size:
                return reached
            reached = ShardState(after(record.number), record.arrival_ms)
            if reached.position == end.position:
                return end
            if count == share.records or (share.size is not None and size >= share.size):
                return reached
        if page.following is None and end.position == END:
            return end
        if not page.records and page.behind_ms == 0 and page.following is not None:
            return end if end.position == END else reached  # a server may never say that a closed shard has ended
    return reached


def _timed_end(pages: ShardPages, state: ShardState, end: ShardState, share: Share, *, at_ms: int) -> ShardState:
    """Return where a share ends, by time: at the first record that arrived when it may be used up."""
    begin_ms = state.arrival_ms
    if begin_ms is None:
        first = first_record(pages, state.position)
        if first is None:
            return end
        begin_ms = first.arrival_ms
    moment = begin_ms + share.span_ms
    if moment >= (at_ms if end.arrival_ms is None else end.arrival_ms):  # the service refuses a time to come
        return end
    cut = first_record(pages, at_time(moment))
    if cut is None or (end.position.kind is PositionKind.AFTER and cut.number >= end.position.number):
        return end
    return ShardState(after(cut.number), cut.arrival_ms) if is_after(state.position, cut.number) else end
