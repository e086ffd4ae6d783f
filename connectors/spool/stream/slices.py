"""Planning of slices, which tasks read, from the ledger's state: for streams and batch reads (rules R4 and R5).

A batch read sees the admitted rows that are not freed yet, also while a query runs; it changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from connectors.core.errors import DataLossError, OffsetError, SpoolDamagedError, SpoolError
from connectors.core.offsets import VERSION, Offset
from connectors.spool.errors import reading_errors, record_damaged
from connectors.spool.ledger.identity import SpoolIdentity, read_identity
from connectors.spool.ledger.ledger import read_row_sizes
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.segment_log import SegmentEntry, unpack_mask
from connectors.spool.ledger.state import Layout, LedgerState
from connectors.spool.segments.rows import RowSchema
from connectors.spool.segments.segment import Slice, SpoolRows, read_slices
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess

_OWNER = "batch"

RowSizes = Callable[[SegmentEntry], npt.NDArray[np.int64]]
"""Returns the bytes of each row of a segment that is not a duplicate, in order."""


def offset_at(state: LedgerState, position: int) -> Offset:
    """Return the offset of a position, with the nonce of the start that admitted the row before it."""
    if not state.starts:
        raise record_damaged("A snapshot names no start", "the newest snapshot")
    start = next((start for start in reversed(state.starts) if start.first < position <= start.last), state.starts[-1])
    if not start.first <= position <= start.last:
        start = next(start for start in state.starts if start.first <= position <= start.last)
    return {"epoch": start.nonce, "position": position, "spool": state.spool, "v": VERSION}


def named_positions(state: LedgerState) -> dict[str, int]:
    """Return the positions that have names in options."""
    return {"earliest": state.oldest, "committed": max(state.committed, state.oldest), "latest": state.head}


def position_of(state: LedgerState, offset: Offset, where: str) -> int:
    """Return the position of an offset from the checkpoint; `OffsetError` if this ledger has not written it."""
    if offset.get("spool") != state.spool:
        raise OffsetError(
            "SPOOL_OTHER",
            f"The checkpoint belongs to spool {offset.get('spool')}, but this is spool {state.spool}",
            where,
        )
    position = offset.get("position")
    start = next((start for start in state.starts if start.nonce == offset.get("epoch")), None)
    if start is None or type(position) is not int:  # True is no 1
        raise OffsetError(
            "SPOOL_OFFSET_UNKNOWN",
            f"This spool does not know the offset {position} of epoch {offset.get('epoch')}",
            where,
        )
    if position > start.last:
        raise OffsetError(
            "SPOOL_OFFSET_ABOVE_HEAD",
            f"The checkpoint is at position {position}, but the spool ends at {start.last} in that epoch",
            where,
        )
    if position < start.first:
        raise OffsetError(
            "SPOOL_OFFSET_UNKNOWN",
            f"The checkpoint is damaged: it is at position {position}, but that epoch begins at {start.first}",
            where,
        )
    return position


def check_range(state: LedgerState, first: int, end: int, where: str) -> None:
    """Check the rows from `first` to before `end`: `OffsetError` if backwards, `DataLossError` if some were freed."""
    if first > end:
        raise OffsetError("SPOOL_OFFSETS_BACKWARDS", f"A batch from position {first} to {end} goes backwards", where)
    if first < min(state.oldest, end):
        raise DataLossError(
            "SPOOL_ROWS_FREED",
            f"A batch begins at position {first}, but the oldest row in the spool is {state.oldest}",
            where,
        )


def bytes_between(state: LedgerState, first: int, end: int, sizes: RowSizes) -> int:
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


def plan(
    state: LedgerState,
    first: int,
    end: int,
    sizes: RowSizes,
    wants: Callable[[SegmentEntry], bool] = lambda _entry: True,
) -> list[list[Slice]]:
    """Cut a batch into partitions: contiguous ranges of positions, near-equal in rows (rule R5).

    Segments that `wants` refuses are left out.
    """
    if first == end:
        return []
    if not state.layouts:
        raise record_damaged("A snapshot with rows has no layout", "the newest snapshot")
    # The layout in force at the end of the range: the last one made below it.
    layout = next((layout for layout in reversed(state.layouts) if layout.position < end), state.layouts[0])
    wanted = -(-bytes_between(state, first, end, sizes) // layout.partition_bytes)
    count = min(max(wanted, 1), layout.max_partitions, end - first)
    edges = [first + (end - first) * index // count for index in range(count + 1)]
    # A quarantined segment has no digest, and one whose rows are all duplicates has no row of any range.
    return [
        [
            _slice(entry, low, high)
            for entry in state.between(low, high)
            if entry.digest and entry.admitted_rows and wants(entry)
        ]
        for low, high in pairwise(edges)
    ]


def _bytes_below(state: LedgerState, position: int, sizes: RowSizes) -> int:
    """Return the bytes of all rows ever admitted below a position, which is not below the oldest row."""
    if position >= state.head:
        return state.bytes
    entry = state.between(position, position + 1)[0]
    inside = position - entry.base
    return entry.bytes_before + (int(sizes(entry)[:inside].sum()) if inside else 0)


def _slice(entry: SegmentEntry, first: int, end: int) -> Slice:
    low, high = max(first, entry.base), min(end, entry.end)
    first_row, end_row = low - entry.base, high - entry.base
    row_mask: bytes | None = None
    if entry.duplicate_mask is not None:
        mask = ~unpack_mask(entry.duplicate_mask, entry.rows)
        rows = np.flatnonzero(mask)[first_row:end_row]
        first_row, end_row = int(rows[0]), int(rows[-1]) + 1
        if end_row - first_row > len(rows):
            row_mask = np.packbits(mask[first_row:end_row]).tobytes()
    return Slice(entry.name, entry.digest, entry.source, first_row, end_row, low, high - low, row_mask)


# Batch reads.


@dataclass(frozen=True, slots=True)
class SpoolRange:
    """Which rows of a spool to read, and how to cut them into partitions (rule R5).

    Start and end are positions, the end excluded, or ``earliest``, ``committed`` or ``latest``. Filters leave only
    `offsets` and publish times, in microseconds, both ends included, and `sources`, by their indexes; None is no bound.
    """

    start: str | int
    end: str | int
    partition_bytes: int
    max_partitions: int
    offsets: tuple[int | None, int | None] = (None, None)
    published: tuple[int | None, int | None] = (None, None)
    sources: Sequence[int] | None = None

    def cut(self, first: int, end: int) -> tuple[int, int]:
        """Return the part of a range of positions that filters leave."""
        least, most = self.offsets
        first = first if least is None else min(max(first, least), end)
        return first, end if most is None else max(min(end, most + 1), first)

    def wants(self, entry: SegmentEntry) -> bool:
        """Return whether a segment can have rows that filters leave."""
        if self.sources is not None and entry.source not in self.sources:
            return False
        least, most = self.published
        first, last = entry.published or (None, None)
        is_early = least is not None and last is not None and last < least
        return not is_early and not (most is not None and first is not None and first > most)


def plan_spool_rows(
    root: str, connector: str, sources: tuple[str, ...], wanted: SpoolRange, access: StoreAccess | None = None
) -> list[list[Slice]]:
    """Plan the partitions of a batch read of a spool that this connector must have filled from these sources.

    Raises:
        SpoolError: there is no spool, it belongs to other sources, it is damaged, or this user may not read it.
        OffsetError: a position lies above the end of the spool, or the range goes backwards.
        DataLossError: rows of the range were freed.
    """
    store = open_store(root, _OWNER, access)
    layout = Layout(0, wanted.partition_bytes, wanted.max_partitions)
    with reading_errors(root):
        spool = _identity(store, connector, sources).spool
        state = read_state(store, spool)
        while True:
            try:
                first, end = wanted.cut(*_range(state, wanted, root))
                sizes = partial(read_row_sizes, store)
                parts = plan(replace(state, layouts=[layout]), first, end, sizes, wanted.wants)
                return [part for part in parts if part]
            except SpoolDamagedError:
                # A running query may have freed a segment after the ledger was read.
                newer = read_state(store, spool)
                if newer.oldest <= state.oldest:
                    raise
                state = newer


def read_spool_rows(
    root: str, slices: Sequence[Slice], access: StoreAccess | None = None, wanted: RowSchema | None = None
) -> Iterator[SpoolRows]:
    """Read the rows of a partition as `read_slices`; `DataLossError` if they were freed since they were planned."""
    try:
        yield from read_slices(root, slices, access, wanted)
    except SpoolDamagedError:
        store = open_store(root, _OWNER, access)
        identity = read_identity(store)
        live = set() if identity is None else {entry.name for entry in read_state(store, identity.spool).segments}
        freed = [part for part in slices if part.segment not in live]
        if identity is None or not freed:
            raise
        raise DataLossError(
            "SPOOL_ROWS_FREED",
            f"The running query freed the rows from position {freed[0].position} on before this batch read them",
            root,
        ) from None


def _identity(store: Store, connector: str, sources: tuple[str, ...]) -> SpoolIdentity:
    """Return the identity of the spool, which may have been moved or copied: nothing is written."""
    identity = read_identity(store)
    if identity is None:
        raise SpoolError("SPOOL_NOT_FOUND", "There is no spool here", store.root)
    if (identity.connector, identity.sources) != (connector, sources):
        raise SpoolError(
            "SPOOL_OTHER_SOURCE",
            f"The spool holds {identity.connector} {', '.join(identity.sources)}, but the batch reads {connector} "
            f"{', '.join(sources)}",
            store.root,
        )
    return identity


def _range(state: LedgerState, wanted: SpoolRange, where: str) -> tuple[int, int]:
    """Return the positions that a range stands for; names of positions never make it go backwards."""
    named = named_positions(state)
    first, end = (named[side] if isinstance(side, str) else side for side in (wanted.start, wanted.end))
    for name, position in (("startingPosition", first), ("endingPosition", end)):
        if position > state.head:
            raise OffsetError(
                "SPOOL_OFFSET_ABOVE_HEAD", f"The option {name} is {position}, but the spool ends at {state.head}", where
            )
    if first > end and isinstance(wanted.start, str) and isinstance(wanted.end, str):
        return end, end
    check_range(state, first, end, where)
    return first, end
