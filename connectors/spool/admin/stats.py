"""Counts of a spool for those who watch it, read beside a running query.

The ledger carries what only it can know; the rest is derived from it and from the segments that wait in the inbox, so
that nothing is written for the sake of a count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from connectors.core.errors import SpoolDamagedError, SpoolError
from connectors.spool.errors import reading_errors
from connectors.spool.ledger.identity import read_identity
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.state import (
    QUARANTINED_ROWS,
    SKIPPED_ROWS,
    LedgerState,
    SegmentEntry,
    even_sizes,
    unpack_mask,
)
from connectors.spool.options import location_text
from connectors.spool.segments.segment import SegmentInfo, SegmentReader, Sizes, segment_name
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.stream.planning import bytes_between

__all__ = ["SpoolRates", "SpoolStats", "rates", "stats"]

_TRIES = 5


@dataclass(frozen=True, slots=True)
class SpoolStats:
    """Counts of a spool since it was made; all of one moment, as far as the ledger tells.

    Attributes:
        spool: id of the spool.
        sources: full names of its subscriptions.
        starts: how many times a writer has started.
        delivered: messages fetched and admitted, with copies.
        duplicates: copies struck out; also in `struck_out`.
        struck_out: what was delivered and is in no batch, by reason: ``duplicate``, ``quarantined`` (its segment was
            damaged or missing) and ``skipped`` (a checkpoint went on above it).
        rows: rows kept: the position after the last one.
        committed: the highest position that Spark has committed.
        oldest: position of the oldest row in the spool.
        ready_rows: rows kept and not committed.
        ready_bytes: their bytes: payload, attributes and ordering key.
        bytes: the same as `ready_bytes`.
        oldest_unread: publish time, in microseconds since 1970, before which nothing in the spool is uncommitted: the
            lowest one of the segments that hold such rows, admitted or not; None without such rows.
        segments: admitted segments in the spool.
        waiting_segments: segments that are durable and not admitted yet.
        waiting_rows: messages in them, with copies.
        waiting_bytes: bytes of these.
        ids: ids in the durable runs.
        counters: all running counters, by name.
        taken: when the counts were taken, in seconds of the monotonic clock; see `SpoolRates`.
    """

    spool: str
    sources: tuple[str, ...]
    starts: int
    delivered: int
    duplicates: int
    struck_out: dict[str, int]
    rows: int
    committed: int
    oldest: int
    ready_rows: int
    ready_bytes: int
    bytes: int
    oldest_unread: int | None
    segments: int
    waiting_segments: int
    waiting_rows: int
    waiting_bytes: int
    ids: int
    counters: dict[str, int]
    taken: float


@dataclass(frozen=True, slots=True)
class SpoolRates:
    """How fast a spool moved between two looks at it, in messages a second.

    Attributes:
        seconds: between the two looks.
        fetched: made durable by the fetchers, with copies.
        admitted: admitted to the ledger, with copies.
        kept: rows kept, without copies.
        committed: rows that Spark committed.
    """

    seconds: float
    fetched: float
    admitted: float
    kept: float
    committed: float

    @classmethod
    def between(cls, before: SpoolStats, after: SpoolStats) -> SpoolRates:
        """The rates between two looks at one spool by one process.

        Raises:
            ValueError: they are of two spools, or the second is not later than the first.
        """
        seconds = after.taken - before.taken
        if before.spool != after.spool or seconds <= 0:
            raise ValueError("rates are between two looks at one spool, the earlier one first")
        fetched = after.delivered + after.waiting_rows - before.delivered - before.waiting_rows
        return cls(
            seconds,
            fetched / seconds,
            (after.delivered - before.delivered) / seconds,
            (after.rows - before.rows) / seconds,
            (after.committed - before.committed) / seconds,
        )


def rates(path: str | Path, seconds: float = 1.0) -> SpoolRates:
    """Look at a spool twice, so many seconds apart; raises as `stats`."""
    before = stats(path)
    time.sleep(seconds)
    return SpoolRates.between(before, stats(path))


def stats(path: str | Path, access: StoreAccess | None = None) -> SpoolStats:
    """The counts of the spool at a location. Reads only; a running query is not disturbed.

    Args:
        path: the ``spoolLocation``, as that option takes it; a folder may also be relative.
        access: how to reach an object store; by default as its environment says.

    Raises:
        OptionError: no spool can be there.
        SpoolError: there is no spool there, or this user may not read it.
        SpoolDamagedError: the ledger is damaged, or a segment that has to be looked at.
    """
    root = location_text(path)
    with reading_errors(root):
        return _counts(open_store(root, "stats", access))


def _counts(store: Store) -> SpoolStats:
    identity = read_identity(store)
    if identity is None:
        raise SpoolError("SPOOL_NOT_FOUND", "There is no spool here", store.root, "Give the spoolLocation of a stream.")
    for left in reversed(range(_TRIES)):
        taken = time.monotonic()
        # Before the ledger: what is admitted in between is then counted once, not twice or never.
        names = _inbox(store)
        state = read_state(store, identity.spool)
        found = {name: _info(store, name) for name in names if state.is_waiting(name)}
        freed = any(info is None and not store.exists(name) for name, info in found.items())
        try:
            ready_bytes = _ready_bytes(store, state)
        except SpoolDamagedError:
            # It may have been freed by the running query.
            if not left:
                raise
        else:
            if not freed or not left:
                break
    infos = [info for info in found.values() if info is not None]
    duplicates = state.counters.get("duplicates", 0)
    return SpoolStats(
        spool=identity.spool,
        sources=identity.sources,
        starts=len(state.starts),
        delivered=state.counters.get("delivered", 0),
        duplicates=duplicates,
        struck_out={
            "duplicate": duplicates,
            "quarantined": state.counters.get(QUARANTINED_ROWS, 0),
            "skipped": state.counters.get(SKIPPED_ROWS, 0),
        },
        rows=state.head,
        committed=state.committed,
        oldest=state.oldest,
        ready_rows=_ready_rows(state),
        ready_bytes=ready_bytes,
        bytes=ready_bytes,
        oldest_unread=_oldest_unread(state, infos),
        segments=len(state.segments),
        waiting_segments=len(infos),
        waiting_rows=sum(info.rows for info in infos),
        waiting_bytes=sum(info.bytes for info in infos),
        ids=sum(run.ids for run in state.runs),
        counters=dict(state.counters),
        taken=taken,
    )


def _inbox(store: Store) -> list[str]:
    """The names of the segments that are durable, admitted or not, by fetcher in their order."""
    names = []
    for fetcher in store.list("inbox"):
        numbers = (int(stem) for file in store.list(f"inbox/{fetcher}") if (stem := file.partition(".")[0]).isdigit())
        names += [segment_name(fetcher, number) for number in sorted(numbers)]
    return names


def _info(store: Store, name: str) -> SegmentInfo | None:
    """What the footer of a segment says; None if it is damaged, or gone."""
    try:
        return SegmentReader(store, name).info
    except SpoolDamagedError:
        return None


def _unread(state: LedgerState) -> list[SegmentEntry]:
    return [entry for entry in state.segments if entry.end > state.committed and not entry.quarantined]


def _ready_rows(state: LedgerState) -> int:
    return sum(entry.end - max(entry.base, state.committed) for entry in _unread(state))


def _ready_bytes(store: Store, state: LedgerState) -> int:
    """Bytes of the rows that are not committed. At most one segment is looked into: where the commit lies in it."""

    def sizes(entry: SegmentEntry) -> Sizes:
        if entry.quarantined:
            return even_sizes(entry)
        found = SegmentReader(store, entry.name, entry.digest).index()[1]
        return found if entry.struck is None else found[~unpack_mask(entry.struck, entry.rows)]

    unread = _unread(state)
    whole = sum(entry.bytes for entry in unread if entry.base >= state.committed)
    parts = [entry for entry in unread if entry.base < state.committed]
    return whole + sum(bytes_between(state, state.committed, entry.end, sizes) for entry in parts)


def _oldest_unread(state: LedgerState, infos: list[SegmentInfo]) -> int | None:
    times = [entry.published for entry in _unread(state) if entry.kept] + [info.published for info in infos]
    return min((published[0] for published in times if published is not None), default=None)
