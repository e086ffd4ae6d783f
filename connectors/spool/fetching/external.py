"""Fetchers outside of the source process (``fetch=external``): what both sides read of each other in the spool.

The source process finds by looking what the fetchers publish. It appends a record to the ledger at least every
`heartbeat_seconds`, and announces in some of them the room that is left, which it tells fetchers of its own by their
pipes (rule R6)::

    "room": {"bytes": <room>, "through": {"<fetcher>": <highest admitted number>, ...}}

So a fetcher counts the segments of its own folder above that number, and may have its share of the room in these. It
pauses when it has, and when the newest record is too old: without a reader it fills no disk and no bucket.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connectors.core.errors import ConnectorError, SpoolError
from connectors.spool.fetching.child import FetcherStatus, share_of
from connectors.spool.fetching.target import FetchPlan
from connectors.spool.ledger.fencing import claimed_epochs
from connectors.spool.ledger.records import read_record
from connectors.spool.store.base import Store

if TYPE_CHECKING:
    from connectors.spool.ledger.ledger import Ledger  # fetchers need none of it

__all__ = ["NO_READER", "ExternalFetching", "Published", "ReaderWatch", "Seen", "heartbeat_seconds"]

NO_READER: Final = "SPOOL_NO_READER"
"""The code of the error that a fetcher reports while it pauses because there is no reader."""

_log = logging.getLogger(__name__)

_ROOM: Final = "room"
"""The key under which a record announces room; the state of a ledger is the same with and without it."""
_MAX_RECORDS_BETWEEN: Final = 32  # between two announcements
_RECORDS_SEARCHED: Final = 4 * _MAX_RECORDS_BETWEEN
_LONGEST_HEARTBEAT: Final = 60.0
_HEARTBEATS_IN_AGE: Final = 4
_EPOCH_AGE: Final = 5.0  # without a new record for so many seconds, a newer epoch is looked for
_SHORTEST_PAUSE: Final = 1.0  # between two announcements
_STEP: Final = 64
"""It is time to announce when this part of the room has been used up, or its size has changed by as much."""
_NOBODY: Final = (FetcherStatus(index=0),)


def heartbeat_seconds(max_reader_age: float) -> float:
    """Return how often a reader appends a record at least, so that its fetchers do not take it for gone."""
    return min(_LONGEST_HEARTBEAT, max_reader_age / _HEARTBEATS_IN_AGE)


class ExternalFetching:
    """External fetchers, seen from the source process; see `connectors.spool.stream.background.Fetching`.

    They pause after `max_reader_age` seconds without a record.
    """

    def __init__(self, ledger: Ledger, max_reader_age: float) -> None:
        self._ledger = ledger
        self._heartbeat = heartbeat_seconds(max_reader_age)
        self._announced: tuple[float, int, int, int] | None = None
        self._next_look = 0.0
        self._present = False
        self._warned = False

    def allow(self, free_bytes: int) -> None:
        """Announce the room there is, when that is news or a heartbeat is due."""
        ledger = self._ledger
        with ledger.lock:
            if self._is_due(free_bytes):
                through = dict(ledger.state.fetchers)
                ledger.append({_ROOM: {"bytes": free_bytes, "through": through}})
                self._announced = (time.monotonic(), free_bytes, ledger.state.bytes, ledger.state.number)

    def status(self) -> Sequence[FetcherStatus]:
        """Return nothing while a fetcher is seen; one that is not healthy while none is."""
        store, now = self._ledger.store, time.monotonic()
        if now >= self._next_look:
            self._next_look = now + max(store.look_seconds, _SHORTEST_PAUSE)
            folders = (f"inbox/{name}" for name in store.list("inbox"))
            self._present = any(store.is_locked(folder) or store.held_elsewhere(folder) for folder in folders)
            if not self._present and not self._warned:
                self._warned = True
                _log.warning(
                    "[SPOOL_NO_FETCHER] fetch is external, and no fetcher is at work on %s. Start connectors fetch or "
                    "fetch_on_executors with the same options.",
                    store.root,
                )
        return () if self._present else _NOBODY

    def terminal_error(self) -> ConnectorError | None:
        """Return None: external fetchers report their errors where they run."""
        return None

    def stop(self) -> None:
        """Do nothing: external fetchers pause by themselves."""

    def _is_due(self, free_bytes: int) -> bool:
        if self._announced is None:
            return True
        at, room, row_bytes, number = self._announced
        state, waited = self._ledger.state, time.monotonic() - at
        if waited >= self._heartbeat:
            return True
        used, step = state.bytes - row_bytes, max(room // _STEP, 1)
        many_records = state.number - number >= _MAX_RECORDS_BETWEEN
        news = used >= step or abs(free_bytes - room) >= step or (many_records and used > 0)
        return news and waited >= min(_SHORTEST_PAUSE, self._heartbeat)


@dataclass(frozen=True, slots=True)
class Seen:
    """Seconds since the newest record of the ledger was written, and bytes that the fetcher may publish in all."""

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
        """Add one more segment."""
        self.bytes += number_of_bytes
        self._totals.append(self.bytes)
        self.segments += 1

    def up_to(self, segments: int) -> int:
        """Return the bytes of the first so many segments, at most of all; at least of those that were forgotten."""
        count = min(segments - self._forgotten, len(self._totals))
        return self._totals[count - 1] if count > 0 else self._base

    def forget(self, segments: int) -> None:
        """Replace the first so many by their sum."""
        count = min(segments - self._forgotten, len(self._totals))  # once: another thread may add meanwhile
        if count > 0:
            self._base = self._totals[count - 1]
            self._forgotten += count
            del self._totals[:count]


class ReaderWatch:
    """Looks at the ledger for one fetcher.

    Ages come from the store's own times: at the first look by those of the newest record and of the fetcher's own
    folder, which was made a moment ago; from then on by how long no newer record was seen. No two clocks are compared.
    """

    def __init__(self, store: Store, plan: FetchPlan, fetcher: str) -> None:
        self._store = store
        self._plan = plan
        self._fetcher = fetcher
        self._began = time.monotonic()
        self._folder_made = store.written("inbox").get(fetcher)
        self._epoch = 0
        self._newest: tuple[int, int] | None = None
        self._newest_age = 0.0
        self._newest_seen = self._began
        self._searched_to = (0, -1)
        self._admitted = 0
        self._room = plan.max_spool_bytes

    def look(self, published: Published) -> Seen:
        """Look at the newest records, and forget in `published` what was admitted.

        Raises:
            OSError: the store does not answer.
            SpoolDamagedError: a record is damaged.
            ConnectorError: the store refuses.
        """
        times = self._record_times()
        self._see_newest(times)
        age = self._age()
        if self._is_running_out(published):
            self._search_room(times)
            published.forget(self._admitted)
        return Seen(age, published.up_to(self._admitted) + share_of(self._room, self._plan.share_of))

    def _age(self) -> float:
        return self._newest_age + time.monotonic() - self._newest_seen

    def _is_running_out(self, published: Published) -> bool:
        """Whether it matters now how much room there is; else no record is read."""
        if self._searched_to == (0, -1):
            return True
        share = share_of(self._room, self._plan.share_of)
        left = published.up_to(self._admitted) + share - published.bytes
        return left <= share_of(self._plan.max_spool_bytes, self._plan.share_of) // 2

    def _record_times(self) -> dict[int, float]:
        """Return when each record of the newest epoch that has some was written."""
        times: dict[int, float] = {}
        if self._epoch:
            times = self._of_epoch(self._epoch)
        if times and self._age() < _EPOCH_AGE:
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
        if self._newest is None and times and self._folder_made is not None:
            self._newest_age = max(self._folder_made - times[newest[1]], 0.0)
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
                room = read_record(self._store, self._plan.spool, self._epoch, number).get(_ROOM)
                if room is not None:
                    self._room = int(room["bytes"])
                    self._admitted = int(room["through"].get(self._fetcher, -1)) + 1
                    break
        if last >= 0:
            self._searched_to = (self._epoch, last)
