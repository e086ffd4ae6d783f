"""What segments of the spool hold of a shard, and which of them cover a range: pure functions.

An *extent* is a run of rows of one shard in one segment. It says after which position it was read and which record is
its last, and holds every record between. So extents cover a range only as an unbroken chain: each must begin where the
one before has ended, or earlier. What no chain covers is read from the service.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from connectors.kinesis.offsets import END, Kind, Position, after

__all__ = ["Extent", "Piece", "ShardExtents", "ShardKey"]

ShardKey = tuple[str, str]
"""ARN of a stream and id of a shard."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of rows of one shard in one segment.

    Attributes:
        key: the shard.
        created_ms: when its stream was made.
        after: what it was read after: a position that a query began at, or the record before.
        first: number of its first record.
        last: number of its last record.
        arrival_ms: when that arrived.
        ended: the shard is closed, and this is its last record.
        rows: how many rows there are.
        records: how many records they came of.
        size: bytes of their data.
        deaggregate: aggregates of the KPL were taken apart.
        segment: name of the segment; empty while it is being written.
        digest: of the segment.
        row: index of the first row in the segment.
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
        """The extent as the footer of its segment keeps it; numbers are texts, as they have 56 digits."""
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
    def of_segment(cls, notes: Iterable[Mapping[str, Any]], segment: str, digest: str) -> list[Extent]:
        """The extents of a segment, whose rows they are in this order.

        Raises:
            KeyError, TypeError, ValueError: the notes are not those of this source.
        """
        found, row = [], 0
        for note in notes:
            made = cls(
                (str(note["stream"]), str(note["shard"])),
                int(note["created"]),
                Position.parse(note["after"]),
                int(note["first"]),
                int(note["last"]),
                int(note["ts"]),
                bool(note["ended"]),
                int(note["rows"]),
                int(note["records"]),
                int(note["bytes"]),
                bool(note["deaggregate"]),
                segment,
                digest,
                row,
            )
            found.append(made)
            row += made.rows
        return found

    def follows(self, position: Position) -> bool:
        """Whether it holds all that comes right behind a position, and something does.

        A position that is no record's is only followed by what was read from just there.
        """
        if position.kind is not Kind.AFTER:
            return self.after == position
        reaches = self.after.kind is Kind.AFTER and self.after.number <= position.number
        return self.last > position.number and (reaches or self.first <= position.number)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a range that a segment holds.

    Attributes:
        segment: name of the segment.
        digest: of the segment.
        first_row, end_row: the rows of the extent, end excluded.
        begin: the place behind which its records are wanted; those before it are in the extent too, perhaps.
        last: the number of the last record that is wanted.
        ended: the shard ends with it, and so does the range.
    """

    segment: str
    digest: str
    first_row: int
    end_row: int
    begin: Position
    last: int
    ended: bool


@dataclass(slots=True)
class ShardExtents:
    """The extents of one shard, in the order of their last records."""

    _extents: list[Extent] = field(default_factory=list)

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._extents)

    def add(self, extent: Extent) -> None:
        """Take one more."""
        insort(self._extents, extent, key=_last)

    def drop_up_to(self, position: Position) -> list[Extent]:
        """Let go of those that a query at a position needs no more; returns them."""
        if position.kind is Kind.END:
            return self.drop_all()
        if position.kind is not Kind.AFTER:
            return []
        count = bisect_right(self._extents, position.number, key=_last)
        gone, self._extents = self._extents[:count], self._extents[count:]
        return gone

    def drop_all(self) -> list[Extent]:
        """Let go of all of them; returns them."""
        gone, self._extents = self._extents, []
        return gone

    def newest(self) -> int | None:
        """The number of the newest record, whether a chain leads there or not."""
        return self._extents[-1].last if self._extents else None

    def chain(self, begin: Position) -> Iterator[Extent]:
        """The extents that lead on from a position without a gap."""
        position = begin
        at = bisect_right(self._extents, begin.number, key=_last) if begin.kind is Kind.AFTER else 0
        for extent in self._extents[at:]:
            if extent.follows(position):
                yield extent
                if extent.ended:
                    return
                position = after(extent.last)

    def pieces(self, begin: Position, end: Position) -> tuple[Piece, ...]:
        """The parts of a range that are here; between them, before and after, there may be gaps.

        Args:
            begin: where the range begins.
            end: AFTER its last record, or END.
        """
        found: list[Piece] = []
        position = begin
        for extent in self._extents:
            if position.kind is Kind.AFTER and extent.last <= position.number:
                continue
            if end.kind is Kind.AFTER and (extent.first > end.number):
                break
            start = position if extent.follows(position) else self._later_start(extent, position)
            if start is None:
                continue
            last = min(extent.last, end.number) if end.kind is Kind.AFTER else extent.last
            whole = last == extent.last
            piece = Piece(
                extent.segment,
                extent.digest,
                extent.row,
                extent.row + extent.rows,
                start,
                last,
                extent.ended and whole and end.kind is Kind.END,
            )
            found.append(piece)
            position = END if piece.ended else after(last)
            if piece.ended or position == end:
                break
        return tuple(found)

    @staticmethod
    def _later_start(extent: Extent, position: Position) -> Position | None:
        """Where an extent begins to count behind a gap; None when it cannot be told.

        Behind a time, and the oldest record that is kept, it cannot: the extent may lie before.
        """
        if extent.after.kind is not Kind.AFTER:
            return None
        if position.kind is Kind.AFTER and extent.after.number > position.number:
            return extent.after
        if position.kind is Kind.AT and extent.after.number >= position.number:
            return extent.after
        return None


def _last(extent: Extent) -> int:
    return extent.last
