"""How a task reads a range of which the spool holds parts; what is missing or damaged is polled.

The rows are those of polling, in the same order.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from connectors.core.arrow import cut_batches
from connectors.core.errors import SpoolError
from connectors.kinesis.fan_out.cached_ranges import CACHED_ROWS
from connectors.kinesis.offsets import END, Position, PositionKind, after
from connectors.kinesis.shards import Piece, ShardRange
from connectors.kinesis.source.reader import ReadSettings, read_range
from connectors.kinesis.source.records import MAX_BYTES, MAX_ROWS
from connectors.spool.segments.segment import SegmentReader
from connectors.spool.store.local import LocalStore

_log = logging.getLogger(__name__)
_NUMBER: Final = "sequenceNumber"


def read_part(
    part: ShardRange, settings: ReadSettings, sleep: Callable[[float], object] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, as `read_range` does."""
    polled = partial(_polled, part, settings, sleep)
    position = part.begin
    last_row: tuple[int, int] | None = None
    warned = False
    for piece in part.pieces:
        batches = _rows(piece, settings.spool)
        gap: Position | None = piece.begin
        while True:
            try:
                rows = next(batches, None)
            except (SpoolError, OSError, ValueError) as error:
                if not warned:
                    _log.warning("[KINESIS_SPOOL_IGNORED] The query polls parts of a batch (%s): %s", part.shard, error)
                warned = True
                break
            if rows is None:
                position, last_row = END if piece.ended else after(piece.last), None
                break
            if gap is not None:
                # What could not be read before is polled now, in one go.
                yield from polled(position, gap, last_row)
                gap = None
            position, last_row = _progress(rows, position)
            yield rows
    if position != part.end:
        yield from polled(position, part.end, last_row)


def _progress(rows: pa.RecordBatch, position: Position) -> tuple[Position, tuple[int, int]]:
    """Return up to where all rows are complete, and which is the last: an aggregate may span batches."""
    last = len(rows) - 1
    number = _number(rows, last)
    first = _place(rows, number - 1)
    if first:
        position = after(_number(rows, first - 1))
    return position, _row(rows, last)


def _polled(
    part: ShardRange,
    settings: ReadSettings,
    sleep: Callable[[float], object] | None,
    begin: Position,
    end: Position,
    last: tuple[int, int] | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows between two positions from the service, without those up to the last one that was yielded."""
    if begin == end:
        return
    for batch in read_range(replace(part, begin=begin, end=end, pieces=()), settings, sleep=sleep):
        rows = batch
        if last is not None:
            first = bisect_right(range(len(rows)), last, key=partial(_row, rows))
            last, rows = last if first == len(rows) else None, rows.slice(first)
        if len(rows):
            yield rows


def _rows(piece: Piece, root: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece; raises when the segment is missing, damaged, or holds something else."""
    segment = SegmentReader(LocalStore(root, "task"), piece.segment, piece.digest)
    last: int | None = None
    for _, batch in segment.batches(piece.first_row, piece.end_row, CACHED_ROWS):
        rows = batch
        if piece.begin.kind is PositionKind.AFTER and _number(rows, 0) <= piece.begin.number:
            rows = rows.slice(_place(rows, piece.begin.number))
        if len(rows) and _number(rows, len(rows) - 1) > piece.last:
            rows = rows.slice(0, _place(rows, piece.last))
        if len(rows):
            last = _number(rows, len(rows) - 1)
            yield from cut_batches([rows], MAX_ROWS, MAX_BYTES)
    if last != piece.last:
        raise ValueError(f"{piece.segment} ends with the record {last} and not with {piece.last}")


def _place(rows: pa.RecordBatch, number: int) -> int:
    return bisect_right(range(len(rows)), number, key=lambda row: _number(rows, row))


def _row(rows: pa.RecordBatch, row: int) -> tuple[int, int]:
    return _number(rows, row), int(rows.column("subSequenceNumber")[row].as_py())


def _number(rows: pa.RecordBatch, row: int) -> int:
    return int(rows.column(_NUMBER)[row].as_py())
