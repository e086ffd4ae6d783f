"""Batch reads of a spool: the admitted rows that are not freed yet, also beside a running query (rules R4, R5).

Nothing of the spool is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from connectors.core.errors import DataLossError, OffsetError, SpoolDamagedError, SpoolError
from connectors.spool.errors import reading_errors
from connectors.spool.ledger.identity import SpoolIdentity, read_identity
from connectors.spool.ledger.ledger import read_row_sizes
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.state import Layout, LedgerState
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.stream.planning import Slice, plan
from connectors.spool.stream.reader import SpoolRows, read_slices

__all__ = ["SpoolRange", "plan_spool_rows", "read_spool_rows"]

_OWNER = "batch"


@dataclass(frozen=True, slots=True)
class SpoolRange:
    """Which rows of a spool to read, and how to cut them into partitions (rule R5).

    Start and end are positions, the end excluded, or ``earliest``, ``committed`` or ``latest``.
    """

    start: str | int
    end: str | int
    partition_bytes: int
    max_partitions: int


def plan_spool_rows(
    root: str, connector: str, sources: tuple[str, ...], wanted: SpoolRange, access: StoreAccess | None = None
) -> list[list[Slice]]:
    """Plan the partitions of a batch read of a spool that this connector must have filled from these sources.

    Raises:
        SpoolError: there is no spool, it belongs to other sources, or this user may not read it.
        SpoolDamagedError: its ledger, or a segment that had to be read, is damaged.
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
                first, end = _range(state, wanted, root)
                return plan(replace(state, layouts=[layout]), first, end, lambda entry: read_row_sizes(store, entry))
            except SpoolDamagedError:
                # A running query may have freed a segment after the ledger was read.
                newer = read_state(store, spool)
                if newer.oldest <= state.oldest:
                    raise
                state = newer


def read_spool_rows(root: str, slices: Sequence[Slice], access: StoreAccess | None = None) -> Iterator[SpoolRows]:
    """Read the rows of a partition, in order; runs in tasks.

    Raises:
        DataLossError: they were freed since they were planned.
        SpoolError: as `connectors.spool.stream.reader.read_slices`.
    """
    try:
        yield from read_slices(root, slices, access)
    except SpoolDamagedError:
        store = open_store(root, _OWNER, access)
        identity = read_identity(store)
        live = set() if identity is None else {entry.name for entry in read_state(store, identity.spool).segments}
        freed = [part for part in slices if part.segment not in live]
        if identity is None or not freed:
            raise
        raise DataLossError(
            "SPOOL_ROWS_FREED",
            f"The rows from position {freed[0].position} on were freed by the running query before they were read",
            root,
            "Set spoolRetention in that query to more than this batch takes, or read while it is stopped.",
        ) from None


def _identity(store: Store, connector: str, sources: tuple[str, ...]) -> SpoolIdentity:
    """Return the identity of the spool, which may have been moved or copied: nothing is written."""
    identity = read_identity(store)
    if identity is None:
        raise SpoolError(
            "SPOOL_NOT_FOUND",
            "There is no spool here",
            store.root,
            "Give the spoolLocation of a stream, or look at the subscription itself with batchMode=peek.",
        )
    if (identity.connector, identity.sources) != (connector, sources):
        raise SpoolError(
            "SPOOL_OTHER_SOURCE",
            f"The spool holds {identity.connector} {', '.join(identity.sources)} and the batch reads {connector} "
            f"{', '.join(sources)}",
            store.root,
            "Give the subscription that the spool was filled from.",
        )
    return identity


def _range(state: LedgerState, wanted: SpoolRange, where: str) -> tuple[int, int]:
    """Return the positions that a range stands for; names of positions never make it go backwards."""
    named = {"earliest": state.oldest, "committed": max(state.committed, state.oldest), "latest": state.head}
    first, end = (named[side] if isinstance(side, str) else side for side in (wanted.start, wanted.end))
    for name, position in (("startingPosition", first), ("endingPosition", end)):
        if position > state.head:
            raise OffsetError(
                "SPOOL_OFFSET_ABOVE_HEAD",
                f"The option {name} is {position} and the spool ends at {state.head}",
                where,
                f"Give at most {state.head}, or latest.",
            )
    if first > end:
        if isinstance(wanted.start, str) and isinstance(wanted.end, str):
            return end, end
        raise OffsetError(
            "SPOOL_OFFSETS_BACKWARDS",
            f"The batch begins at position {first} and ends before {end}",
            where,
            "Give an endingPosition that is not below startingPosition; it is the position after the last row.",
        )
    if first < min(state.oldest, end):
        raise DataLossError(
            "SPOOL_ROWS_FREED",
            f"The batch begins at position {first} and the oldest row in the spool is {state.oldest}",
            where,
            "Begin at earliest, and keep rows longer with the spoolRetention of the query that fills the spool.",
        )
    return first, end
