"""What segments of the spool hold of a shard, and which of them cover a range: pure functions.

A cached range holds every record between the position after which it was read and its last record. So cached ranges
cover a range of a batch only as an unbroken chain: each must begin where the one before ends, or earlier.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from connectors.core.offsets import whole_number
from connectors.kinesis.offsets import END, Position, PositionKind, after, of_type, sequence_number
from connectors.kinesis.schema import ARROW_SCHEMA
from connectors.kinesis.shards import Piece, ShardKey
from connectors.spool.segments.rows import RowSchema

_LAST: Final = attrgetter("last")
CACHED_ROWS: Final = RowSchema(1, ARROW_SCHEMA, all_present=True)
"""A new column gets a new version. Rows of older segments, which lack it, are polled: that fills the column."""


@dataclass(frozen=True, slots=True)
class CachedRange:
    """A run of rows of one shard in one segment, read ``after`` a position, from record ``first`` to record ``last``.

    Its ``rows`` begin at the index ``row`` of the segment and come of so many ``records``, with ``size`` bytes of data.
    ``segment`` and its ``digest`` are empty while it is being written.
    """

    key: ShardKey
    created_ms: int
    after: Position
    first: int
    last: int
    arrival_ms: int
    ended: bool
    rows: int
    records: int
    size: int
    deaggregate: bool
    segment: str = ""
    digest: str = ""
    row: int = 0

    def note(self) -> dict[str, Any]:
        """Return the note in the footer of its segment; numbers are texts, as they have 56 digits."""
        return {
            "stream": self.key[0],
            "created": self.created_ms,
            "shard": self.key[1],
            "after": str(self.after),
            "first": str(self.first),
            "last": str(self.last),
            "ts": self.arrival_ms,
            "ended": self.ended,
            "rows": self.rows,
            "records": self.records,
            "bytes": self.size,
            "deaggregate": self.deaggregate,
        }

    @classmethod
    def of_segment(cls, notes: Iterable[Mapping[str, Any]], segment: str, digest: str) -> list[CachedRange]:
        """Return the cached ranges of a segment, whose rows they are in this order.

        Raises a `KeyError`, `TypeError` or `ValueError` for notes of another source.
        """
        ranges, row = [], 0
        for note in notes:
            cached = cls(
                key=(of_type(str, note["stream"]), of_type(str, note["shard"])),
                created_ms=whole_number(note["created"]),
                after=Position.parse(note["after"]),
                first=sequence_number(note["first"]),
                last=sequence_number(note["last"]),
                arrival_ms=whole_number(note["ts"]),
                ended=of_type(bool, note["ended"]),
                rows=whole_number(note["rows"]),
                records=whole_number(note["records"]),
                size=whole_number(note["bytes"]),
                deaggregate=of_type(bool, note["deaggregate"]),
                segment=segment,
                digest=digest,
                row=row,
            )
            if cached.first > cached.last or (
                cached.after.kind is PositionKind.AFTER and cached.after.number >= cached.first
            ):
                raise ValueError("The records of a note are not in their order")
            ranges.append(cached)
            row += cached.rows
        return ranges

    def follows(self, position: Position) -> bool:
        """Return whether it holds everything that comes right after a position, and something does."""
        if position.kind is not PositionKind.AFTER:
            return self.after == position  # no record's: only what was read from exactly there follows
        reaches = self.after.kind is PositionKind.AFTER and self.after.number <= position.number
        return self.last > position.number and (reaches or self.first <= position.number)

    def start_after_gap(self, position: Position) -> Position | None:
        """Return where it begins to count when there is a gap after a position.

        None after a time, and after the oldest record: the cached range may lie before.
        """
        gap = {PositionKind.AFTER: 1, PositionKind.AT: 0}.get(position.kind)
        if gap is None or self.after.kind is not PositionKind.AFTER or self.after.number < position.number + gap:
            return None
        return self.after


@dataclass(slots=True)
class CachedRanges:
    """The cached ranges of one shard, in the order of their last records."""

    _ranges: list[CachedRange] = field(default_factory=list)

    def __iter__(self) -> Iterator[CachedRange]:
        return iter(self._ranges)

    def add(self, cached: CachedRange) -> None:
        """Insert a cached range."""
        insort(self._ranges, cached, key=_LAST)

    def drop_up_to(self, position: Position) -> list[CachedRange]:
        """Drop and return those that a query at a position does not need any more."""
        count = len(self._ranges) if position.kind is PositionKind.END else 0
        if position.kind is PositionKind.AFTER:
            count = bisect_right(self._ranges, position.number, key=_LAST)
        dropped, self._ranges = self._ranges[:count], self._ranges[count:]
        return dropped

    def newest(self) -> int | None:
        """Return the number of the newest record, whether a chain leads there or not."""
        return self._ranges[-1].last if self._ranges else None

    def chain(self, begin: Position) -> Iterator[CachedRange]:
        """Yield the cached ranges that lead on from a position without a gap."""
        position = begin
        start = bisect_right(self._ranges, begin.number, key=_LAST) if begin.kind is PositionKind.AFTER else 0
        for cached in self._ranges[start:]:
            if cached.follows(position):
                yield cached
                if cached.ended:
                    return
                position = after(cached.last)

    def pieces(self, begin: Position, end: Position) -> tuple[Piece, ...]:
        """Return the parts of a range, up to AFTER a record or END, that are cached; there may be gaps."""
        pieces: list[Piece] = []
        position = begin
        for cached in self._ranges:
            if position.kind is PositionKind.AFTER and cached.last <= position.number:
                continue
            if end.kind is PositionKind.AFTER and cached.first > end.number:
                break
            start = position if cached.follows(position) else cached.start_after_gap(position)
            if start is None:
                continue
            last = min(cached.last, end.number) if end.kind is PositionKind.AFTER else cached.last
            ended = cached.ended and last == cached.last and end.kind is PositionKind.END
            rows = (cached.row, cached.row + cached.rows)
            pieces.append(Piece(cached.segment, cached.digest, *rows, start, last, ended))
            position = END if ended else after(last)
            if position == end:
                break
        return tuple(pieces)
