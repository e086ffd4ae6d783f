"""What a fetcher has in the spool: its folder, and room for rows, which is shared, announced and read in the ledger.

A fetcher that its source process has started receives by a pipe what it may fetch. One outside of it finds that in the
spool (rule R6). The source process appends a record to the ledger at least every `heartbeat_seconds`, and announces in
some of them the room that is left. So such a fetcher counts the segments of its own folder above the highest admitted
one, and may have its share of the room in these.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from connectors.core.errors import SpoolError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import record_damaged
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.ledger.identity import check_identity
from connectors.spool.ledger.records import claimed_epochs, read_record, record_name
from connectors.spool.segments.shapes import NUMBER_NAME, is_number, misfit
from connectors.spool.store import open_store
from connectors.spool.store.base import FolderHold, Store, StoreAccess

MAX_RECORDS_BETWEEN: Final = 32
"""The most records between two announcements of room."""
_RECORDS_SEARCHED: Final = 4 * MAX_RECORDS_BETWEEN
_LONGEST_HEARTBEAT: Final = 60.0
_HEARTBEATS_IN_AGE: Final = 4
_EPOCH_AGE: Final = 5.0  # without a new record for so many seconds, a newer epoch is searched for
_LOCK_TRIES: Final = 200
_LOCK_POLL: Final = 0.005
_ROOM: Final = "room"
_SHAPE: Final = {"bytes": int, "through": {"*": is_number}}


class FetcherEndedError(Exception):
    """Raised when this process must end and another may replace it, though nothing is wrong."""


class FetcherFolder:
    """The folder of one fetcher process, with its lock (rule R2); `SpoolError` if the spool of this id is not there."""

    def __init__(self, root: str, access: StoreAccess | None = None, spool: str | None = None) -> None:
        self.fetcher = secrets.token_hex(8)
        self.store = open_store(root, self.fetcher, access)
        self.name = f"inbox/{self.fetcher}"
        if spool is not None:
            check_identity(self.store, spool)
        failpoint("fetch.before_folder")
        self.store.make_folder(self.name)
        failpoint("fetch.after_folder")
        self._hold = self._acquire()

    def _acquire(self) -> FolderHold:
        for _ in range(_LOCK_TRIES):
            # A reader that tests whether the lock is free holds it for a moment, and removes the folder if it can.
            try:
                hold = self.store.hold_folder(self.name)
            except FileNotFoundError:
                break
            if hold is not None:
                if hold.is_present():
                    return hold
                hold.release()
                break
            time.sleep(_LOCK_POLL)
        raise FetcherEndedError("the folder was removed before it could be locked")

    def check(self) -> None:
        """Raise `FetcherEndedError` if nothing more can be published in the folder."""
        if not self._hold.is_present():
            raise FetcherEndedError("its folder in the spool was removed or closed")

    def release(self) -> None:
        """Release the folder; the end of a process does that too."""
        self._hold.release()


def share_of(room: int, fetchers: int) -> int:
    """Return what each fetcher may add; at least one byte while there is any room: a fetcher may exceed its share."""
    return max(room // fetchers, 1) if room > 0 else 0


def next_allowance(published: int, share: int, sent: int | None) -> int | None:
    """Return the allowance to send to a fetcher now, or None if the one it has is near enough.

    Its process has published `published` bytes of rows, and may add `share`; `sent` is the allowance it has, in all.
    """
    wanted = published + max(share, 0)
    if sent is None:
        return wanted
    step = max(share // 8, 1)
    is_far = share <= 0 or abs(wanted - sent) >= step or sent - published < step
    return wanted if is_far and wanted != sent else None


def heartbeat_seconds(max_reader_age: float) -> float:
    """Return how often a reader appends a record at least, so that its fetchers do not take it for gone."""
    return min(_LONGEST_HEARTBEAT, max_reader_age / _HEARTBEATS_IN_AGE)


@dataclass(frozen=True, slots=True)
class Room:
    """The room that a record of the ledger announces; the state of a ledger is the same with and without it.

    Attributes:
        bytes: what all fetchers together may add.
        through: the highest admitted segment of each fetcher; those above it count against the room.
    """

    bytes: int
    through: Mapping[str, int]

    def to_record(self) -> dict[str, Any]:
        return {_ROOM: {"bytes": self.bytes, "through": dict(self.through)}}

    @classmethod
    def of_record(cls, record: Mapping[str, Any], where: str) -> Self | None:
        """Return the room that a record announces; None if it announces none. `SpoolDamagedError`: it has no sense."""
        value = record.get(_ROOM)
        if value is None:
            return None
        if part := misfit(value, _SHAPE, _ROOM):
            raise record_damaged(f"A record of the ledger has a right checksum and a wrong value: {part}", where)
        return cls(value["bytes"], value["through"])


class PublishedBytes:
    """Bytes of rows in the segments that a fetcher has published, up to each number; of those admitted only their sum.

    One thread adds, another one reads and forgets.
    """

    def __init__(self) -> None:
        self.segments = 0
        self.bytes = 0
        self._forgotten = 0
        self._base = 0
        self._totals: list[int] = []

    def add(self, number_of_bytes: int) -> None:
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
    """Reads in the ledger, for a fetcher outside of the source process, whether there is a reader and what it allows.

    Ages come from the store's own times: at the first check by those of the newest record and of the fetcher's own
    folder, which was made a moment ago; from then on by how long no newer record was seen. No two clocks are compared.
    """

    def __init__(self, store: Store, plan: FetchPlan, fetcher: str) -> None:
        self._store = store
        self._plan = plan
        self._fetcher = fetcher
        self._folder_made = store.written("inbox").get(fetcher)
        self._epoch = 0
        self._newest: tuple[int, int] | None = None
        self._newest_age = 0.0
        self._newest_seen = time.monotonic()
        self._searched_to = (0, -1)
        self._admitted = 0
        self._room = plan.max_spool_bytes

    def check(self, published: PublishedBytes) -> tuple[float, int]:
        """Return the age of the newest record in seconds, and the bytes that the fetcher may publish in all.

        Forgets in `published` what was admitted. OSError: the store does not answer.
        """
        times = self._record_times()
        self._see_newest(times)
        age = self._age()
        if self._is_running_out(published):
            self._search_room(times)
            published.forget(self._admitted)
        return age, published.up_to(self._admitted) + share_of(self._room, self._plan.share_of)

    def _age(self) -> float:
        return self._newest_age + time.monotonic() - self._newest_seen

    def _is_running_out(self, published: PublishedBytes) -> bool:
        """Whether it matters now how much room there is; else no record is read."""
        if self._searched_to == (0, -1):
            return True
        share = share_of(self._room, self._plan.share_of)
        left = published.up_to(self._admitted) + share - published.bytes
        return left <= share_of(self._plan.max_spool_bytes, self._plan.share_of) // 2

    def _record_times(self) -> dict[int, float]:
        """Return when each record of the newest epoch that has some was written."""
        times = self._of_epoch(self._epoch) if self._epoch else {}
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
        return {int(name): at for name, at in written.items() if NUMBER_NAME.fullmatch(name)}

    def _see_newest(self, times: dict[int, float]) -> None:
        newest = (self._epoch, max(times, default=-1))
        if newest == self._newest:
            return
        if not times and self._newest is not None:
            raise SpoolError("SPOOL_MISSING", "The ledger of the spool is not there any more", self._store.root)
        self._newest_age = 0.0
        if self._newest is None and times and self._folder_made is not None:
            self._newest_age = max(self._folder_made - times[newest[1]], 0.0)
        self._newest, self._newest_seen = newest, time.monotonic()

    def _search_room(self, times: dict[int, float]) -> None:
        """Search the newest announcement among the records that were not searched yet."""
        epoch, searched = self._searched_to
        last = max(times, default=-1)
        first = max(searched if epoch == self._epoch else -1, last - _RECORDS_SEARCHED)
        for number in range(last, first, -1):
            # A record may be trimmed between the list and this.
            with contextlib.suppress(FileNotFoundError):
                record = read_record(self._store, self._plan.spool, self._epoch, number)
                room = Room.of_record(record, f"{self._store.root}/{record_name(self._epoch, number)}")
                if room is not None:
                    self._room = room.bytes
                    self._admitted = room.through.get(self._fetcher, -1) + 1
                    break
        if last >= 0:
            self._searched_to = (self._epoch, last)
