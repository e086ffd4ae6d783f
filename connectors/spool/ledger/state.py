"""What the ledger says, as plain values: the state after a record is a pure function of the state before it.

Positions are dense: row number `p` is the p-th row admitted since the spool was made, over all its fetchers (rule R4).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final, NamedTuple

from connectors.spool.errors import record_damaged
from connectors.spool.ledger.segment_log import SegmentEntry, SegmentLog
from connectors.spool.segments.dedup_index import RunEntry

COMMITS_RETAINED = 3
"""How many commits are remembered: what the last two of their batches hold is not freed (rule R6)."""

QUARANTINED_SEGMENTS = "quarantined_segments"
QUARANTINED_ROWS = "quarantined_rows"
SKIPPED_ROWS = "skipped_rows"
SKIPPED_THROUGH = "skipped_through"
"""Counters of what was lost (rule R9), which never go down. Skipped positions count once, up to `SKIPPED_THROUGH`."""


class WriterStart(NamedTuple):
    """One start of a writer: positions from `first` to `last` are valid under its nonce. Remembered for ever (R4)."""

    nonce: str
    first: int
    last: int


class Layout(NamedTuple):
    """How batches that end above `position` are cut into partitions (rule R5)."""

    position: int
    partition_bytes: int
    max_partitions: int


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The state of the ledger after its last record. It never changes, so any thread may read it.

    Attributes:
        epoch, nonce, number: of the last record.
        head: the position after the last row.
        bytes, ordinal: bytes of all rows, and number of all segments, admitted so far.
        commits: the highest committed positions, at most three, ascending.
        published: the highest publish time admitted, microseconds: the latest that is known of the service's clock.
        fetchers: highest admitted number of each fetcher whose folder is not forgotten.
        runs_through: ids of segments with a lower ordinal are in runs.
        counters: running totals: ``delivered``, ``duplicates``, losses, and those of the fetchers.
        sealed: the last number of each epoch that the newest start sealed.
        dedup_epoch: which ids are compared: those of one epoch. A seek begins a new one.
        seek: the last seek of the source: its target (``value``), and whether it was carried out (``done``).
    """

    spool: str
    epoch: int = 0
    nonce: str = ""
    number: int = -1
    head: int = 0
    bytes: int = 0
    ordinal: int = 0
    commits: Sequence[int] = field(default_factory=list)
    published: int | None = None
    segments: SegmentLog = field(default_factory=SegmentLog)
    starts: Sequence[WriterStart] = field(default_factory=list)
    layouts: Sequence[Layout] = field(default_factory=list)
    fetchers: Mapping[str, int] = field(default_factory=dict)
    runs: Sequence[RunEntry] = field(default_factory=list)
    runs_through: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    sealed: Mapping[str, int] = field(default_factory=dict)
    dedup_epoch: int = 0
    seek: Mapping[str, Any] | None = None

    @property
    def oldest(self) -> int:
        """The position of the oldest row in the spool; the head if there is none."""
        return self.segments[0].base if self.segments else self.head

    @property
    def committed(self) -> int:
        """The highest position that was committed; 0 before the first commit."""
        return self.commits[-1] if self.commits else 0

    def space(self, source: int) -> str:
        return f"{source}.{self.dedup_epoch}"

    def now(self, seen: SegmentEntry) -> SegmentEntry | None:
        """Return the present entry of an admitted segment that was seen earlier; None if it was freed."""
        return self.segments[seen.ordinal - self.segments.first] if seen.ordinal >= self.segments.first else None

    def since(self, ordinal: int) -> list[SegmentEntry]:
        return self.segments[max(ordinal - self.segments.first, 0) :]

    def is_waiting(self, name: str) -> bool:
        _, fetcher, file = name.split("/")
        return int(file.partition(".")[0]) > self.fetchers.get(fetcher, -1)

    def between(self, first: int, end: int) -> list[SegmentEntry]:
        """Return the segments with rows between two positions; decode no others, since there may be a million."""
        from_first = range(bisect_right(self.segments, first, key=lambda entry: entry.end), len(self.segments))
        return list(takewhile(lambda entry: entry.base < end, (self.segments[index] for index in from_first)))

    def quarantined(self, entry: SegmentEntry) -> LedgerState:
        """Return the state in which the rows of an admitted segment are empty and counted as lost, for a snapshot."""
        counters = counted_loss(self.counters, entry.admitted_rows)
        return replace(self, counters=counters, segments=self.segments.quarantined(entry.ordinal))

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a JSON object; the manifests of all segments are written."""
        others = {"spool", "epoch", "nonce", "number", "segments", "runs", "seek"}
        return {
            **{name: getattr(self, name) for name in self.__slots__ if name not in others},
            "manifests": self.segments.to_json(),
            "live": [self.segments.first, self.oldest],
            "runs": [run.to_json() for run in self.runs],
            **({} if self.seek is None else {"seek": self.seek}),
        }

    @classmethod
    def from_snapshot(cls, record: Mapping[str, Any], segments: SegmentLog) -> LedgerState:
        value = {name: part for name, part in record["state"].items() if name not in {"manifests", "live"}}
        value["segments"] = segments
        value["starts"] = [WriterStart(*start) for start in value["starts"]]
        value["layouts"] = [Layout(*layout) for layout in value["layouts"]]
        value["runs"] = [RunEntry.from_json(run) for run in value["runs"]]
        return cls(record["spool"], record["epoch"], record["nonce"], record["number"], **value)

    def apply(self, record: Mapping[str, Any]) -> LedgerState:
        """Return the state after an ordinary record; raises `SpoolDamagedError` if the record does not follow.

        What it admits is entries: those of a record from disk were parsed.
        """
        if record["base"] != self.head:
            what = f"A record begins at position {record['base']}, but the ledger ends at {self.head}"
            raise record_damaged(what, f"epoch {record['epoch']}, number {record['number']}")
        state = replace(self, epoch=record["epoch"], nonce=record["nonce"], number=record["number"])
        for name, change in _CHANGES.items():
            if name in record:
                state = change(state, record[name])
        return state


def counted_loss(counters: Mapping[str, int], rows: int) -> dict[str, int]:
    more = {QUARANTINED_SEGMENTS: 1, QUARANTINED_ROWS: rows}
    return {**counters, **{name: counters.get(name, 0) + count for name, count in more.items()}}


def _pruned(layouts: Sequence[Layout], oldest: int) -> Sequence[Layout]:
    """Return the layouts that a batch with rows still in the spool can have."""
    last_below = max((index for index, layout in enumerate(layouts) if layout.position <= oldest), default=0)
    return layouts[last_below:]


def _admit(state: LedgerState, entries: Sequence[SegmentEntry]) -> LedgerState:
    if not entries:
        return state
    if not state.starts:
        raise record_damaged("A snapshot names no start", "the newest snapshot")
    head, size, published, fetchers = state.head, state.bytes, state.published, dict(state.fetchers)
    placed = []
    for ordinal, entry in enumerate(entries, state.ordinal):
        placed.append(replace(entry, base=head, bytes_before=size, ordinal=ordinal))
        head, size = placed[-1].end, size + entry.bytes
        fetchers[entry.fetcher] = entry.number
        if entry.published is not None:
            published = max(published or 0, entry.published[1])
    return replace(
        state,
        head=head,
        bytes=size,
        ordinal=state.ordinal + len(placed),
        published=published,
        fetchers=fetchers,
        segments=state.segments.appended(placed),
        starts=[*state.starts[:-1], state.starts[-1]._replace(last=head)],
    )


def _lay_out(state: LedgerState, layout: Sequence[int]) -> LedgerState:
    return replace(state, layouts=_pruned([*state.layouts, Layout(state.head, *layout)], state.oldest))


def _swap_runs(state: LedgerState, change: Mapping[str, Any]) -> LedgerState:
    gone = set(change["remove"])
    runs = [run for run in state.runs if run.name not in gone]
    runs += [RunEntry.from_json(value) for value in change["add"]]
    return replace(state, runs=runs, runs_through=max(state.runs_through, change["through"]))


def _free(state: LedgerState, freed: Sequence[int]) -> LedgerState:
    """Drop the oldest segments: those below an ordinal and a position."""
    log = state.segments
    count = freed[0] - log.first
    if not 0 < count <= len(log) or (log[count].base if count < len(log) else state.head) != freed[1]:
        raise record_damaged("A record frees other segments than the oldest ones", "a record of the ledger")
    state = replace(state, segments=log.from_ordinal(log.first + count))
    return replace(state, layouts=_pruned(state.layouts, state.oldest))


def _forget(state: LedgerState, fetchers: Sequence[str]) -> LedgerState:
    gone = set(fetchers)
    return replace(state, fetchers={name: last for name, last in state.fetchers.items() if name not in gone})


_CHANGES: Final[Mapping[str, Callable[[LedgerState, Any], LedgerState]]] = {
    "admit": _admit,
    "counters": lambda state, counters: replace(state, counters=dict(counters)),
    "commit": lambda state, position: replace(state, commits=[*state.commits, position][-COMMITS_RETAINED:]),
    "layout": _lay_out,
    "seek": lambda state, seek: replace(state, seek=dict(seek)),
    # No id of an earlier epoch is searched for again.
    "dedup_epoch": lambda state, epoch: replace(state, dedup_epoch=epoch, runs=[], runs_through=state.ordinal),
    "runs": _swap_runs,
    "free": _free,
    "forget": _forget,
}
"""What a record may change, in the order in which it is applied."""
