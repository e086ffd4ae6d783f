"""The spool of a query with subscriptions, seen from its source process: which segments there are, and what they hold.

It is a cache. A file counts as missing if it is damaged, if another source wrote it, or if its columns are those of
another version.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

from connectors.core.errors import SpoolDamagedError, SpoolError
from connectors.core.processes.failpoints import failpoint
from connectors.kinesis import FORMAT
from connectors.kinesis.fan_out.cached_ranges import CACHED_ROWS, CachedRange, CachedRanges
from connectors.kinesis.offsets import END, NEW, Position, ShardState, Streams
from connectors.kinesis.shards import Piece, ShardKey
from connectors.spool.ledger.identity import IS_CACHE, read_identity
from connectors.spool.ledger.recovery import clear_temporary
from connectors.spool.segments.segment import SegmentReader, segment_name
from connectors.spool.segments.shapes import NUMBER_NAME
from connectors.spool.store.local import LocalStore

_log = logging.getLogger(__name__)
_INBOX: Final = "inbox"


def spool_id(endpoint: str | None, region: str | None) -> str:
    """Return what segments say that they belong to: the service that their records came from."""
    return hashlib.blake2b(f"{FORMAT} {endpoint} {region}".encode(), digest_size=8).hexdigest()


class SpoolIndex:
    """What the spool holds; its methods may be called by any thread.

    ``spool`` is that of `spool_id`. Segments whose aggregates were not taken apart as ``deaggregate`` says are foreign.
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
        """Make the folder, read what is in it, and remove the half-written segments of fetchers that were killed.

        Raises a `SpoolError` for a folder of another connector, whose segments must not be touched.
        """
        self.make()
        for fetcher in self.fetchers():
            self.add_folder(fetcher)
            self._remove_folders([fetcher])
        with contextlib.suppress(OSError, SpoolError):
            clear_temporary(self._store)

    def clear(self) -> None:
        """Delete all segments."""
        with self._lock:
            names = list(self._left)
            self._shards.clear()
            self._left.clear()
            self._sizes.clear()
        for name in names:
            self._delete(name)
        self._remove_folders({name.split("/")[1] for name in names})

    def fetchers(self) -> list[str]:
        """Return the fetchers that have a folder."""
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
        return SpoolError("SPOOL_OTHER_SOURCE", what, self._store.root, "Give the query a spoolLocation of its own.")

    def add_folder(self, fetcher: str, newest: int = -1) -> list[ShardKey]:
        """Read the new segments of a fetcher, of which ``newest`` existed; return the shards that they have."""
        names = [name.partition(".")[0] for name in self._store.list(f"{_INBOX}/{fetcher}")]
        first = self._next.get(fetcher, 0)
        new = sorted({number for name in names if NUMBER_NAME.fullmatch(name) and (number := int(name)) >= first})
        self.lost += max([newest, *new]) + 1 - first > len(new)
        self._next[fetcher] = max(first, newest + 1)
        return [key for number in new for key in self.add(fetcher, number)]

    def add(self, fetcher: str, number: int) -> list[ShardKey]:
        """Read a segment; return the shards that it holds something of."""
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
            _log.warning("[KINESIS_SPOOL_IGNORED] A segment is not used, and its records are polled: %s", error)
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
        """Return the parts of a range that are cached."""
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
