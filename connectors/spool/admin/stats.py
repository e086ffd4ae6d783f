"""Counts of a spool for those who watch it, read beside a running query.

The ledger carries what only it can know; the rest is derived from it and from the segments that wait in the inbox, so
that nothing is written for the sake of a count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from connectors.spool.admin.survey import Survey, survey_spool, unread_segments
from connectors.spool.ledger.state import QUARANTINED_ROWS, SKIPPED_ROWS
from connectors.spool.store.base import StoreAccess

__all__ = ["SpoolRates", "SpoolStats", "rates", "stats", "stats_of"]


@dataclass(frozen=True, slots=True)
class SpoolStats:
    """Counts of a spool since it was made; all of one moment, as far as the ledger tells.

    Attributes:
        spool: id of the spool.
        sources: full names of its subscriptions.
        starts: how many times a writer has started.
        delivered: messages fetched and admitted, with duplicates.
        duplicates: duplicates dropped; also in `dropped`.
        dropped: what was delivered and is in no batch, by reason: ``duplicate``, ``quarantined`` (its segment was
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
        waiting_rows: messages in them, with duplicates.
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
    counters: dict[str, int]
    taken: float


@dataclass(frozen=True, slots=True)
class SpoolRates:
    """How fast a spool moved between two looks at it, in messages a second.

    Attributes:
        seconds: between the two looks.
        fetched: made durable by the fetchers, with duplicates.
        admitted: admitted to the ledger, with duplicates.
        kept: rows kept, without duplicates.
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
    """Return the counts of the spool at a location. Reads only; a running query is not disturbed.

    Args:
        path: the ``spoolLocation``, as that option takes it; a folder may also be relative.
        access: how to reach an object store; by default as its environment says.

    Raises:
        OptionError: no spool can be there.
        SpoolError: there is no spool there, or this user may not read it.
        SpoolDamagedError: the ledger is damaged, or a segment that has to be read.
    """
    return stats_of(survey_spool(path, "stats", access))


def stats_of(survey: Survey) -> SpoolStats:
    """Return the counts of a spool that was surveyed."""
    state, waiting = survey.state, survey.waiting
    unread = unread_segments(state)
    published = [entry.published for entry in unread if entry.kept] + [info.published for info in waiting]
    duplicates = state.counters.get("duplicates", 0)
    return SpoolStats(
        spool=survey.identity.spool,
        sources=survey.identity.sources,
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
        ready_bytes=survey.ready_bytes,
        bytes=survey.ready_bytes,
        oldest_unread=min((times[0] for times in published if times is not None), default=None),
        segments=len(state.segments),
        waiting_segments=len(waiting),
        waiting_rows=sum(info.rows for info in waiting),
        waiting_bytes=sum(info.bytes for info in waiting),
        ids=sum(run.ids for run in state.runs),
        counters=dict(state.counters),
        taken=survey.taken,
    )
