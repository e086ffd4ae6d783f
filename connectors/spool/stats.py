"""Counters of a spool, read beside a running query."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.core.errors import SpoolError
from connectors.spool.identity import read_identity
from connectors.spool.opening import read_state
from connectors.spool.state import LedgerState
from connectors.spool.store import LocalStore

__all__ = ["SpoolStats", "stats"]


@dataclass(frozen=True, slots=True)
class SpoolStats:
    """Counters of a spool since it was made.

    Attributes:
        spool: id of the spool.
        sources: full names of its subscriptions.
        starts: how many times a writer has started.
        delivered: messages fetched, with copies.
        duplicates: copies struck out.
        rows: rows kept: the position after the last one.
        committed: the highest position that Spark has committed.
        oldest: position of the oldest row in the spool.
        bytes: bytes of the rows that are in the spool and not committed.
        segments: segments in the spool.
        ids: ids in the durable runs.
        counters: all running counters, by name.
    """

    spool: str
    sources: tuple[str, ...]
    starts: int
    delivered: int
    duplicates: int
    rows: int
    committed: int
    oldest: int
    bytes: int
    segments: int
    ids: int
    counters: dict[str, int]


def stats(path: str) -> SpoolStats:
    """The counters of the spool in a folder. Reads only; a running query is not disturbed.

    Args:
        path: the ``spoolLocation``.

    Raises:
        SpoolError: there is no spool there.
        SpoolDamagedError: the ledger is damaged.
    """
    store = LocalStore(path, "stats")
    identity = read_identity(store)
    if identity is None:
        raise SpoolError("SPOOL_NOT_FOUND", "There is no spool here", path, "Give the spoolLocation of a stream.")
    state = read_state(store, identity.spool)
    return SpoolStats(
        identity.spool,
        identity.sources,
        len(state.starts),
        state.counters.get("delivered", 0),
        state.counters.get("duplicates", 0),
        state.head,
        state.committed,
        state.oldest,
        _uncommitted_bytes(state),
        len(state.segments),
        sum(run.ids for run in state.runs),
        dict(state.counters),
    )


def _uncommitted_bytes(state: LedgerState) -> int:
    whole = [entry for entry in state.segments if entry.base >= state.committed]
    return sum(entry.bytes for entry in whole)
