"""Running the fetchers of a spool outside of the query that reads it: in a task of Spark, or in a program of its own.

They are the same processes that a source process starts. What that would tell them is found in the spool: whether it
lives and what it allows (`connectors.spool.fetching.external`), and whether a fetcher may start.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from connectors.core.errors import ConnectorError, OptionError, SpoolError
from connectors.core.formats import CONNECTORS, Connector
from connectors.spool.fetching.external import NO_READER
from connectors.spool.fetching.group import FetcherGroup, FetcherGroups
from connectors.spool.fetching.target import FetchPlan
from connectors.spool.ledger.identity import SpoolIdentity, check_identity, read_identity
from connectors.spool.ledger.recovery import read_state
from connectors.spool.segments.segment import segment_name
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess

__all__ = ["external_connector", "external_plans", "fetch_in_task", "run_fetchers", "wait_for_spool"]

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 1.0
_OWNER_BYTES: Final = 8


def wait_for_spool(
    root: str, access: StoreAccess, connector: str, sources: Sequence[str], patience: float
) -> SpoolIdentity:
    """Return the identity of a spool, as soon as a query has made it.

    Raises:
        SpoolError: there is none after `patience` seconds, or it belongs to other sources.
    """
    store = open_store(root, secrets.token_hex(_OWNER_BYTES), access)
    end = time.monotonic() + patience
    while (identity := read_identity(store)) is None:
        if time.monotonic() > end:
            raise SpoolError(
                "SPOOL_NOT_FOUND",
                f"There is no spool here, also after {patience:g} s",
                root,
                "Start the query with fetch=external and the same spoolLocation; it makes the spool.",
            )
        time.sleep(min(_LOOK_SECONDS, patience))
    if (identity.connector, identity.sources) != (connector, tuple(sources)):
        raise SpoolError(
            "SPOOL_OTHER_SOURCE",
            f"The spool holds {identity.connector} {', '.join(identity.sources)}, and the fetchers are to fetch "
            f"{connector} {', '.join(sources)}",
            root,
            "Give the fetchers the options of the query.",
        )
    return identity


def run_fetchers(
    plans: Sequence[FetchPlan],
    processes: int,
    stopped: threading.Event,
    *,
    healthy: Callable[[], None] = lambda: None,
    outlive_reader: bool = True,
) -> None:
    """Run fetchers until `stopped` is set; those that die are replaced. What they hold is published or handed back.

    Args:
        plans: one for each source of the spool.
        processes: how many fetchers of each source run here.
        stopped: ends them.
        healthy: called once, when all of them are at work.
        outlive_reader: whether to wait for another reader when there is none any more. If not, that is the end, but not
            before ``maxReaderAge``: a query that is started with its fetchers may be slower than they are.

    Raises:
        SpoolError: this machine does not see the spool, or sees another one there.
        ConnectorError: what no retry can fix.
    """
    store = open_store(plans[0].root, secrets.token_hex(_OWNER_BYTES), plans[0].store_access)
    store.check_visible()
    check_identity(store, plans[0].spool)
    groups = FetcherGroups()
    for plan in plans:
        groups.add(_group(plan, processes, store, groups))
    groups.start()
    end_from = float("inf") if outlive_reader else time.monotonic() + plans[0].max_reader_age
    reported = False
    try:
        while not stopped.wait(_POLL_SECONDS):
            error = groups.terminal_error()
            if error is not None:
                raise error
            statuses = groups.status()
            if not reported and all(status.healthy for status in statuses):
                reported = True
                healthy()
            readerless = all(status.error is not None and status.error.code == NO_READER for status in statuses)
            if readerless and time.monotonic() > end_from:
                _log.warning("the query is gone: these fetchers end")
                return
    finally:
        groups.stop()


def fetch_in_task(number: int, plans: Sequence[Mapping[str, Any]]) -> int:
    """Run one fetcher of each source: a task of `connectors.executors.fetch_on_executors`. Returns its number.

    Spark kills the worker that this runs in; the fetchers see their input end then, and hand back what they hold.
    """
    run_fetchers([FetchPlan.from_json(plan) for plan in plans], 1, threading.Event(), outlive_reader=False)
    return number


def _group(plan: FetchPlan, processes: int, store: Store, groups: FetcherGroups) -> FetcherGroup:
    next_look = 0.0

    def may_start() -> bool:
        nonlocal next_look
        now = time.monotonic()
        if now < next_look:
            return False
        next_look = now + _LOOK_SECONDS
        try:
            return _may_start(plan, store, groups.running_beside(group))
        except (OSError, ConnectorError) as error:
            if isinstance(error, SpoolError) and error.code == "SPOOL_MISSING":
                raise
            _log.warning("a fetcher cannot start yet: %s", error)
            return False

    group = FetcherGroup(plan, processes, may_start=may_start)
    return group


def _may_start(plan: FetchPlan, store: Store, beside: set[str]) -> bool:
    """Whether the ledger lets a fetcher begin: no seek is under way, and an order has no other fetcher (rule R3)."""
    state = read_state(store, plan.spool)
    if state.seek is not None and not state.seek["done"]:
        return False
    return not plan.ordered or all(
        store.close_folder(f"inbox/{fetcher}", segment_name(fetcher, state.fetchers.get(fetcher, -1) + 1))
        for fetcher in store.list("inbox")
        if fetcher not in beside
    )


def external_connector(source_format: str) -> Connector:
    """Return the connector of a format. OptionError: there is none whose fetchers can run outside of a query."""
    connectors = {connector.format: connector for connector in CONNECTORS if connector.external_fetch}
    if source_format not in connectors:
        raise OptionError(
            "FORMAT_UNKNOWN",
            f"There are no fetchers of a format {source_format!r} to run outside of a query",
            "fetch",
            f"Give one of {', '.join(sorted(connectors))}.",
        )
    return connectors[source_format]


def external_plans(
    connector: Connector, raw: Mapping[str, str], environ: Mapping[str, str], fetchers: int | None
) -> list[FetchPlan]:
    """Return the plans of the fetchers for a query's options, one for each source; waits until there is a spool.

    `fetchers` is how many there are of each source, in all places together; None for what the options say.
    """
    plans: list[FetchPlan] = connector.load(connector.external_fetch)(raw, environ, fetchers)
    return plans
