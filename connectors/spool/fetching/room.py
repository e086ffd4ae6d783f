"""What a fetcher has in the spool: its folder, and room for rows, which is shared, announced and read in the ledger.

A fetcher that its source process has started receives by a pipe what it may fetch. One outside of it finds that in the
spool (rule R6). The source process appends a record to the ledger at least every `heartbeat_seconds`, and announces in
some of them the room that is left. So such a fetcher counts the segments of its own folder above the highest admitted
one, and may have its share of the room in these.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import record_damaged
from connectors.spool.ledger.identity import check_identity
from connectors.spool.segments.shapes import is_number, misfit
from connectors.spool.store import open_store
from connectors.spool.store.base import FolderHold, StoreAccess

MAX_RECORDS_BETWEEN: Final = 32
"""The most records between two announcements of room."""
_LONGEST_HEARTBEAT: Final = 60.0
_HEARTBEATS_IN_AGE: Final = 4
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
