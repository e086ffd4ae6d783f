"""What the ledger says, as plain values: the state after a record is a pure function of the state before it.

Positions are dense: row number `p` is the p-th row admitted since the spool was made, over all its fetchers (rule R4).
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from connectors.spool.errors import record_damaged
from connectors.spool.ledger.records import ENTRY, JsonText, json_bytes
from connectors.spool.segments.dedup_index import RunEntry
from connectors.spool.segments.segment import PublishTimes, SegmentInfo, Sizes, published_of, segment_name
from connectors.spool.segments.shapes import misfit

__all__ = [
    "QUARANTINED_ROWS",
    "QUARANTINED_SEGMENTS",
    "SKIPPED_ROWS",
    "SKIPPED_THROUGH",
    "Layout",
    "LedgerState",
    "SegmentEntry",
    "SegmentLog",
    "Start",
    "counted_loss",
    "even_sizes",
    "unpack_mask",
]

COMMITS_KEPT = 3
"""How many commits are remembered: what the last two of their batches hold is not freed (rule R6)."""

QUARANTINED_SEGMENTS = "quarantined_segments"
QUARANTINED_ROWS = "quarantined_rows"
SKIPPED_ROWS = "skipped_rows"
SKIPPED_THROUGH = "skipped_through"
"""Counters of what was lost (rule R9), which never go down. Skipped positions count once, up to `SKIPPED_THROUGH`."""

_FETCHER = re.compile(rb'"fetcher":("[^"\\]*(?:\\.[^"\\]*)*")')
_OPEN, _COMMA, _QUOTE, _A, _Z = b'{,"az'
_SHORTEST = len('{"a":1}')


Mask = npt.NDArray[np.bool_]


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


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """An admitted segment.

    Attributes:
        fetcher, number, source, rows, published: as in its footer.
        digest: of the file; empty if it was quarantined: its rows keep their positions and are gone (rule R9).
        admitted_rows, bytes: rows that are no duplicates, and their bytes; in JSON the first is ``kept``.
        struck: which rows are duplicates, packed by `_pack_mask`; None if none is.
        base: position of its first row.
        bytes_before, ordinal: bytes of all rows, and number of all segments, that were admitted before it.
    """

    fetcher: str
    number: int
    source: int
    rows: int
    digest: str
    published: PublishTimes
    admitted_rows: int
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
        """The position after its last row."""
        return self.base + self.admitted_rows

    @property
    def quarantined(self) -> bool:
        """Whether its rows are recorded as empty."""
        return not self.digest

    @classmethod
    def admitted(cls, info: SegmentInfo, duplicates: Mask, admitted_bytes: int) -> SegmentEntry:
        """Return the entry of a segment that is being admitted; the ledger sets its position."""
        same = {name: getattr(info, name) for name in ("fetcher", "number", "source", "rows", "digest", "published")}
        count = int(np.count_nonzero(duplicates))
        struck = _pack_mask(duplicates) if count else None
        return cls(**same, admitted_rows=info.rows - count, bytes=admitted_bytes, struck=struck)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        value = {name: getattr(self, name) for name in self.__slots__}
        value["kept"] = value.pop("admitted_rows")
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SegmentEntry:
        """Return the entry that `to_json` wrote."""
        if part := misfit(value, ENTRY):
            raise record_damaged(f"An entry of the ledger has a right checksum and a wrong value: {part}", "a segment")
        fields = {**value, "admitted_rows": value["kept"], "published": published_of(value["published"])}
        del fields["kept"]
        return cls(**fields)


class SegmentLog(Sequence[SegmentEntry]):
    """The segments that were admitted and not freed, over the JSON of the snapshot that some of them were read from.

    A spool may hold a million segments. A start needs few of their entries, and the next snapshot has nearly all of
    them unchanged: so the text is retained, and an entry is decoded when it is used and encoded once.
    """

    def __init__(self, entries: Iterable[SegmentEntry] | JsonText = ()) -> None:
        self._source: bytes | memoryview = b""
        self._starts = np.empty(0, np.int64)
        self._entries: list[SegmentEntry | None] = []
        self._texts: list[bytes | None] = []
        if isinstance(entries, JsonText):
            starts = _cut(entries.text)
            if starts is not None:
                self._source, self._starts = entries.text, starts
                self._entries, self._texts = [None] * len(starts), [None] * len(starts)
                return
            entries = map(SegmentEntry.from_json, _parsed(b"[" + bytes(entries.text) + b"]"))
        for entry in entries:
            self.append(entry)

    def text(self) -> JsonText:
        """Return all entries as JSON."""
        from_source, parts = len(self._starts), []
        if from_source and not any(self._texts[:from_source]):
            parts.append(self._source[self._starts[0] :])
        else:
            parts += map(self._text_of, range(from_source))
        if len(parts) == 1 and from_source == len(self):
            return JsonText(parts[0])
        return JsonText(b",".join([*parts, *map(self._text_of, range(from_source, len(self)))]))

    def _text_of(self, index: int) -> bytes | memoryview:
        text = self._texts[index]
        if text is None and index < len(self._starts):
            return self._source_of(index)
        if text is None:
            text = self._texts[index] = json_bytes(self[index].to_json())
        return text

    def _source_of(self, index: int) -> bytes | memoryview:
        last = index + 1 == len(self._starts)
        return self._source[self._starts[index] : len(self._source) if last else self._starts[index + 1] - 1]

    @overload
    def __getitem__(self, index: int) -> SegmentEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[SegmentEntry]: ...
    def __getitem__(self, index: int | slice) -> SegmentEntry | list[SegmentEntry]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        entry = self._entries[index]
        if entry is None:
            number = range(len(self))[index]
            entry = self._entries[index] = SegmentEntry.from_json(_parsed(bytes(self._source_of(number))))
        return entry

    def __setitem__(self, index: int, entry: SegmentEntry) -> None:
        self._entries[index], self._texts[index] = entry, json_bytes(entry.to_json())

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SegmentLog | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def append(self, entry: SegmentEntry) -> None:
        """Append an entry."""
        self._entries.append(entry)
        self._texts.append(None)

    def drop(self, count: int) -> None:
        """Drop the first entries."""
        del self._entries[:count], self._texts[:count]
        self._starts = self._starts[count:]
        if not len(self._starts):
            self._source = b""

    def fetchers(self) -> set[str]:
        """Return the fetchers that have segments in the spool."""
        first = int(self._starts[0]) if len(self._starts) else 0
        names = {str(json.loads(match)) for match in set(_FETCHER.findall(memoryview(self._source)[first:]))}
        changed = (index for index in range(len(self)) if index >= len(self._starts) or self._texts[index] is not None)
        return names | {self[index].fetcher for index in changed}


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise record_damaged("The segments of a snapshot are no list of segments", "a snapshot") from None


def _cut(text: bytes | memoryview) -> Any:
    """Return where each object begins in a text of flat objects with commas between; None if that is not certain.

    Every brace that opens must be at the beginning of an object. Within a string it has no quotation mark after it, or
    the one that ends the string, and then no letter.
    """
    if len(text) < _SHORTEST:
        return None if len(text) else np.empty(0, np.int64)
    characters = np.frombuffer(text, np.uint8)
    starts = np.flatnonzero(characters == _OPEN)
    letters = characters[np.minimum(starts + 2, len(characters) - 1)]
    certain = (
        len(starts)
        and starts[0] == 0
        and np.all(characters[starts[1:] - 1] == _COMMA)
        and np.all(characters[np.minimum(starts + 1, len(characters) - 1)] == _QUOTE)
        and np.all((letters >= _A) & (letters <= _Z))
    )
    return starts if certain else None


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
        return next((entry for entry in self.segments if entry.name == name), None)

    def now(self, seen: SegmentEntry) -> SegmentEntry | None:
        """Return the present entry of an admitted segment that was seen earlier; None if it was freed."""
        index = bisect_left(self.segments, seen.ordinal, key=lambda entry: entry.ordinal)
        entry = self.segments[index] if index < len(self.segments) else None
        return entry if entry is not None and entry.name == seen.name else None

    def since(self, ordinal: int) -> list[SegmentEntry]:
        """Return the segments that were admitted from this ordinal on."""
        return self.segments[bisect_left(self.segments, ordinal, key=lambda entry: entry.ordinal) :]

    def is_waiting(self, name: str) -> bool:
        """Return whether a segment of this name is not admitted yet."""
        _, fetcher, file = name.split("/")
        return int(file.partition(".")[0]) > self.fetchers.get(fetcher, -1)

    def between(self, first: int, end: int) -> list[SegmentEntry]:
        """Return the segments with rows between two positions; decode no others, of which there may be a million."""
        from_first = range(bisect_right(self.segments, first, key=lambda entry: entry.end), len(self.segments))
        return list(takewhile(lambda entry: entry.base < end, (self.segments[index] for index in from_first)))

    def quarantine(self, name: str) -> None:
        """Record the rows of an admitted segment as empty and count the loss, for a snapshot: no other record can."""
        index = next(index for index, entry in enumerate(self.segments) if entry.name == name)
        self.counters = counted_loss(self.counters, self.segments[index].admitted_rows)
        self.segments[index] = replace(self.segments[index], digest="")

    def snapshot(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        others = {"spool", "epoch", "nonce", "number", "segments", "runs", "seek"}
        return {
            **{name: getattr(self, name) for name in self.__slots__ if name not in others},
            "segments": self.segments.text(),
            "runs": [run.to_json() for run in self.runs],
            # Left out where there was none, so that older versions can read a spool without a seek.
            **({} if self.seek is None else {"seek": self.seek}),
        }

    @classmethod
    def from_snapshot(cls, record: Mapping[str, Any]) -> LedgerState:
        """Return the state in a snapshot record."""
        value = dict(record["state"])
        value["segments"] = SegmentLog(value["segments"])
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

    def _free(self, names: Iterable[str]) -> None:
        gone = set(names)
        if gone:
            log = self.segments
            count = next((index for index, entry in enumerate(log) if entry.name not in gone), len(log))
            log.drop(count)
            if count < len(gone):
                self.segments = SegmentLog(entry for entry in log if entry.name not in gone)
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


def even_sizes(entry: SegmentEntry) -> Sizes:
    """Return bytes for each row where only their sum is known: near-equal, the larger ones first."""
    share, rest = divmod(entry.bytes, entry.admitted_rows) if entry.admitted_rows else (0, 0)
    sizes = np.full(entry.admitted_rows, share, np.int64)
    sizes[:rest] += 1
    return sizes


def _pack_mask(mask: Mask) -> str:
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes())).decode()


def unpack_mask(text: str, rows: int) -> Mask:
    """Return the mask of this many rows from its text: bits, compressed, in base 64."""
    try:
        bits = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), np.uint8)
    except (ValueError, zlib.error):
        bits = np.empty(0, np.uint8)
    if len(bits) != -(-rows // 8):
        raise record_damaged("The rows of a segment that are duplicates cannot be read", "an entry of the ledger")
    return np.unpackbits(bits, count=rows).astype(np.bool_)


def _pruned(layouts: list[Layout], oldest: int) -> list[Layout]:
    """Return the layouts that a batch with rows still in the spool can have."""
    last_below = max((index for index, layout in enumerate(layouts) if layout.position <= oldest), default=0)
    return layouts[last_below:]
