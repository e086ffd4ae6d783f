"""Fetchers outside of the source process (``fetch=external``): beside executors, or in a program of their own.

They are the same processes that a source process starts, with the same plans. What it would send them by their pipes
they find in the spool: see `connectors.spool.fetching.room`. They pause when they have used up their share of the room,
and when the newest record is too old: without a reader they fill no disk and no bucket.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from connectors.core.errors import ConnectorError, SpoolError, declared_action
from connectors.core.retry import WaitLog
from connectors.spool.fetching.group import FetcherGroup, FetcherStatus
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.fetching.process import NO_READER
from connectors.spool.fetching.room import MAX_RECORDS_BETWEEN, Room, heartbeat_seconds
from connectors.spool.ledger.identity import SpoolIdentity, check_identity, read_identity
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.recovery import read_state
from connectors.spool.segments.segment import segment_name
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.2
_CHECK_SECONDS: Final = 1.0
_OWNER_BYTES: Final = 8
_SHORTEST_PAUSE: Final = 1.0  # between two announcements
_STEP: Final = 64
"""It is time to announce when this part of the room has been used up, or its size has changed by as much."""
_NOBODY: Final = (FetcherStatus(index=0),)


class ExternalFetching:
    """External fetchers, seen from the source process; see `connectors.spool.stream.admission.Fetching`.

    They pause after `max_reader_age` seconds without a record.
    """

    def __init__(self, ledger: Ledger, max_reader_age: float) -> None:
        self._ledger = ledger
        self._heartbeat = heartbeat_seconds(max_reader_age)
        self._announced: tuple[float, int, int, int] | None = None
        self._next_check = 0.0
        self._present = False
        self._warned = False

    def allow(self, free_bytes: int) -> None:
        """Announce the room there is, when it has changed or a heartbeat is due."""
        if self._is_due(free_bytes):
            state = self._ledger.append(lambda state: Room(free_bytes, state.fetchers).to_record())
            self._announced = (time.monotonic(), free_bytes, state.bytes, state.number)

    def status(self) -> Sequence[FetcherStatus]:
        """Return nothing while a fetcher is seen; one that is not healthy while none is."""
        store, now = self._ledger.store, time.monotonic()
        if now >= self._next_check:
            self._next_check = now + max(store.look_seconds, _SHORTEST_PAUSE)
            folders = (f"inbox/{name}" for name in store.list("inbox"))
            self._present = any(store.is_locked(folder) or store.held_elsewhere(folder) for folder in folders)
            if not self._present and not self._warned:
                self._warned = True
                _log.warning(
                    "[SPOOL_NO_FETCHER] fetch is external, but no fetcher is working on %s. %s",
                    store.root,
                    declared_action("SPOOL_NO_FETCHER"),
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
        used, step = state.bytes - row_bytes, max(room // _STEP, 1)
        many_records = state.number - number >= MAX_RECORDS_BETWEEN
        changed = used >= step or abs(free_bytes - room) >= step or (many_records and used > 0)
        return waited >= self._heartbeat or (changed and waited >= _SHORTEST_PAUSE)


def wait_for_spool(
    root: str, access: StoreAccess, connector: str, sources: Sequence[str], patience: float
) -> SpoolIdentity:
    """Return the identity of a spool, as soon as a query has made it.

    Raises `SpoolError` if there is none after `patience` seconds, or it belongs to other sources.
    """
    store = open_store(root, secrets.token_hex(_OWNER_BYTES), access)
    end = time.monotonic() + patience
    log = WaitLog(lambda: f"a query to make the spool {root}")
    while (identity := read_identity(store)) is None:
        if time.monotonic() > end:
            raise SpoolError("SPOOL_NOT_FOUND", f"There is no spool here, even after {patience:g} s", root)
        log.tick()
        time.sleep(min(_CHECK_SECONDS, patience))
    if (identity.connector, identity.sources) != (connector, tuple(sources)):
        raise SpoolError(
            "SPOOL_OTHER_SOURCE",
            f"The spool holds {identity.connector} {', '.join(identity.sources)}, but the fetchers are to fetch "
            f"{connector} {', '.join(sources)}",
            root,
        )
    return identity


def run_fetchers(
    plans: Sequence[FetchPlan],
    processes: int,
    stopped: threading.Event,
    *,
    report: Callable[[Sequence[FetcherStatus]], None] = lambda _statuses: None,
    outlive_reader: bool = True,
) -> None:
    """Run fetchers until `stopped` is set; those that die are replaced. What they hold is published or handed back.

    There is one plan for each source of the spool, with `processes` processes. `report` receives their states, some
    times a second. Without `outlive_reader` they end when there is no reader any more, but not before
    ``maxReaderAge``: a query that is started with its fetchers may be slower than they are.

    Raises:
        SpoolError: this machine does not see the spool, or sees another one there.
        ConnectorError: what no retry can fix.
    """
    store = open_store(plans[0].root, secrets.token_hex(_OWNER_BYTES), plans[0].store_access)
    store.check_visible()
    check_identity(store, plans[0].spool)
    group = FetcherGroup(may_start=_start_check(store))
    for plan in plans:
        group.add(plan, processes)
    group.start()
    end_from = float("inf") if outlive_reader else time.monotonic() + plans[0].max_reader_age
    try:
        while not stopped.wait(_POLL_SECONDS):
            error = group.terminal_error()
            if error is not None:
                raise error
            statuses = group.status()
            report(statuses)
            readerless = all(status.error is not None and status.error.code == NO_READER for status in statuses)
            if readerless and time.monotonic() > end_from:
                _log.warning("the query is gone: these fetchers end")
                return
    finally:
        group.stop()


def _start_check(store: Store) -> Callable[[FetchPlan, set[str]], bool]:
    """Return what tells a `FetcherGroup` whether a fetcher may start; it reads the ledger once a second a source.

    The query has carried out the seek of the options, and has begun no other: what a fetcher received before would keep
    the seek waiting for that fetcher. An order has no other fetcher (rule R3).
    """
    seek_log = WaitLog(lambda: f"the query on {store.root} to carry out the seek of its options")
    next_checks: dict[int, float] = {}

    def may_start(plan: FetchPlan, others: set[str]) -> bool:
        now = time.monotonic()
        if now < next_checks.get(plan.source, 0.0):
            return False
        next_checks[plan.source] = now + _CHECK_SECONDS
        try:
            state = read_state(store, plan.spool)
            seek = state.seek or {"value": {}, "done": True}
            if not seek["done"] or not plan.seek.items() <= seek["value"].items():
                seek_log.tick()
                return False
            return not plan.ordered or all(
                store.close_folder(f"inbox/{fetcher}", segment_name(fetcher, state.fetchers.get(fetcher, -1) + 1))
                for fetcher in store.list("inbox")
                if fetcher not in others
            )
        except (OSError, ConnectorError) as error:
            if isinstance(error, SpoolError) and error.code == "SPOOL_MISSING":
                raise
            _log.warning("a fetcher cannot start yet: %s", error)
            return False

    return may_start
