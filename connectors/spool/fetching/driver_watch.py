"""What a fetcher sees of its reader when that is elsewhere: whether it lives, and how much may be fetched.

Both are in the ledger. The reader writes a record at least every `heartbeat_seconds`, and announces in some of them
the room that is left, as it tells it to fetchers of its own by their pipes (rule R6)::

    "room": {"bytes": <room>, "through": {"<fetcher>": <highest admitted number>, ...}}

So a fetcher counts the segments of its own folder above that number, and may have its share of the room in these. It
pauses when it has, and when the newest record is too old: without a reader it fills no disk and no bucket.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Final

from connectors.core.errors import SpoolError
from connectors.spool.fetching.target import FetchPlan
from connectors.spool.ledger.fencing import claimed_epochs
from connectors.spool.ledger.records import Place, read_record
from connectors.spool.store.base import Store

__all__ = ["LEAST_RECORDS", "NO_READER", "ROOM", "Published", "ReaderWatch", "Seen", "heartbeat_seconds", "share_of"]

ROOM: Final = "room"
"""The key of a ledger's record under which the reader announces room; a state is the same with and without it."""

NO_READER: Final = "SPOOL_NO_READER"
"""The code of the error that a fetcher reports while it pauses because there is no reader."""

LEAST_RECORDS: Final = 32
"""So many records, at most, the reader appends between two announcements."""

_RECORDS_SEARCHED: Final = 4 * LEAST_RECORDS
_LONGEST_HEARTBEAT: Final = 60.0
_HEARTBEATS_IN_AGE: Final = 4
_LOOK_FOR_EPOCH_AGE: Final = 5.0


def heartbeat_seconds(max_reader_age: float) -> float:
    """How often a reader appends a record at least, so that its fetchers do not take it for gone."""
    return min(_LONGEST_HEARTBEAT, max_reader_age / _HEARTBEATS_IN_AGE)


def share_of(room: int, fetchers: int) -> int:
    """What each fetcher may add; at least one byte while there is any room, because a fetcher may go over its share."""
    return max(room // fetchers, 1) if room > 0 else 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look gives.

    Attributes:
        age: seconds since the newest record of the ledger was written.
        allowance: bytes of rows that may be fetched in the whole life of the fetcher.
    """

    age: float
    allowance: int


class Published:
    """Bytes of rows in the segments that a fetcher has published, up to each number; of those admitted only their sum.

    One thread adds, another one asks and forgets.
    """

    def __init__(self) -> None:
        self.segments = 0
        self.bytes = 0
        self._forgotten = 0
        self._base = 0
        self._totals: list[int] = []

    def add(self, number_of_bytes: int) -> None:
        """One more segment."""
        self.bytes += number_of_bytes
        self._totals.append(self.bytes)
        self.segments += 1

    def up_to(self, segments: int) -> int:
        """Bytes of the first so many segments, at most of all; at least of those that were forgotten."""
        known = min(segments - self._forgotten, len(self._totals))
        return self._totals[known - 1] if known > 0 else self._base

    def forget(self, segments: int) -> None:
        """Keep only the sum of the first so many."""
        known = min(segments - self._forgotten, len(self._totals))
        if known > 0:
            self._base = self._totals[known - 1]
            self._forgotten += known
            del self._totals[:known]


class ReaderWatch:
    """Looks at the ledger for one fetcher.

    Ages come from the store's own times: at the first look by those of the newest record and of the fetcher's own
    folder, which was made a moment ago; from then on by how long no newer record was seen. No two clocks are compared.

    Args:
        store: where the spool is.
        plan: what the fetcher was told.
        fetcher: its name.
    """

    def __init__(self, store: Store, plan: FetchPlan, fetcher: str) -> None:
        self._store = store
        self._plan = plan
        self._fetcher = fetcher
        self._began = time.monotonic()
        self._made = store.written("inbox").get(fetcher)
        self._epoch = 0
        self._newest: tuple[int, int] | None = None
        self._newest_age = 0.0
        self._newest_seen = self._began
        self._searched_to = (0, -1)
        self._admitted = 0
        self._room = plan.max_spool_bytes

    def look(self, published: Published) -> Seen:
        """Look at the newest records.

        Args:
            published: what the fetcher has published; what was admitted of it is forgotten here.

        Raises:
            OSError: the store does not answer.
            SpoolDamagedError: a record is damaged.
            ConnectorError: the store refuses.
        """
        times = self._times()
        self._see_newest(times)
        age = self._newest_age + time.monotonic() - self._newest_seen
        if self._is_running_out(published):
            self._search_room(times)
            published.forget(self._admitted)
        allowance = self._counted(published) + share_of(self._room, self._plan.share_of)
        return Seen(age, allowance)

    def _is_running_out(self, published: Published) -> bool:
        """Whether it matters now how much room there is; else no record is read."""
        if self._searched_to == (0, -1):
            return True
        left = self._counted(published) + share_of(self._room, self._plan.share_of) - published.bytes
        return left <= share_of(self._plan.max_spool_bytes, self._plan.share_of) // 2

    def _counted(self, published: Published) -> int:
        """Bytes of the segments that were admitted when the room was announced."""
        return published.up_to(self._admitted)

    def _times(self) -> dict[int, float]:
        """When each record of the newest epoch that has some was written."""
        times: dict[int, float] = {}
        if self._epoch:
            times = self._of_epoch(self._epoch)
        if times and self._newest_age + time.monotonic() - self._newest_seen < _LOOK_FOR_EPOCH_AGE:
            return times
        for epoch in reversed(claimed_epochs(self._store)):
            if epoch <= self._epoch:
                break
            if later := self._of_epoch(epoch):
                self._epoch = epoch
                return later
        return times

    def _of_epoch(self, epoch: int) -> dict[int, float]:
        written = self._store.written(f"ledger/{epoch}")
        return {int(name): at for name, at in written.items() if name.isdigit()}

    def _see_newest(self, times: dict[int, float]) -> None:
        newest = (self._epoch, max(times, default=-1))
        if newest == self._newest:
            return
        if not times and self._newest is not None:
            raise SpoolError(
                "SPOOL_MISSING",
                "The ledger of the spool is not there any more",
                self._store.root,
                "If the spool was wiped, end these fetchers; else restore it from a backup.",
            )
        if self._newest is None and times and self._made is not None:
            self._newest_age = max(self._made - times[newest[1]], 0.0)
        else:
            self._newest_age = 0.0
        self._newest, self._newest_seen = newest, time.monotonic()

    def _search_room(self, times: dict[int, float]) -> None:
        """Find the newest announcement among the records that were not searched yet."""
        epoch, searched = self._searched_to
        last = max(times, default=-1)
        first = max(searched if epoch == self._epoch else -1, last - _RECORDS_SEARCHED)
        for number in range(last, first, -1):
            # A record may be trimmed between the list and this.
            with contextlib.suppress(FileNotFoundError):
                room = read_record(self._store, Place(self._plan.spool, self._epoch, number)).get(ROOM)
                if room is not None:
                    self._room = int(room["bytes"])
                    self._admitted = int(room["through"].get(self._fetcher, -1)) + 1
                    break
        if last >= 0:
            self._searched_to = (self._epoch, last)
