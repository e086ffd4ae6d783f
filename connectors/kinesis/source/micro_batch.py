"""What the source process of a query does: where batches end, and which ranges they have.

`partitions` is a function of two offsets, since a batch that was not finished is planned again after a restart before
anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import ConnectorError, OffsetError, OptionError, SourceGoneError
from connectors.core.offsets import is_sentinel
from connectors.kinesis.client.errors import INVALID_ARGUMENT, NOT_FOUND
from connectors.kinesis.offsets import Kind, ShardState, Streams, StreamState, end_offset, read_offset, resolved_start
from connectors.kinesis.shards import (
    Listing,
    Seen,
    ShardRange,
    advanced,
    is_whole,
    is_worth_a_batch,
    next_state,
    readable,
    resolve,
    shard_ranges,
    states_of,
    unproven,
    vanished,
    with_unread,
)
from connectors.kinesis.source.iterators import check_kept, report_loss
from connectors.kinesis.source.rate_limits import counted_end, is_within, shares, timed_end
from connectors.kinesis.source.shard_monitor import ShardKey, ShardWatch

if TYPE_CHECKING:
    from connectors.kinesis.options.source import KinesisReadOptions

__all__ = ["KinesisStream", "check_named", "same_stream"]

_ENDED = Seen(ended=True)
_SHARE_OF_A_CORE: Final = 0.05
_PASSED_ON: Final = 0.2
"""Of the time in which an end is found: what it takes Spark to send a start, and to take an end that is known."""
_LONGEST_REST: Final = 1.0


class KinesisStream:
    """The stream of one query.

    Args:
        options: the parsed options.
        monitor: knows the shards and their latest records; ended by `stop`.
    """

    def __init__(self, options: KinesisReadOptions, monitor: ShardWatch) -> None:
        self._options = options
        self._watch = monitor
        self._resolved: Streams | None = None
        self._called = False
        self._checked: set[tuple[ShardKey, ShardState]] = set()
        self._answered: tuple[dict[str, Any], int, dict[str, Any]] | None = None
        self._read: tuple[dict[str, Any], Streams] | None = None
        self._found_in = 0.0
        self._rested_at = 0.0
        self._available_now = False
        self._targets: dict[ShardKey, Seen] | None = None
        self._listings: list[Listing] = []

    def prepare_for_available_now(self) -> None:
        """From now on nothing is read that is newer than the next call of `latest_offset`."""
        self._available_now = True
        self._watch.bounded()
        self._targets = None

    def latest_offset(self, start: Mapping[str, Any], *, everything: bool) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself if there is nothing new.

        Args:
            start: where the batch begins.
            everything: without limits, as under Trigger.Once.

        Raises:
            ConnectorError: the service cannot be asked, a stream was made anew, or records are gone.
        """
        self._watch.busy(())
        if is_sentinel(start):
            self._watch.begins_anew()
        try:
            return self._latest(start, everything=everything)
        except ConnectorError as error:
            if error.code in {INVALID_ARGUMENT, NOT_FOUND}:
                self._begin(start, self._watch.listings(fresh=True))  # a stream or a shard that is another one now
            raise

    def _latest(self, start: Mapping[str, Any], *, everything: bool) -> dict[str, Any]:
        if self._available_now:
            return self._end(start, self._bounded(start), self._listings, everything=everything)
        if everything:
            self._watch.bounded()
        fresh = everything or not self._called
        again = not fresh and self._answered is not None and self._answered[0] == start
        if again:
            self._rest()
        version, began = self._watch.version, time.thread_time()
        listings = self._watch.listings(fresh=fresh)
        if again and self._answered is not None and self._answered[1] == version:
            self._rested_at = time.monotonic() + self._found_in * _PASSED_ON / _SHARE_OF_A_CORE
            return dict(self._answered[2])
        begin = self._begin(start, listings)
        self._follow(begin, listings, all_of_them=False)
        if fresh:
            self._watch.refresh(exact=everything)
        self._called = True
        answer = self._end(start, self._seen, listings, everything=everything)
        self._answered = (dict(start), version, answer)
        self._found_in = time.thread_time() - began
        self._rested_at = time.monotonic() + self._found_in / _SHARE_OF_A_CORE
        return answer

    def _rest(self) -> None:
        """Wait before the same question is answered again, as long as that takes little of a core.

        Spark asks every 10 ms. With few shards there is no wait; an answer for a thousand takes as long as a question.
        """
        if (wait := self._rested_at - time.monotonic()) > 0:
            time.sleep(min(wait, _LONGEST_REST))

    def _bounded(self, start: Mapping[str, Any]) -> Callable[[ShardKey], Seen]:
        """What there was at the start of a bounded run, by shard."""
        if self._targets is None:
            self._listings = self._watch.listings(fresh=True)
            begin = self._begin(start, self._listings)
            keys = self._follow(begin, self._listings, all_of_them=True)
            self._watch.refresh(exact=True)
            self._targets = {key: self._watch.seen(key) for key in keys}
            self._watch.follow({}, self._listings)
        targets = self._targets
        return lambda key: targets.get(key, _ENDED)

    def _seen(self, key: ShardKey) -> Seen:
        """What is known of a shard; one that is not followed is closed."""
        return self._watch.seen(key) if self._watch.follows(key) else _ENDED

    def _begin(self, start: Mapping[str, Any], listings: Iterable[Listing]) -> Streams:
        """Where a batch begins, with every stream that is read.

        Raises:
            SourceGoneError: a stream was made anew.
            DataLossError: records are gone, and ``failOnDataLoss`` is set.
        """
        if not is_sentinel(start):
            if self._read is None or self._read[0] != start:
                self._read = (dict(start), read_offset(start))
            begin = dict(self._read[1])
        elif self._resolved is not None:
            begin = dict(self._resolved)
        else:
            begin = {each.arn: resolve(each, self._options.start) for each in listings}
            check_named(self._watch, self._options, begin, listings)
            self._resolved = dict(begin)
        for listing in listings:
            state = begin.setdefault(listing.arn, StreamState(listing.created_ms))
            same_stream(state, listing)
            for shard in vanished(state, listing):
                position = state.shards[shard].position
                reason = f"The shard is not there any more and was read up to {position} only"
                self._report("SHARD_VANISHED", reason, f"{listing.name}, {shard}")
            self._check_kept(state, listing)
        return begin

    def _check_kept(self, state: StreamState, listing: Listing) -> None:
        """Look once at each shard of which nothing is known for longer than the retention."""
        for shard, one in with_unread(state, listing).shards.items():
            key = (listing.arn, shard)
            if unproven(shard, one, listing) and (key, one) not in self._checked:
                look = self._watch.look(key, listing.stream)
                check = partial(check_kept, look, one.position, one.known_ms or 0, fail=self._options.fail_on_data_loss)
                self._watch.look_at_all(check)
                self._checked.add((key, one))

    def _follow(self, begin: Streams, listings: Iterable[Listing], *, all_of_them: bool) -> list[ShardKey]:
        """Follow the open shards that can be read now, or all that can ever be."""
        wanted: dict[ShardKey, ShardState] = {}
        for listing in listings:
            states = states_of(begin[listing.arn], listing)
            shards = (
                [each for each, state in states.items() if not state.ended]
                if all_of_them
                else (readable(states, listing, preserve_order=self._options.preserve_shard_order))
            )
            wanted |= {(listing.arn, each): states[each] for each in shards if not listing.shards[each].closed}
        self._watch.follow(wanted, list(listings))
        return list(wanted)

    def _end(
        self,
        start: Mapping[str, Any],
        seen: Callable[[ShardKey], Seen],
        listings: Iterable[Listing],
        *,
        everything: bool,
    ) -> dict[str, Any]:
        """Where a batch ends, within the limits."""
        begin = self._begin(start, listings)
        ends: dict[ShardKey, ShardState] = {}
        starts: dict[ShardKey, ShardState] = {}
        for listing in listings:
            states = states_of(begin[listing.arn], listing)
            for shard in readable(states, listing, preserve_order=self._options.preserve_shard_order):
                key = (listing.arn, shard)
                starts[key], ends[key] = states[shard], next_state(states[shard], seen(key))
            for shard, state in states.items():
                ends.setdefault((listing.arn, shard), state)
        if not everything:
            ends |= self._limited(starts, ends, {each.arn: each for each in listings})
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
        """The ends that lie nearer because of ``maxRecordsPerTrigger`` and ``maxBytesPerTrigger``."""
        records, size = self._options.max_records_per_trigger, self._options.max_bytes_per_trigger
        moved = {key: state for key, state in starts.items() if ends[key].position != state.position}
        if not moved or (records is None and size is None):
            return {}
        given = shares({f"{arn} {shard}": state for (arn, shard), state in moved.items()}, records, size)
        limited: dict[ShardKey, ShardState] = {}
        questions: dict[ShardKey, Callable[[], ShardState]] = {}
        for key, state in moved.items():
            share = given.get(" ".join(key))
            if share is None:
                limited[key] = state
            elif not is_within(state, ends[key], share):
                find = counted_end if share.is_counted else partial(timed_end, at_ms=listings[key[0]].at_ms)
                look = self._watch.look(key, listings[key[0]].stream)
                questions[key] = partial(find, look, state, ends[key], share)
        return limited | dict(zip(questions, self._watch.look_at_all(*questions.values()), strict=True))

    def report_latest_offset(self) -> dict[str, Any] | None:
        """The newest records seen, for Spark's progress reports."""
        if self._answered is None:
            return None
        streams: Streams = {}
        for listing in self._watch.known():
            seen = {shard: self._seen((listing.arn, shard)) for shard in listing.shards}
            states = {shard: next_state(ShardState(), each) for shard, each in seen.items()}
            streams[listing.arn] = StreamState(listing.created_ms, states)
        return end_offset(streams)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ShardRange]:
        """The ranges of a batch.

        Raises:
            OffsetError: an offset does not fit, or names a stream that is not read any more.
            SourceGoneError: a stream was made anew.
        """
        if is_sentinel(end):
            return []
        until = read_offset(end)
        begin = resolved_start(end) if is_sentinel(start) else read_offset(start)
        listings = {each.arn: each for each in self._watch.known()}
        ranges: list[ShardRange] = []
        busy: list[ShardKey] = []
        for arn, state in until.items():
            if state == begin.get(arn):
                continue
            listing = listings.get(arn)
            if listing is None:
                what = "The batch that was not finished reads a stream that the options do not name any more"
                raise OffsetError("KINESIS_STREAM_NOT_READ", what, arn, "Name it again until that batch is done.")
            same_stream(state, listing)
            before = with_unread(begin[arn], listing) if arn in begin else None
            found = shard_ranges(listing.stream, listing.name, before, state, listing.retention_ms)
            found = [self._completed(listing, state.created_ms, each) for each in found]
            busy += [(arn, each.shard) for each in found]
            ranges += found
        self._watch.busy(busy)
        return ranges

    def _completed(self, listing: Listing, created_ms: int, part: ShardRange) -> ShardRange:
        """A range, with what is there of it without asking the service, and without a time that proves nothing."""
        known_ms = None if is_whole(part.shard, part.begin, listing) else part.known_ms
        pieces = self._watch.pieces((listing.arn, part.shard), created_ms, part.begin, part.end)
        return replace(part, known_ms=known_ms, pieces=pieces)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Batches up to an offset are never planned again."""
        if not is_sentinel(end):
            self._watch.forget(read_offset(end))

    def _report(self, kind: str, reason: str, where: str) -> None:
        report_loss(kind, reason, where, fail=self._options.fail_on_data_loss)

    def stop(self) -> None:
        """End the threads."""
        self._watch.stop()


def same_stream(state: StreamState, listing: Listing) -> None:
    """Refuse a stream that was deleted and made anew.

    Raises:
        SourceGoneError: it was.
    """
    if state.created_ms != listing.created_ms:
        raise SourceGoneError(
            "KINESIS_STREAM_RECREATED",
            f"The checkpoint is of a stream made at {state.created_ms} ms after 1970, and the one there now was made "
            f"at {listing.created_ms}: it was deleted and made anew",
            listing.name,
            "Start with a new checkpoint.",
        )


def check_named(watch: ShardWatch, options: KinesisReadOptions, begin: Streams, listings: Iterable[Listing]) -> None:
    """Refuse a start that names records which are none of their shards.

    Raises:
        OptionError: one is not.
    """
    if options.start.everywhere is not None:
        return
    for listing in listings:
        for shard, state in begin[listing.arn].shards.items():
            if state.position.kind not in {Kind.AFTER, Kind.AT}:
                continue
            try:
                watch.ask(partial(watch.client.iterator, listing.stream, shard, state.position))
            except ConnectorError as error:
                if error.code not in {INVALID_ARGUMENT, NOT_FOUND}:
                    raise
                raise OptionError(
                    "KINESIS_FOREIGN_SEQUENCE_NUMBER",
                    f"The option initialPosition names the record {state.position.number}, which the shard has not",
                    f"{listing.name}, {shard}",
                    "Give the number of a record of this shard that is still kept.",
                ) from None
