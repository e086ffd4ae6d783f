"""Fetchers that run outside of the query's driver, as the stream sees them (``fetch=external``).

They are reached by the spool alone: what they publish is found by looking, and what they may fetch is announced in
records of the ledger; see `connectors.spool.fetching.driver_watch`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from connectors.core.errors import ConnectorError
from connectors.spool.fetching.child import FetcherStatus
from connectors.spool.fetching.driver_watch import LEAST_RECORDS, ROOM, heartbeat_seconds
from connectors.spool.ledger.ledger import Ledger

__all__ = ["ExternalFetching"]

_log = logging.getLogger(__name__)

_SOONEST: Final = 1.0
"""Seconds between two announcements, at least."""

_STEP: Final = 64
"""It is time to announce when this part of the room has been used up, or its size has changed by as much."""

_NOBODY = (FetcherStatus(index=0),)


class ExternalFetching:
    """See `connectors.spool.stream.background.Fetching`.

    Args:
        ledger: of the spool.
        max_reader_age: seconds without a record after which the fetchers pause.
    """

    def __init__(self, ledger: Ledger, max_reader_age: float) -> None:
        self._ledger = ledger
        self._heartbeat = heartbeat_seconds(max_reader_age)
        self._announced: tuple[float, int, int, int] | None = None
        self._next_look = 0.0
        self._present = False
        self._warned = False

    def allow(self, free_bytes: int) -> None:
        """Announce the room there is, when that is news or it is time for a sign of life."""
        ledger = self._ledger
        with ledger.lock:
            if self._is_due(free_bytes):
                through = dict(ledger.state.fetchers)
                ledger.append({ROOM: {"bytes": free_bytes, "through": through}})
                self._announced = (time.monotonic(), free_bytes, ledger.state.bytes, ledger.state.number)

    def status(self) -> Sequence[FetcherStatus]:
        """Nothing while a fetcher is seen; one that is not healthy while none is."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + max(self._ledger.store.look_seconds, _SOONEST)
            self._present = self._look()
            if not self._present and not self._warned:
                self._warned = True
                _log.warning(
                    "[SPOOL_NO_FETCHER] fetch is external, and no fetcher is at work on %s. Start connectors fetch or "
                    "fetch_on_executors with the same options.",
                    self._ledger.store.root,
                )
        return () if self._present else _NOBODY

    def terminal_error(self) -> ConnectorError | None:
        """None: fetchers elsewhere say there what is wrong with them."""
        return None

    def stop(self) -> None:
        """Nothing: they pause by themselves."""

    def _look(self) -> bool:
        store = self._ledger.store
        folders = (f"inbox/{name}" for name in store.list("inbox"))
        return any(store.is_locked(folder) or store.held_elsewhere(folder) for folder in folders)

    def _is_due(self, free_bytes: int) -> bool:
        if self._announced is None:
            return True
        at, room, row_bytes, number = self._announced
        state, waited = self._ledger.state, time.monotonic() - at
        if waited >= self._heartbeat:
            return True
        used, step = state.bytes - row_bytes, max(room // _STEP, 1)
        news = used >= step or abs(free_bytes - room) >= step or (state.number - number >= LEAST_RECORDS and used > 0)
        return news and waited >= min(_SOONEST, self._heartbeat)
