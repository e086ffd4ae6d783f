"""What the ledger says, as plain values: the state after a record is a pure function of the state before it.

Positions are dense: row number `p` is the p-th row kept since the spool was made, over all its fetchers (rule R4).
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, MutableSequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from connectors.spool.errors import record_damaged
from connectors.spool.ledger.snapshot_entries import EntryLog, JsonText
from connectors.spool.segments.id_runs import RunEntry
from connectors.spool.segments.segment import SegmentInfo, Sizes, segment_name

__all__ = [
    "QUARANTINED_ROWS",
    "QUARANTINED_SEGMENTS",
    "SKIPPED_ROWS",
    "SKIPPED_THROUGH",
    "Layout",
    "LedgerState",
    "SegmentEntry",
    "Start",
    "counted_loss",
    "even_sizes",
    "pack_mask",
    "unpack_mask",
]

COMMITS_KEPT = 3
"""How many commits are remembered: what the last two of their batches hold is not freed (rule R6)."""

QUARANTINED_SEGMENTS = "quarantined_segments"
QUARANTINED_ROWS = "quarantined_rows"
SKIPPED_ROWS = "skipped_rows"
SKIPPED_THROUGH = "skipped_through"
"""Running counters of what was lost (rule R9): they are never taken back, so the loss shows for ever. Rows are skipped
when a checkpoint begins below the oldest row; each position counts once, up to `SKIPPED_THROUGH`."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a writer: positions from `first` to `last` are known under its nonce. Kept for ever (rule R4)."""

    nonce: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How batches that end above `position` are cut into partitions (rule R5)."""

    position: int
    partition_bytes: int
    max_partitions: int


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """An admitted segment.

    Attributes:
        fetcher, number, source, rows, digest, published: as in its footer; no digest means that the file was
            quarantined: its rows keep their positions and are gone (rule R9).
        kept: rows that dedup kept; they have the positions from `base` on.
        bytes: bytes of the rows kept.
        struck: which rows were struck out, packed by `pack_mask`; None if none was.
        base: position of its first kept row.
        bytes_before: bytes of all rows kept in the spool before it.
        ordinal: how many segments were admitted before it.
    """

    fetcher: str
    number: int
    source: int
    rows: int
    digest: str
    published: tuple[int, int] | None
    kept: int
    bytes: int
    struck: str | None = None
    base: int = 0
    bytes_before: int = 0
    ordinal: int = 0

    @property
    def name(self) -> str:
        """Its name in the store."""
        return segment_name(self.fetcher, self.number)

    @property
    def end(self) -> int:
        """The position after its last kept row."""
        return self.base + self.kept

    @property
    def quarantined(self) -> bool:
        """Whether its rows are recorded as empty."""
        return not self.digest

    @classmethod
    def admitted(cls, info: SegmentInfo, struck: Mask, kept_bytes: int) -> SegmentEntry:
        """The entry of a segment that is being admitted; the ledger gives it its place."""
        duplicates = int(np.count_nonzero(struck))
        return cls(
            info.fetcher,
            info.number,
            info.source,
            info.rows,
            info.digest,
            info.published,
            info.rows - duplicates,
            kept_bytes,
            pack_mask(struck) if duplicates else None,
        )

    def to_json(self) -> dict[str, Any]:
        """The entry as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SegmentEntry:
        """The entry that `to_json` wrote."""
        published = value["published"]
        return cls(**{**value, "published": None if published is None else (published[0], published[1])})


def segment_log(entries: Iterable[SegmentEntry] | JsonText = ()) -> EntryLog[SegmentEntry]:
    """A list of segments, which may be very long."""
    return EntryLog(SegmentEntry.from_json, SegmentEntry.to_json, entries)


@dataclass(slots=True)
class LedgerState:
    """Everything the ledger knows after its last record.

    Attributes:
        spool: id of the spool.
        epoch, nonce, number: of the last record.
        head: the position after the last row kept.
        bytes: bytes of all rows kept so far.
        ordinal: how many segments were admitted so far.
        commits: the highest committed positions, at most three, ascending.
        published: the highest publish time admitted, microseconds: the service's time as far as it is known.
        segments: admitted and not freed, in order.
        starts, layouts: see there.
        fetchers: highest admitted number of each fetcher whose folder is not forgotten.
        runs: live id runs.
        runs_through: ids of segments with a lower ordinal are in runs.
        counters: running totals: ``delivered``, ``duplicates``, losses, and those of the fetchers.
        sealed: the last number of each epoch that the newest start sealed.
        dedup_epoch: name space of ids; a seek begins a new one.
        seek: the last seek of the source: what was asked for (``value``), and whether it was carried out (``done``);
            None if there was none.
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
    segments: MutableSequence[SegmentEntry] = field(default_factory=segment_log)
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
        """Position of the oldest row that is still in the spool; the head if there is none."""
        return self.segments[0].base if self.segments else self.head

    @property
    def committed(self) -> int:
        """The highest position that was committed; 0 before the first commit."""
        return self.commits[-1] if self.commits else 0

    def space(self, source: int) -> str:
        """The name space of a source's ids."""
        return f"{source}.{self.dedup_epoch}"

    def segment(self, name: str) -> SegmentEntry | None:
        """The admitted segment of a name; None if there is none."""
        return next((entry for entry in self.segments if entry.name == name), None)

    def now(self, seen: SegmentEntry) -> SegmentEntry | None:
        """What an admitted segment that was seen earlier is now; None if it was freed."""
        index = bisect_left(self.segments, seen.ordinal, key=lambda entry: entry.ordinal)
        entry = self.segments[index] if index < len(self.segments) else None
        return entry if entry is not None and entry.name == seen.name else None

    def is_waiting(self, name: str) -> bool:
        """Whether a segment of this name is not admitted yet."""
        _, fetcher, file = name.split("/")
        return int(file.partition(".")[0]) > self.fetchers.get(fetcher, -1)

    def between(self, first: int, end: int) -> list[SegmentEntry]:
        """The segments with rows between two positions; looks at these only, since there may be a million others."""
        from_first = range(bisect_right(self.segments, first, key=lambda entry: entry.end), len(self.segments))
        return list(takewhile(lambda entry: entry.base < end, (self.segments[index] for index in from_first)))

    def quarantine(self, name: str) -> None:
        """Record the rows of an admitted segment as empty, and count the loss.

        There is no record for this alone: a snapshot of the state says it.
        """
        index = next(index for index, entry in enumerate(self.segments) if entry.name == name)
        self.counters = counted_loss(self.counters, self.segments[index].kept)
        self.segments[index] = replace(self.segments[index], digest="")

    def _log(self) -> EntryLog[SegmentEntry]:
        return self.segments if isinstance(self.segments, EntryLog) else segment_log(self.segments)

    def fetchers_with_segments(self) -> set[str]:
        """The fetchers that have segments in the spool."""
        return self._log().values("fetcher")

    def snapshot(self) -> dict[str, Any]:
        """The state as a JSON object."""
        return {
            name: getattr(self, name)
            for name in ("head", "bytes", "ordinal", "commits", "published", "fetchers", "runs_through")
        } | {
            "counters": self.counters,
            "sealed": self.sealed,
            "dedup_epoch": self.dedup_epoch,
            "segments": self._log().text(),
            "starts": [[start.nonce, start.first, start.last] for start in self.starts],
            "layouts": [[layout.position, layout.partition_bytes, layout.max_partitions] for layout in self.layouts],
            "runs": [run.to_json() for run in self.runs],
            # Left out where there was none: so a spool that was never sought is read by older versions.
            **({} if self.seek is None else {"seek": self.seek}),
        }

    @classmethod
    def from_snapshot(cls, record: Mapping[str, Any]) -> LedgerState:
        """The state that a snapshot record holds."""
        value = dict(record["state"])
        entries = value["segments"]
        known = isinstance(entries, JsonText)
        value["segments"] = segment_log(entries if known else map(SegmentEntry.from_json, entries))
        value["starts"] = [Start(*start) for start in value["starts"]]
        value["layouts"] = [Layout(*layout) for layout in value["layouts"]]
        value["runs"] = [RunEntry.from_json(run) for run in value["runs"]]
        return cls(record["spool"], record["epoch"], record["nonce"], record["number"], **value)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Go on to the state after an ordinary record.

        Raises:
            SpoolDamagedError: the record does not follow on this state.
        """
        if record["base"] != self.head:
            raise record_damaged(
                f"A record begins at position {record['base']} and the ledger ends at {self.head}",
                f"epoch {record['epoch']}, number {record['number']}",
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
            # No id of an earlier epoch is asked for again.
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
        self.starts[-1] = replace(self.starts[-1], last=self.head)

    def _free(self, names: Iterable[str]) -> None:
        gone = set(names)
        if gone:
            self.segments = log = self._log()
            count = next((index for index, entry in enumerate(log) if entry.name not in gone), len(log))
            log.drop(count)
            if count < len(gone):
                self.segments = segment_log(entry for entry in log if entry.name not in gone)
            self.layouts = _pruned(self.layouts, self.oldest)

    def _swap_runs(self, change: Mapping[str, Any]) -> None:
        gone = set(change["remove"])
        added = [RunEntry.from_json(value) for value in change["add"]]
        self.runs = [run for run in self.runs if run.name not in gone] + added
        self.runs_through = max(self.runs_through, change["through"])


def counted_loss(counters: Mapping[str, int], rows: int) -> dict[str, int]:
    """Running counters after one more segment, with this many rows, was quarantined."""
    more = {QUARANTINED_SEGMENTS: 1, QUARANTINED_ROWS: rows}
    return {**counters, **{name: counters.get(name, 0) + count for name, count in more.items()}}


def even_sizes(entry: SegmentEntry) -> Sizes:
    """The bytes of each kept row where only their sum is known: near-equal, the larger ones first."""
    share, rest = divmod(entry.bytes, entry.kept) if entry.kept else (0, 0)
    sizes = np.full(entry.kept, share, np.int64)
    sizes[:rest] += 1
    return sizes


def pack_mask(mask: Mask) -> str:
    """A boolean mask as text: its bits, compressed, in base 64."""
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes())).decode()


def unpack_mask(text: str, rows: int) -> Mask:
    """The mask that `pack_mask` wrote, of this many rows."""
    bits = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return np.unpackbits(bits, count=rows).astype(np.bool_)


def _pruned(layouts: list[Layout], oldest: int) -> list[Layout]:
    """Without the layouts that no batch with rows still in the spool can have."""
    last_below = max((index for index, layout in enumerate(layouts) if layout.position <= oldest), default=0)
    return layouts[last_below:]
