"""What a spool is and how it stands, for people; read only, also beside a running query."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.core.errors import SpoolError
from connectors.spool.admin.stats import SpoolStats, stats
from connectors.spool.ledger.data_loss import read_notes
from connectors.spool.ledger.fencing import SpoolLock, claimed_epochs
from connectors.spool.ledger.identity import read_identity
from connectors.spool.ledger.lease import lease_holder
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.state import LedgerState
from connectors.spool.store import open_store
from connectors.spool.store.base import Store
from connectors.spool.store.object_store import ObjectStore

__all__ = ["FetcherFolder", "Inspection", "Lost", "inspect"]


@dataclass(frozen=True, slots=True)
class FetcherFolder:
    """What one fetcher's life has left in the spool.

    Attributes:
        fetcher: its name.
        admitted: its highest admitted number; -1 if none.
        segments, rows, bytes: its admitted segments that are not freed.
        waiting: its segments that are not admitted yet.
    """

    fetcher: str
    admitted: int
    segments: int
    rows: int
    bytes: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A segment that was quarantined; see `connectors.spool.ledger.data_loss.read_notes`."""

    segment: str
    first: int
    end: int
    rows: int
    error: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """How a spool stands.

    Attributes:
        path: where it is, without links.
        location: where its identity says that it is; if that differs, it has to be adopted.
        connector: the format that fills it.
        holder: pid and JVM of the query that uses it; None if nobody does, as far as can be seen.
        epochs: how many writers have claimed it.
        layout: bytes and number of partitions that new batches are cut by; None before the first query.
        stats: its counts.
        fetchers: by name.
        runs: name and number of ids of each run.
        lost: what was quarantined.
    """

    path: str
    location: str
    connector: str
    holder: dict[str, int] | None
    epochs: int
    layout: tuple[int, int] | None
    stats: SpoolStats
    fetchers: tuple[FetcherFolder, ...]
    runs: tuple[tuple[str, int], ...]
    lost: tuple[Lost, ...]


def inspect(path: str) -> Inspection:
    """Look at a spool. Changes nothing, takes no lock, and checks only what it reads; see `verify` for the rest.

    Args:
        path: the ``spoolLocation``; an object store is reached as its environment variables say.

    Raises:
        SpoolError: there is no spool there.
        SpoolDamagedError: the ledger is damaged.
    """
    counts = stats(path)
    store = open_store(path, "inspect")
    identity = read_identity(store)
    if identity is None:
        raise SpoolError("SPOOL_NOT_FOUND", "There is no spool here", path, "Give the spoolLocation of a stream.")
    state = read_state(store, identity.spool)
    layout = state.layouts[-1] if state.layouts else None
    return Inspection(
        path=store.location,
        location=identity.location,
        connector=identity.connector,
        holder=_holder(store),
        epochs=len(claimed_epochs(store)),
        layout=None if layout is None else (layout.partition_bytes, layout.max_partitions),
        stats=counts,
        fetchers=tuple(_fetcher(store, state, name) for name in sorted({*state.fetchers, *store.list("inbox")})),
        runs=tuple((run.name, run.ids) for run in state.runs),
        lost=tuple(_lost(note) for note in read_notes(store)),
    )


def _holder(store: Store) -> dict[str, int] | None:
    if not isinstance(store, ObjectStore):
        return SpoolLock(store.root, 0).holder()
    holder = lease_holder(store)
    return None if holder is None else {"pid": holder.pid, "jvm": holder.jvm}


def _fetcher(store: Store, state: LedgerState, name: str) -> FetcherFolder:
    entries = [entry for entry in state.segments if entry.fetcher == name and not entry.quarantined]
    files = (f"inbox/{name}/{file}" for file in store.list(f"inbox/{name}") if file.partition(".")[0].isdigit())
    return FetcherFolder(
        name,
        state.fetchers.get(name, -1),
        len(entries),
        sum(entry.kept for entry in entries),
        sum(entry.bytes for entry in entries),
        sum(state.is_waiting(file) for file in files),
    )


def _lost(note: dict[str, int | str]) -> Lost:
    return Lost(str(note["segment"]), int(note["first"]), int(note["end"]), int(note["rows"]), str(note["error"]))
