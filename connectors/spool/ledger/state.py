"""What the ledger says, as plain values: the state after a record is a pure function of the state before it.

Positions are dense: row number `p` is the p-th row admitted since the spool was made, over all its fetchers (rule R4).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple

from connectors.spool.errors import record_damaged
from connectors.spool.ledger.segment_log import SegmentEntry, SegmentLog
from connectors.spool.segments.dedup_index import RunEntry

__all__ = [
    "QUARANTINED_ROWS",
    "QUARANTINED_SEGMENTS",
    "SKIPPED_ROWS",
    "SKIPPED_THROUGH",
    "Layout",
    "LedgerState",
    "Start",
    "counted_loss",
]

COMMITS_KEPT = 3
"""How many commits are remembered: what the last two of their batches hold is not freed (rule R6)."""

QUARANTINED_SEGMENTS = "quarantined_segments"
QUARANTINED_ROWS = "quarantined_rows"
SKIPPED_ROWS = "skipped_rows"
SKIPPED_THROUGH = "skipped_through"
"""Counters of what was lost (rule R9), which never go down. Skipped positions count once, up to `SKIPPED_THROUGH`."""


class Start(NamedTuple):
    """One start of a writer: positions from `first` to `last` are valid under its nonce. Remembered for ever (R4)."""

    nonce: str
    first: int
    last: int


class Layout(NamedTuple):
    """How batches that end above `position` are cut into partitions (rule R5)."""

    position: int
    partition_bytes: int
    max_partitions: int


@dataclass(slots=True)
class LedgerState:
    """The state of the ledger after its last record.

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
    commits: list[int] = field(default_factory=list)
    published: int | None = None
    segments: SegmentLog = field(default_factory=SegmentLog)
    starts: list[Start] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    fetchers: dict[str, int] = field(default_factory=dict)
    runs: list[RunEntry] = field(default_factory=list)
    runs_through: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    sealed: dict[str, int] = field(default_factory=dict)
    dedup_epoch: int = 0
    seek: dict[str, Any] | None = None

    @property
    def oldest(self) -> int:
        """The position of the oldest row in the spool; the head if there is none."""
        return self.segments[0].base if self.segments else self.head

    @property
    def committed(self) -> int:
        """The highest position that was committed; 0 before the first commit."""
        return self.commits[-1] if self.commits else 0

    def space(self, source: int) -> str:
        """Return the name under which a source's ids of this epoch are compared."""
        return f"{source}.{self.dedup_epoch}"

    def segment(self, name: str) -> SegmentEntry | None:
        """Return the admitted segment of a name; None if there is none."""
        return self.segments.find(name)

    def now(self, seen: SegmentEntry) -> SegmentEntry | None:
        """Return the present entry of an admitted segment that was seen earlier; None if it was freed."""
        return self.segments[seen.ordinal - self.segments.first] if seen.ordinal >= self.segments.first else None

    def since(self, ordinal: int) -> list[SegmentEntry]:
        """Return the segments that were admitted from this ordinal on."""
        return self.segments[max(ordinal - self.segments.first, 0) :]

    def is_waiting(self, name: str) -> bool:
        """Return whether a segment of this name is not admitted yet."""
        _, fetcher, file = name.split("/")
        return int(file.partition(".")[0]) > self.fetchers.get(fetcher, -1)

    def between(self, first: int, end: int) -> list[SegmentEntry]:
        """Return the segments with rows between two positions; decode no others, of which there may be a million."""
        from_first = range(bisect_right(self.segments, first, key=lambda entry: entry.end), len(self.segments))
        return list(takewhile(lambda entry: entry.base < end, (self.segments[index] for index in from_first)))

    def quarantine(self, entry: SegmentEntry) -> None:
        """Record the rows of an admitted segment as empty and count the loss, for a snapshot: no other record can."""
        self.counters = counted_loss(self.counters, entry.admitted_rows)
        self.segments.quarantine(entry.ordinal)

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
        """Return the state in a snapshot record, with the segments that it has or names."""
        value = {name: part for name, part in record["state"].items() if name not in {"manifests", "live"}}
        value["segments"] = segments
        value["starts"] = [Start(*start) for start in value["starts"]]
        value["layouts"] = [Layout(*layout) for layout in value["layouts"]]
        value["runs"] = [RunEntry.from_json(run) for run in value["runs"]]
        return cls(record["spool"], record["epoch"], record["nonce"], record["number"], **value)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Advance to the state after an ordinary record; raises `SpoolDamagedError` if that does not follow."""
        if record["base"] != self.head:
            raise record_damaged(
                f"A record begins at position {record['base']} and the ledger ends at {self.head}",
                record_place(record),
            )
        self.epoch, self.nonce, self.number = record["epoch"], record["nonce"], record["number"]
        for value in record.get("admit", ()):
            self._admit(SegmentEntry.from_json(value))
        if "counters" in record:
            self.counters = dict(record["counters"])
        if "commit" in record:
            self.commits = [*self.commits, record["commit"]][-COMMITS_KEPT:]
        if "layout" in record:
            self.layouts = _pruned([*self.layouts, Layout(self.head, *record["layout"])], self.oldest)
        if "seek" in record:
            self.seek = dict(record["seek"])
        if "dedup_epoch" in record:
            # No id of an earlier epoch is searched for again.
            self.dedup_epoch, self.runs, self.runs_through = record["dedup_epoch"], [], self.ordinal
        if "runs" in record:
            self._swap_runs(record["runs"])
        self._free(record.get("free", ()))
        for fetcher in record.get("forget", ()):
            self.fetchers.pop(fetcher, None)

    def _admit(self, entry: SegmentEntry) -> None:
        placed = replace(entry, base=self.head, bytes_before=self.bytes, ordinal=self.ordinal)
        self.segments.append(placed)
        self.fetchers[entry.fetcher] = entry.number
        self.head, self.bytes, self.ordinal = placed.end, self.bytes + placed.bytes, self.ordinal + 1
        if entry.published is not None:
            self.published = max(self.published or 0, entry.published[1])
        if not self.starts:
            raise record_damaged("A snapshot names no start", "the newest snapshot")
        self.starts[-1] = self.starts[-1]._replace(last=self.head)

    def _free(self, freed: Sequence[Any]) -> None:
        """Drop the oldest segments: those below an ordinal and a position, or of these names in the first format."""
        if not freed:
            return
        log = self.segments
        if isinstance(freed[0], str):
            count = len(freed)
            follows = {entry.name for entry in log[:count]} == set(freed)
        else:
            count = freed[0] - log.first
            follows = 0 < count <= len(log) and (log[count].base if count < len(log) else self.head) == freed[1]
        if not follows:
            raise record_damaged("A record frees other segments than the oldest ones", "a record of the ledger")
        log.drop_below(log.first + count)
        self.layouts = _pruned(self.layouts, self.oldest)

    def _swap_runs(self, change: Mapping[str, Any]) -> None:
        gone = set(change["remove"])
        added = [RunEntry.from_json(value) for value in change["add"]]
        self.runs = [run for run in self.runs if run.name not in gone] + added
        self.runs_through = max(self.runs_through, change["through"])


def record_place(record: Mapping[str, Any]) -> str:
    """Return which record it is, for errors."""
    return f"epoch {record['epoch']}, number {record['number']}"


def counted_loss(counters: Mapping[str, int], rows: int) -> dict[str, int]:
    """Return the counters after one more segment, with this many rows, was quarantined."""
    more = {QUARANTINED_SEGMENTS: 1, QUARANTINED_ROWS: rows}
    return {**counters, **{name: counters.get(name, 0) + count for name, count in more.items()}}


def _pruned(layouts: list[Layout], oldest: int) -> list[Layout]:
    """Return the layouts that a batch with rows still in the spool can have."""
    last_below = max((index for index, layout in enumerate(layouts) if layout.position <= oldest), default=0)
    return layouts[last_below:]
