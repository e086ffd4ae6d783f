"""Planning of batches: pure functions of the ledger's state (rules R4 and R5)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from connectors.core.errors import DataLossError, OffsetError
from connectors.core.offsets import VERSION, Offset
from connectors.spool.ledger.state import LedgerState, SegmentEntry, unpack_mask

__all__ = ["RowSizes", "Slice", "bytes_between", "check_range", "cut_by_bytes", "offset_at", "plan", "position_of"]

RowSizes = Callable[[SegmentEntry], npt.NDArray[np.int64]]
"""Returns the bytes of each row of a segment that is no duplicate, in order."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A run of rows of one segment, for a task.

    Attributes:
        source: index of its subscription in the spool's list of sources.
        first_row, end_row: row indexes in the segment, end excluded.
        position: position of the first row that is no duplicate.
        rows: how many rows are no duplicates.
        kept: which rows these are, packed bits; None if all are.
    """

    segment: str
    digest: str
    source: int
    first_row: int
    end_row: int
    position: int
    rows: int
    kept: bytes | None


def offset_at(state: LedgerState, position: int) -> Offset:
    """Return the offset of a position, with the nonce of the start that admitted the row before it."""
    start = next((start for start in reversed(state.starts) if start.first < position <= start.last), state.starts[-1])
    if not start.first <= position <= start.last:
        start = next(start for start in state.starts if start.first <= position <= start.last)
    return {"epoch": start.nonce, "position": position, "spool": state.spool, "v": VERSION}


def position_of(state: LedgerState, offset: Offset, where: str) -> int:
    """Return the position of an offset from the checkpoint, which this ledger must have written.

    Raises:
        OffsetError: the offset belongs to another spool, is not known in this one, or lies above its head.
    """
    if offset.get("spool") != state.spool:
        raise OffsetError(
            "SPOOL_OTHER",
            f"The checkpoint means spool {offset.get('spool')} and this is spool {state.spool}",
            where,
            "Give the spoolLocation that this checkpoint was used with, or begin with a new checkpoint.",
        )
    position = offset.get("position")
    start = next((start for start in state.starts if start.nonce == offset.get("epoch")), None)
    if start is None or not isinstance(position, int):
        raise OffsetError(
            "SPOOL_OFFSET_UNKNOWN",
            f"This spool does not know the offset {position} of epoch {offset.get('epoch')}",
            where,
            "The spool is an older copy, or one that diverged. Restore the spool that the checkpoint was used with.",
        )
    if position > start.last:
        raise OffsetError(
            "SPOOL_OFFSET_ABOVE_HEAD",
            f"The checkpoint is at position {position} and the spool ends at {start.last} in that epoch",
            where,
            "The spool is older than the checkpoint. Restore the spool of the same time as the checkpoint or later.",
        )
    if position < start.first:
        raise OffsetError(
            "SPOOL_OFFSET_UNKNOWN",
            f"The checkpoint is at position {position} and that epoch begins at {start.first}",
            where,
            "The checkpoint is damaged; restore it.",
        )
    return position


def check_range(state: LedgerState, first: int, end: int, where: str) -> None:
    """Check that the rows from `first` to before `end` can be read.

    Raises:
        OffsetError: the range goes backwards.
        DataLossError: some of its rows were freed.
    """
    if first > end:
        raise OffsetError(
            "SPOOL_OFFSETS_BACKWARDS",
            f"A batch from position {first} to {end} goes backwards",
            where,
            "The checkpoint is damaged; restore it.",
        )
    if first < min(state.oldest, end):
        raise DataLossError(
            "SPOOL_ROWS_FREED",
            f"A batch begins at position {first} and the oldest row in the spool is {state.oldest}",
            where,
            "The checkpoint is older than the spool. Restore a later one, and keep rows longer with spoolRetention; or "
            "set failOnDataLoss=false to continue at the oldest row.",
        )


def bytes_between(state: LedgerState, first: int, end: int, sizes: RowSizes) -> int:
    """Return the bytes of the rows from position `first` to before `end`."""
    return _bytes_below(state, end, sizes) - _bytes_below(state, first, sizes)


def cut_by_bytes(state: LedgerState, first: int, end: int, limit: int, sizes: RowSizes) -> int:
    """Return the highest end, at most `end`, with at most `limit` bytes from `first` on, or one row."""
    if first >= end:
        return end
    below = _bytes_below(state, first, sizes) + limit
    segments = state.segments
    index = bisect_right(segments, below, key=lambda entry: entry.bytes_before + entry.bytes)
    if index == len(segments):
        return end
    entry = segments[index]
    inside = np.searchsorted(np.cumsum(sizes(entry)), below - entry.bytes_before, side="right")
    return min(end, max(first + 1, entry.base + int(inside)))


def plan(state: LedgerState, first: int, end: int, sizes: RowSizes) -> list[list[Slice]]:
    """Cut a batch into partitions: contiguous ranges of positions, near-equal in rows (rule R5)."""
    if first == end:
        return []
    # The layout in force at the end of the range: the last one made below it.
    layout = next((layout for layout in reversed(state.layouts) if layout.position < end), state.layouts[0])
    wanted = -(-bytes_between(state, first, end, sizes) // layout.partition_bytes)
    count = min(max(wanted, 1), layout.max_partitions, end - first)
    edges = [first + (end - first) * index // count for index in range(count + 1)]
    parts = [_slices(state.segments, low, high) for low, high in pairwise(edges)]
    return [[part for part in slices if part.digest] for slices in parts]  # the others were quarantined


def _bytes_below(state: LedgerState, position: int, sizes: RowSizes) -> int:
    """Return the bytes of all rows ever admitted below a position, which is not below the oldest row."""
    if position >= state.head:
        return state.bytes
    entry = state.segments[_index_at(state.segments, position)]
    inside = position - entry.base
    return entry.bytes_before + (int(sizes(entry)[:inside].sum()) if inside else 0)


def _index_at(segments: Sequence[SegmentEntry], position: int) -> int:
    return bisect_right(segments, position, key=lambda entry: entry.end)


def _slices(segments: Sequence[SegmentEntry], first: int, end: int) -> list[Slice]:
    slices = []
    for index in range(_index_at(segments, first), len(segments)):
        entry = segments[index]
        if entry.base >= end:
            break
        low, high = max(first, entry.base), min(end, entry.end)
        if low < high:
            slices.append(_slice(entry, low, high))
    return slices


def _slice(entry: SegmentEntry, low: int, high: int) -> Slice:
    first, end = low - entry.base, high - entry.base
    kept: bytes | None = None
    if entry.struck is not None:
        mask = ~unpack_mask(entry.struck, entry.rows)
        rows = np.flatnonzero(mask)[first:end]
        first, end = int(rows[0]), int(rows[-1]) + 1
        if end - first > len(rows):
            kept = np.packbits(mask[first:end]).tobytes()
    return Slice(entry.name, entry.digest, entry.source, first, end, low, high - low, kept)
