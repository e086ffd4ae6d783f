"""How much of what is there a batch takes: pure functions, and the two ways to find where a share ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connectors.kinesis.offsets import END, Kind, ShardState, after, at_time
from connectors.kinesis.shards import is_after
from connectors.kinesis.source.iterators import ShardPages, first_record

__all__ = ["Share", "counted_end", "is_within", "shares", "timed_end"]

_RECORDS_A_SECOND: Final = 1000
_BYTES_A_SECOND: Final = 1 << 20
_COUNTED_RECORDS: Final = 10_000
_COUNTED_BYTES: Final = 4 << 20


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
        spans = []
        if self.records is not None:
            spans.append(self.records * 1000 // _RECORDS_A_SECOND)
        if self.size is not None:
            spans.append(self.size * 1000 // _BYTES_A_SECOND)
        return min(spans)


def shares(states: Mapping[str, ShardState], max_records: int | None, max_bytes: int | None) -> dict[str, Share]:
    """Return the share of each shard that takes part in a batch, for the starts of those that have something new.

    Where there are fewer records than shards, those that are furthest behind take part.
    """
    order = sorted(states, key=lambda shard: (states[shard].complete_ms or 0, shard))
    if max_records is not None:
        order = order[:max_records]
    count = len(order)
    records = None if max_records is None else max_records // count
    size = None if max_bytes is None else max(1, max_bytes // count)
    return dict.fromkeys(order, Share(records, size))


def is_within(state: ShardState, end: ShardState, share: Share) -> bool:
    """Return whether everything between a start and an end is surely no more than a share."""
    if state.arrival_ms is None or end.arrival_ms is None or end.position.kind is not Kind.AFTER:
        return False
    return end.arrival_ms - state.arrival_ms + 1000 <= share.span_ms


def counted_end(pages: ShardPages, state: ShardState, end: ShardState, share: Share) -> ShardState:
    """Return where a share ends, by reading it; at least one record is taken, however large.

    ``state`` is its start, and ``end`` where it ends without a limit.
    """
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
            return reached
    return reached


def timed_end(pages: ShardPages, state: ShardState, end: ShardState, share: Share, *, at_ms: int) -> ShardState:
    """Return where a share ends, by time: at the first record that arrived when it may be used up.

    The arguments are those of `counted_end`; ``at_ms`` is a time of the service that has passed, as it refuses one to
    come.
    """
    begin_ms = state.arrival_ms
    if begin_ms is None:
        first = first_record(pages, state.position)
        if first is None:
            return end
        begin_ms = first.arrival_ms
    moment = begin_ms + share.span_ms
    if moment >= (at_ms if end.arrival_ms is None else end.arrival_ms):
        return end
    cut = first_record(pages, at_time(moment))
    if cut is None or (end.position.kind is Kind.AFTER and cut.number >= end.position.number):
        return end
    return ShardState(after(cut.number), cut.arrival_ms) if is_after(state.position, cut.number) else end
