"""What a spool holds: one survey of its ledger and its inbox, and the counts and the inspection made from it.

Read only, also beside a running query; nothing is written for the sake of a count.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from connectors.core.errors import SpoolDamagedError, SpoolError
from connectors.spool.errors import reading_errors
from connectors.spool.fetching.placement import PLACEMENT_NAMES, places_now
from connectors.spool.ledger.data_loss import read_notes, segment_numbers
from connectors.spool.ledger.identity import SpoolIdentity, read_identity
from connectors.spool.ledger.ledger import read_row_sizes
from connectors.spool.ledger.records import claimed_epochs
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.segment_log import SegmentEntry
from connectors.spool.ledger.state import QUARANTINED_ROWS, SKIPPED_ROWS, LedgerState
from connectors.spool.ledger.writer_lock import LEASE_NAME, LOCK_NAME, spool_holder
from connectors.spool.options import location_text
from connectors.spool.segments.segment import SegmentInfo, SegmentReader, segment_name
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess

NOT_FOUND: Final = "SPOOL_NOT_FOUND"
_TRIES: Final = 5
_LOST: Final = ("segment", "first", "end", "rows", "error")
_FILE_NAME = re.compile(
    rf"{PLACEMENT_NAMES}|spool\.json|wiping|epochs/\d+|ledger/\d+/\d+|ids/[^/]+|manifests/[^/]+|inbox/[^/]+/\d+\.arrow|quarantine/[^/]+\.(?:arrow|json)"
)


@dataclass(frozen=True, slots=True)
class SpoolStats:
    """Counts of a spool since it was created; those of the ledger are all of one moment.

    Attributes:
        sources: full names of what it is filled from, such as subscriptions.
        starts: how many times a writer has started.
        delivered: messages fetched and admitted, with duplicates.
        duplicates: duplicates dropped; also in `dropped`.
        dropped: messages delivered that are in no batch, by reason: ``duplicate``, ``quarantined`` (the segment was
            damaged or missing) and ``skipped`` (a checkpoint continued above them).
        rows: rows admitted: the position after the last one.
        committed: the highest position that Spark has committed.
        oldest: position of the oldest row in the spool.
        ready_rows: rows admitted and not committed.
        ready_bytes: their bytes: payload, attributes and ordering key.
        bytes: the same as `ready_bytes`.
        oldest_unread: publish time, in microseconds since 1970, before which nothing in the spool is uncommitted; None
            if nothing is.
        segments: admitted segments in the spool.
        waiting_segments: segments that are durable and not admitted yet.
        waiting_rows: messages in them, with duplicates; `waiting_bytes` are their bytes.
        ids: ids in the durable runs.
        executor_fetchers: where the fetchers of `connectors.executors.fetch_on_executors` run, each as a text with
            number, host, executor and pid.
        counters: all running counters, by name.
        taken: when the counts were taken, in seconds of the monotonic clock; see `SpoolRates`.
    """

    spool: str
    sources: tuple[str, ...]
    starts: int
    delivered: int
    duplicates: int
    dropped: dict[str, int]
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
    executor_fetchers: tuple[str, ...]
    counters: dict[str, int]
    taken: float


@dataclass(frozen=True, slots=True)
class SpoolRates:
    """How fast a spool moved between two readings, `seconds` apart, in messages per second.

    Attributes:
        fetched: made durable by the fetchers, with duplicates.
        admitted: admitted to the ledger, with duplicates.
        rows: admitted as rows, without duplicates.
        committed: rows that Spark committed.
    """

    seconds: float
    fetched: float
    admitted: float
    rows: float
    committed: float

    @classmethod
    def between(cls, before: SpoolStats, after: SpoolStats) -> SpoolRates:
        """Return the rates between two looks at one spool by one process, or raise `ValueError`."""
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


@dataclass(frozen=True, slots=True)
class Inspection:
    """What an inspection shows.

    Attributes:
        path: where the spool is, without links.
        location: where its identity says that it is; if that differs, it has to be adopted.
        holder: pid and JVM of the query that uses it; None if nobody does, as far as can be seen.
        epochs: how many writers have claimed it.
        layout: bytes and number of partitions that new batches are cut by; None before the first query.
        fetchers: the segments of each: the highest number ``admitted`` (-1 if none); ``segments``, ``rows`` and
            ``bytes`` that are not freed; and how many are ``waiting``.
        runs: name and number of ids of each run.
        lost: the quarantined segments: ``segment``, ``first``, ``end``, ``rows`` and ``error`` of their notes.
    """

    path: str
    location: str
    connector: str
    holder: dict[str, int] | None
    epochs: int
    layout: tuple[int, int] | None
    stats: SpoolStats
    fetchers: tuple[dict[str, Any], ...]
    runs: tuple[tuple[str, int], ...]
    lost: tuple[dict[str, Any], ...]


class _Survey(NamedTuple):
    store: Store
    identity: SpoolIdentity
    state: LedgerState
    inbox: dict[str, list[int]]
    """The numbers of the durable segments of each fetcher, admitted or not."""
    stats: SpoolStats


def rates(path: str | Path, seconds: float = 1.0) -> SpoolRates:
    """Read a spool twice, that many seconds apart, and return the rates; raises what `stats` raises."""
    before = stats(path)
    time.sleep(seconds)
    return SpoolRates.between(before, stats(path))


def stats(path: str | Path, access: StoreAccess | None = None) -> SpoolStats:
    """Return the counts of the spool at a location. Reads only; a running query is not disturbed.

    `path` is as the option ``spoolLocation``, but a folder may be relative; `access` is by default as the environment
    says. Raises `OptionError` for a wrong location, and `SpoolError` if there is no spool, or none that can be read.
    """
    return _survey(path, "stats", access).stats


def inspect(path: str) -> Inspection:
    """Look at a spool, as `stats` does, and raise the same; `verify` checks the rest."""
    store, identity, state, inbox, counts = _survey(path, "inspect")
    layout = state.layouts[-1] if state.layouts else None
    holder = spool_holder(store)
    return Inspection(
        path=store.location,
        location=identity.location,
        connector=identity.connector,
        holder=None if holder is None else {"pid": holder.pid, "jvm": holder.jvm},
        epochs=len(claimed_epochs(store)),
        layout=None if layout is None else (layout.partition_bytes, layout.max_partitions),
        stats=counts,
        fetchers=tuple(_fetcher(state, name, inbox.get(name, ())) for name in sorted({*state.fetchers, *inbox})),
        runs=tuple((run.name, run.ids) for run in state.runs),
        lost=tuple({name: note[name] for name in _LOST} for note in read_notes(store)),
    )


def _fetcher(state: LedgerState, name: str, numbers: Iterable[int]) -> dict[str, Any]:
    entries = [entry for entry in state.segments if entry.fetcher == name and not entry.quarantined]
    return {
        "fetcher": name,
        "admitted": state.fetchers.get(name, -1),
        "segments": len(entries),
        "rows": sum(entry.admitted_rows for entry in entries),
        "bytes": sum(entry.bytes for entry in entries),
        "waiting": sum(state.is_waiting(segment_name(name, number)) for number in numbers),
    }


def open_spool(location: str, owner: str = "", access: StoreAccess | None = None) -> tuple[Store, SpoolIdentity]:
    store = open_store(location, owner, access)
    return store, require_identity(store)


def require_identity(store: Store) -> SpoolIdentity:
    """Return the identity of a spool. SpoolError: there is none, or it is damaged."""
    identity = read_identity(store) if is_there(store.root) else None
    if identity is None:
        raise SpoolError(NOT_FOUND, "There is no spool here", store.root, "Give the spoolLocation of a stream.")
    return identity


def _survey(path: str | Path, owner: str, access: StoreAccess | None = None) -> _Survey:
    root = location_text(path)
    with reading_errors(root):
        store, identity = open_spool(root, owner, access)
        for left in reversed(range(_TRIES)):
            taken = time.monotonic()
            # Before the ledger: what is admitted in between is then counted once, not twice or never.
            inbox = {fetcher: segment_numbers(store, fetcher).tolist() for fetcher in store.list("inbox")}
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
        places = tuple(map(str, places_now(store)))
    waiting = [info for info in infos.values() if info is not None]
    counts = _stats(identity, state, waiting, ready_bytes, taken, places)
    return _Survey(store, identity, state, inbox, counts)


def _stats(
    identity: SpoolIdentity,
    state: LedgerState,
    waiting: Sequence[SegmentInfo],
    ready_bytes: int,
    taken: float,
    places: tuple[str, ...],
) -> SpoolStats:
    unread = _unread_segments(state)
    published = [entry.published for entry in unread if entry.admitted_rows] + [info.published for info in waiting]
    duplicates = state.counters.get("duplicates", 0)
    return SpoolStats(
        spool=identity.spool,
        sources=identity.sources,
        starts=len(state.starts),
        delivered=state.counters.get("delivered", 0),
        duplicates=duplicates,
        dropped={
            "duplicate": duplicates,
            "quarantined": state.counters.get(QUARANTINED_ROWS, 0),
            "skipped": state.counters.get(SKIPPED_ROWS, 0),
        },
        rows=state.head,
        committed=state.committed,
        oldest=state.oldest,
        ready_rows=sum(entry.end - max(entry.base, state.committed) for entry in unread),
        ready_bytes=ready_bytes,
        bytes=ready_bytes,
        oldest_unread=min((times[0] for times in published if times is not None), default=None),
        segments=len(state.segments),
        waiting_segments=len(waiting),
        waiting_rows=sum(info.rows for info in waiting),
        waiting_bytes=sum(info.bytes for info in waiting),
        ids=sum(run.ids for run in state.runs),
        executor_fetchers=places,
        counters=dict(state.counters),
        taken=taken,
    )


def _unread_segments(state: LedgerState) -> list[SegmentEntry]:
    return [entry for entry in state.between(state.committed, state.head) if not entry.quarantined]


def _info(store: Store, name: str) -> SegmentInfo | None:
    """Return what the footer of a segment says; None if it is damaged, or gone."""
    try:
        return SegmentReader(store, name).info
    except SpoolDamagedError:
        return None


def _ready_bytes(store: Store, state: LedgerState) -> int:
    """Sum the bytes of the rows that are not committed; read only the segment in which the commit lies."""
    total = 0
    for entry in _unread_segments(state):
        committed = state.committed - entry.base
        total += entry.bytes if committed <= 0 else int(read_row_sizes(store, entry)[committed:].sum())
    return total


def is_spool_file(store: Store, name: str) -> bool:
    lock = LOCK_NAME if store.has_locks else LEASE_NAME
    return name == lock or _FILE_NAME.fullmatch(name) is not None or store.is_own_name(name)


def is_there(location: str) -> bool:
    """Return whether a location may have a spool: an existing folder, or any URL, since only a request can tell."""
    return "://" in location or Path(location).is_dir()
