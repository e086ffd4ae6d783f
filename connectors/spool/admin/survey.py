"""One look at a spool that the commands share: who it is, what its ledger says, what lies in its inbox."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connectors.core.errors import SpoolDamagedError, SpoolError
from connectors.spool.errors import reading_errors
from connectors.spool.ledger.contents import is_there
from connectors.spool.ledger.identity import SpoolIdentity, read_identity
from connectors.spool.ledger.ledger import read_kept_sizes
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.state import LedgerState, SegmentEntry
from connectors.spool.options import location_text
from connectors.spool.segments.segment import SegmentInfo, SegmentReader, segment_name
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.stream.slices import bytes_between

__all__ = ["NOT_FOUND", "Survey", "require_identity", "survey_spool", "unread_segments"]

NOT_FOUND: Final = "SPOOL_NOT_FOUND"
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at a spool has read; all of one moment, as far as the ledger tells.

    Attributes:
        inbox: numbers of the durable segments in each fetcher's folder, admitted or not, ascending.
        waiting: what the segments say that are not admitted yet; damaged ones are left out.
        ready_bytes: bytes of the rows that are not committed.
        taken: when it began, in seconds of the monotonic clock.
    """

    store: Store
    identity: SpoolIdentity
    state: LedgerState
    inbox: dict[str, list[int]]
    waiting: tuple[SegmentInfo, ...]
    ready_bytes: int
    taken: float


def require_identity(store: Store) -> SpoolIdentity:
    """Return the identity of a spool. SpoolError: there is none, or it is damaged."""
    identity = read_identity(store) if is_there(store.root) else None
    if identity is None:
        raise SpoolError(NOT_FOUND, "There is no spool here", store.root, "Give the spoolLocation of a stream.")
    return identity


def survey_spool(path: str | Path, owner: str, access: StoreAccess | None = None) -> Survey:
    """Look at the spool at a location; see `connectors.spool.admin.stats.stats`. A running query is not disturbed."""
    root = location_text(path)
    with reading_errors(root):
        store = open_store(root, owner, access)
        identity = require_identity(store)
        for left in reversed(range(_TRIES)):
            taken = time.monotonic()
            # Before the ledger: what is admitted in between is then counted once, not twice or never.
            inbox = {fetcher: _numbers(store, fetcher) for fetcher in store.list("inbox")}
            state = read_state(store, identity.spool)
            names = (segment_name(fetcher, number) for fetcher, numbers in inbox.items() for number in numbers)
            infos = {name: _info(store, name) for name in names if state.is_waiting(name)}
            freed = any(info is None and not store.exists(name) for name, info in infos.items())
            try:
                ready_bytes = _ready_bytes(store, state)
            except SpoolDamagedError:
                # It may have been freed by the running query.
                if not left:
                    raise
            else:
                if not freed or not left:
                    break
    waiting = tuple(info for info in infos.values() if info is not None)
    return Survey(store, identity, state, inbox, waiting, ready_bytes, taken)


def unread_segments(state: LedgerState) -> list[SegmentEntry]:
    """Return the admitted segments with rows that are not committed."""
    return [entry for entry in state.segments if entry.end > state.committed and not entry.quarantined]


def _numbers(store: Store, fetcher: str) -> list[int]:
    stems = (file.partition(".")[0] for file in store.list(f"inbox/{fetcher}"))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def _info(store: Store, name: str) -> SegmentInfo | None:
    """Return what the footer of a segment says; None if it is damaged, or gone."""
    try:
        return SegmentReader(store, name).info
    except SpoolDamagedError:
        return None


def _ready_bytes(store: Store, state: LedgerState) -> int:
    """Sum the bytes of the rows that are not committed; reads at most one segment, where the commit lies in it."""
    unread = unread_segments(state)
    whole = sum(entry.bytes for entry in unread if entry.base >= state.committed)
    partly = [entry for entry in unread if entry.base < state.committed]
    return whole + sum(
        bytes_between(state, state.committed, entry.end, lambda entry: read_kept_sizes(store, entry))
        for entry in partly
    )
