"""What a spool is and what it holds, for people; read only, also beside a running query."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.spool.admin.stats import SpoolStats, stats_of
from connectors.spool.admin.survey import Survey, survey_spool
from connectors.spool.ledger.data_loss import read_notes
from connectors.spool.ledger.fencing import SpoolLock, claimed_epochs
from connectors.spool.ledger.lease import lease_holder
from connectors.spool.segments.segment import segment_name
from connectors.spool.store.base import Store
from connectors.spool.store.object_store import ObjectStore

__all__ = ["FetcherFolder", "Inspection", "Lost", "inspect"]


@dataclass(frozen=True, slots=True)
class FetcherFolder:
    """The segments of one fetcher: its highest admitted number (-1 if none), what is not freed, and what waits."""

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
    """What an inspection shows.

    Attributes:
        path: where the spool is, without links.
        location: where its identity says that it is; if that differs, it has to be adopted.
        holder: pid and JVM of the query that uses it; None if nobody does, as far as can be seen.
        epochs: how many writers have claimed it.
        layout: bytes and number of partitions that new batches are cut by; None before the first query.
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
    """Look at a spool, as `stats` does, and raise the same; `verify` checks the rest."""
    survey = survey_spool(path, "inspect")
    store, state = survey.store, survey.state
    layout = state.layouts[-1] if state.layouts else None
    return Inspection(
        path=store.location,
        location=survey.identity.location,
        connector=survey.identity.connector,
        holder=_holder(store),
        epochs=len(claimed_epochs(store)),
        layout=None if layout is None else (layout.partition_bytes, layout.max_partitions),
        stats=stats_of(survey),
        fetchers=tuple(_fetcher(survey, name) for name in sorted({*state.fetchers, *survey.inbox})),
        runs=tuple((run.name, run.ids) for run in state.runs),
        lost=tuple(
            Lost(note["segment"], note["first"], note["end"], note["rows"], note["error"]) for note in read_notes(store)
        ),
    )


def _holder(store: Store) -> dict[str, int] | None:
    if not isinstance(store, ObjectStore):
        return SpoolLock(store.root, 0).holder()
    holder = lease_holder(store)
    return None if holder is None else {"pid": holder.pid, "jvm": holder.jvm}


def _fetcher(survey: Survey, name: str) -> FetcherFolder:
    state = survey.state
    entries = [entry for entry in state.segments if entry.fetcher == name and not entry.quarantined]
    return FetcherFolder(
        name,
        state.fetchers.get(name, -1),
        len(entries),
        sum(entry.kept for entry in entries),
        sum(entry.bytes for entry in entries),
        sum(state.is_waiting(segment_name(name, number)) for number in survey.inbox.get(name, ())),
    )
