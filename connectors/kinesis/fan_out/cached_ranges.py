"""What the spool's segments hold of each shard, and which of them cover a range.

The spool is a cache. A file counts as missing if it is damaged, or of another source or version of the columns. A
cached range holds every record after a position up to its last one, so ranges cover a batch only as an unbroken chain:
each begins where the one before ends, or earlier.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from connectors.core.errors import SpoolDamagedError, SpoolError
from connectors.core.offsets import whole_number
from connectors.core.processes.failpoints import failpoint
from connectors.kinesis import FORMAT
from connectors.kinesis.offsets import (
    END,
    NEW,
    Position,
    PositionKind,
    ShardState,
    Streams,
    after,
    of_type,
    sequence_number,
)
from connectors.kinesis.schema import ARROW_SCHEMA
from connectors.kinesis.shards import Piece, ShardKey
from connectors.spool.ledger.identity import IS_CACHE, read_identity
from connectors.spool.ledger.recovery import clear_temporary
from connectors.spool.segments.rows import RowSchema
from connectors.spool.segments.segment import SegmentReader, segment_name
from connectors.spool.segments.shapes import NUMBER_NAME
from connectors.spool.store.local import LocalStore

_LAST: Final = attrgetter("last")
CACHED_ROWS: Final = RowSchema(1, ARROW_SCHEMA, all_present=True)
"""A new column gets a new version. Rows of older segments, which lack it, are polled: that fills the column."""


@dataclass(frozen=True, slots=True)
class CachedRange:
    """A run of rows of one shard in one segment, read ``after`` a position, from record ``first`` to record ``last``.

    Its rows begin at index ``row`` of the segment. ``segment`` and ``digest`` are empty while it is being written.
    """

    key: ShardKey
    created_ms: int
    after: Position
    first: int
    last: int
    arrival_ms: int
    ended: bool
    rows: int
    records: int
    size: int
    deaggregate: bool
    segment: str = ""
    digest: str = ""
    row: int = 0

    def note(self) -> dict[str, Any]:
        """Return the note in the footer of its segment; numbers are texts, as they have 56 digits."""
        return {
            "stream": self.key[0],
            "created": self.created_ms,
            "shard": self.key[1],
            "after": str(self.after),
            "first": str(self.first),
            "last": str(self.last),
            "ts": self.arrival_ms,
            "ended": self.ended,
            "rows": self.rows,
            "records": self.records,
            "bytes": self.size,
            "deaggregate": self.deaggregate,
        }

    @classmethod
    def of_segment(cls, notes: Iterable[Mapping[str, Any]], segment: str, digest: str) -> list[CachedRange]:
        """Return a segment's cached ranges, in the order of its rows.

        Raises a `KeyError`, `TypeError` or `ValueError` for notes of another source.
        """
        ranges, row = [], 0
        for note in notes:
            cached = cls(
                key=(of_type(str, note["stream"]), of_type(str, note["shard"])),
                created_ms=whole_number(note["created"]),
                after=Position.parse(note["after"]),
                first=sequence_number(note["first"]),
                last=sequence_number(note["last"]),
                arrival_ms=whole_number(note["ts"]),
                ended=of_type(bool, note["ended"]),
                rows=whole_number(note["rows"]),
                records=whole_number(note["records"]),
                size=whole_number(note["bytes"]),
                deaggregate=of_type(bool, note["deaggregate"]),
                segment=segment,
                digest=digest,
                row=row,
            )
            if cached.first > cached.last or (
                cached.after.kind is PositionKind.AFTER and cached.after.number >= cached.first
            ):
                raise ValueError("The records of a note are not in their order")
            ranges.append(cached)
            row += cached.rows
        return ranges

    def follows(self, position: Position) -> bool:
        """Return whether it holds everything that comes right after a position, and something does."""
        if position.kind is not PositionKind.AFTER:
            return self.after == position  # no record's: only what was read from exactly there follows
        reaches = self.after.kind is PositionKind.AFTER and self.after.number <= position.number
        return self.last > position.number and (reaches or self.first <= position.number)

    def start_after_gap(self, position: Position) -> Position | None:
        """Return where it counts from if there is a gap after a position; None if it may lie before it."""
        gap = {PositionKind.AFTER: 1, PositionKind.AT: 0}.get(position.kind)
        if gap is None or self.after.kind is not PositionKind.AFTER or self.after.number < position.number + gap:
            return None
        return self.after


@dataclass(slots=True)
class CachedRanges:
    """The cached ranges of one shard, in the order of their last records."""

    _ranges: list[CachedRange] = field(default_factory=list)

    def __iter__(self) -> Iterator[CachedRange]:
        return iter(self._ranges)

    def add(self, cached: CachedRange) -> None:
        insort(self._ranges, cached, key=_LAST)

    def drop_up_to(self, position: Position) -> list[CachedRange]:
        """Drop and return those that a query at a position does not need any more."""
        count = len(self._ranges) if position.kind is PositionKind.END else 0
        if position.kind is PositionKind.AFTER:
            count = bisect_right(self._ranges, position.number, key=_LAST)
        dropped, self._ranges = self._ranges[:count], self._ranges[count:]
        return dropped

    def newest(self) -> int | None:
        return self._ranges[-1].last if self._ranges else None

    def chain(self, begin: Position) -> Iterator[CachedRange]:
        position = begin
        start = bisect_right(self._ranges, begin.number, key=_LAST) if begin.kind is PositionKind.AFTER else 0
        for cached in self._ranges[start:]:
            if cached.follows(position):
                yield cached
                if cached.ended:
                    return
                position = after(cached.last)

    def pieces(self, begin: Position, end: Position) -> tuple[Piece, ...]:
        """Return the parts of a range, up to AFTER a record or END, that are cached; there may be gaps."""
        pieces: list[Piece] = []
        position = begin
        for cached in self._ranges:
            if position.kind is PositionKind.AFTER and cached.last <= position.number:
                continue
            if end.kind is PositionKind.AFTER and cached.first > end.number:
                break
            start = position if cached.follows(position) else cached.start_after_gap(position)
            if start is None:
                continue
            last = min(cached.last, end.number) if end.kind is PositionKind.AFTER else cached.last
            ended = cached.ended and last == cached.last and end.kind is PositionKind.END
            rows = (cached.row, cached.row + cached.rows)
            pieces.append(Piece(cached.segment, cached.digest, *rows, start, last, ended))
            position = END if ended else after(last)
            if position == end:
                break
        return tuple(pieces)


_log = logging.getLogger(__name__)
_INBOX: Final = "inbox"


def spool_id(endpoint: str | None, region: str | None) -> str:
    """Return what segments say that they belong to: the service that their records came from."""
    return hashlib.blake2b(f"{FORMAT} {endpoint} {region}".encode(), digest_size=8).hexdigest()


class SpoolIndex:
    """The cached ranges of a spool, for any thread; ``spool`` is its `spool_id`.

    Segments written with another value of ``deaggregate`` are ignored.
    """

    def __init__(self, root: str, spool: str, *, deaggregate: bool) -> None:
        self._store = LocalStore(root, "reader")
        self._spool = spool
        self._deaggregate = deaggregate
        self._lock = threading.Lock()
        self._shards: dict[tuple[ShardKey, int], CachedRanges] = defaultdict(CachedRanges)
        self._left: dict[str, int] = {}
        """How many ranges of a segment are left."""
        self._sizes: dict[str, int] = {}
        self._next: dict[str, int] = {}
        """The number of the next segment of a fetcher."""
        self.lost = 0
        """Grows when a segment is gone, damaged or foreign: whose records it held is not known."""

    def open(self) -> None:
        """Make the folder, index it, and remove the half-written segments of killed fetchers.

        Raises a `SpoolError` for a folder of another connector, whose segments must not be touched.
        """
        self.make()
        for fetcher in self.fetchers():
            self.add_folder(fetcher)
            self._remove_folders([fetcher])
        with contextlib.suppress(OSError, SpoolError):
            clear_temporary(self._store)

    def clear(self) -> None:
        with self._lock:
            names = list(self._left)
            self._shards.clear()
            self._left.clear()
            self._sizes.clear()
        for name in names:
            self._delete(name)
        self._remove_folders({name.split("/")[1] for name in names})

    def fetchers(self) -> list[str]:
        return self._store.list(_INBOX)

    def make(self) -> None:
        """Make the folder, where it is gone; the errors are those of `open`."""
        self._store.make_root()
        try:
            identity = read_identity(self._store)
        except SpoolError as error:
            identity = None
            if error.code != IS_CACHE and not isinstance(error, SpoolDamagedError):
                raise
        if identity is not None:
            raise self._other(f"The folder is the spool of {identity.connector}, which holds what is nowhere else")
        if self._store.list("ledger") or self._store.list("epochs"):
            raise self._other("The folder holds parts of a spool of another connector")

    def _other(self, what: str) -> SpoolError:
        return SpoolError("SPOOL_OTHER_SOURCE", what, self._store.root)

    def add_folder(self, fetcher: str, newest: int = -1) -> list[ShardKey]:
        """Read the segments of a fetcher after ``newest``; return the shards that they have."""
        names = [name.partition(".")[0] for name in self._store.list(f"{_INBOX}/{fetcher}")]
        first = self._next.get(fetcher, 0)
        new = sorted({number for name in names if NUMBER_NAME.fullmatch(name) and (number := int(name)) >= first})
        self.lost += max([newest, *new]) + 1 - first > len(new)
        self._next[fetcher] = max(first, newest + 1)
        return [key for number in new for key in self.add(fetcher, number)]

    def add(self, fetcher: str, number: int) -> list[ShardKey]:
        self._next[fetcher] = max(self._next.get(fetcher, 0), number + 1)
        name = segment_name(fetcher, number)
        ranges = self._read(name)
        if not ranges:
            self.lost += 1
            self._delete(name)
            return []
        with self._lock:
            if name in self._left:
                return []
            self._left[name] = len(ranges)
            self._sizes[name] = sum(cached.size for cached in ranges)
            for cached in ranges:
                self._shards[cached.key, cached.created_ms].add(cached)
        return [cached.key for cached in ranges]

    def _read(self, name: str) -> list[CachedRange]:
        try:
            reader = SegmentReader(self._store, name)
            if reader.spool != self._spool:
                return []
            reader.check_rows(CACHED_ROWS)
            ranges = CachedRange.of_segment(reader.notes, name, reader.info.digest)
            whole = sum(cached.rows for cached in ranges) == reader.info.rows
            return ranges if whole and all(cached.deaggregate == self._deaggregate for cached in ranges) else []
        except (SpoolError, OSError, KeyError, TypeError, ValueError) as error:
            _log.warning(
                "[KINESIS_SPOOL_IGNORED] A segment is not used. The query polls its records instead: %s", error
            )
            return []

    @property
    def size(self) -> int:
        """Bytes of data of the segments that were not freed."""
        with self._lock:
            return sum(self._sizes.values())

    def chain(self, key: ShardKey, created_ms: int, begin: Position) -> tuple[int, CachedRange | None]:
        """Return the newest record of a shard, -1 without one, and the last cached range that a chain leads to."""
        with self._lock:
            ranges = self._shards[key, created_ms]
            last = max(ranges.chain(begin), key=lambda cached: cached.last, default=None)
            return ranges.newest() or -1, last

    def pieces(self, key: ShardKey, created_ms: int, begin: Position, end: Position) -> tuple[Piece, ...]:
        with self._lock:
            return self._shards[key, created_ms].pieces(begin, end)

    def free(self, read: Streams, followed: Collection[ShardKey], running: Collection[str]) -> None:
        """Delete what no batch needs any more, after the streams were read durably up to these states."""
        freed: list[str] = []
        with self._lock:
            for (key, _), ranges in self._shards.items():
                stream = read.get(key[0])
                if stream is None:
                    continue
                state = stream.shards.get(key[1], NEW if key in followed else ShardState(END))
                for cached in ranges.drop_up_to(state.position):
                    self._left[cached.segment] -= 1
                    if self._left[cached.segment] == 0:
                        del self._left[cached.segment], self._sizes[cached.segment]
                        freed.append(cached.segment)
        failpoint("kinesis.before_free")
        for name in freed:
            self._delete(name)
        failpoint("kinesis.after_free")
        self._remove_folders({name.split("/")[1] for name in freed} - set(running))

    def _delete(self, name: str) -> None:
        """Delete a segment if possible; one that stays is read again at the next start."""
        with contextlib.suppress(OSError, SpoolError):
            self._store.delete(name)

    def _remove_folders(self, fetchers: Iterable[str]) -> None:
        for fetcher in fetchers:
            with contextlib.suppress(OSError, SpoolError):
                self._store.remove_unlocked_folder(f"{_INBOX}/{fetcher}")
