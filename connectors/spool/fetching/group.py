"""The fetcher processes of a spool, seen from their parent: start, supervise, hold back, stop.

Fetchers are children made by `subprocess` only (a fork of a process that uses gRPC hangs). Each gets its plan, with the
secrets in it, as the first line of its standard input, and ends when that pipe ends: so it does not matter how the
parent ends, and Spark kills a source process without warning. One thread supervises them: it reads their reports, and
replaces a dead one by a new process with a new folder, after a pause that grows.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from connectors.core.errors import ConnectorError
from connectors.spool.fetching.child import FetcherChild, FetcherStatus, share_of
from connectors.spool.fetching.target import FetchPlan
from connectors.spool.store import open_store
from connectors.spool.store.local import TEMPORARY_FOLDER

__all__ = ["FetcherGroup", "FetcherGroups"]

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.05
_START_PAUSE: Final = 1.0
_MAX_FAILED_STARTS: Final = 5


class FetcherGroup:
    """The fetchers of one source of a spool; the callbacks run in the supervising thread.

    Args:
        plan: for each of them.
        count: how many.
        on_published: receives the fetcher's name and the segment's number; a dying fetcher may publish without a
            report, so the folder itself is the truth.
        may_start: asked before each start; the start waits until it returns True. A subscription with message
            ordering uses it to wait until every earlier folder is unlocked and admitted (rule R3).
        free_bytes: as in `allow`; None for no limit.
        on_note: receives the place of a fetcher and what its target has noted; None when its process has ended.
    """

    def __init__(
        self,
        plan: FetchPlan,
        count: int,
        *,
        on_published: Callable[[str, int], None] = lambda _fetcher, _number: None,
        may_start: Callable[[], bool] = lambda: True,
        free_bytes: int | None = None,
        on_note: Callable[[int, Any], None] = lambda _index, _value: None,
    ) -> None:
        self._plan = plan
        self._on_published = on_published
        self._may_start = may_start
        self._free_bytes = free_bytes
        self._on_note = on_note
        self._published_since = 0
        self._children = [FetcherChild(index) for index in range(count)]
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._kill_at = float("inf")
        self._terminal: ConnectorError | None = None
        self._thread = threading.Thread(target=self._supervise, name="fetchers", daemon=True)

    def start(self) -> None:
        """Start them; returns at once."""
        self._thread.start()

    def allow(self, free_bytes: int) -> None:
        """Let the fetchers add so many bytes of rows, together, to the segments reported so far.

        Cheap; to be called whenever rows were admitted or committed. A fetcher with anything left of its share may
        exceed it by one response a stream; so pass at least one byte when nothing is left to read.
        """
        with self._lock:
            self._free_bytes, self._published_since = free_bytes, 0
            for child in self._children:
                child.allow(share_of(free_bytes, len(self._children)))

    def order(self, index: int, name: str, value: Any) -> None:
        """Tell the fetcher in a place, and each that follows there, what is wanted of it now.

        The value is JSON of at most 4 kB; it replaces the one of this name, and None withdraws it.
        """
        with self._lock:
            self._children[index].order(name, value)

    def status(self) -> list[FetcherStatus]:
        """Return the state of each, from memory."""
        with self._lock:
            return [child.status() for child in self._children]

    @property
    def healthy(self) -> bool:
        """Whether all of them have all their streams open and no trouble."""
        return all(status.healthy for status in self.status())

    def terminal_error(self) -> ConnectorError | None:
        """Return the error that no retry can fix, if there was one: all fetchers end then, and none is restarted."""
        return self._terminal

    def stop(self, timeout: float = 5.0) -> None:
        """End all of them, as they do at the end of their input; those that take longer than `timeout` are killed."""
        self._kill_at = time.monotonic() + timeout
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def kill(self) -> None:
        """Kill all of them; what they hold is redelivered when its leases expire."""
        self.stop(timeout=0.0)

    # The supervising thread.

    def _supervise(self) -> None:
        with selectors.DefaultSelector() as selector:
            running = True
            while running:
                try:
                    running = self._step(selector)
                    for key, _ in selector.select(_POLL_SECONDS):
                        if not self._read(key.data):
                            # The pipe has ended, the process is about to; until then it would be readable all the time.
                            selector.unregister(key.fileobj)
                except ConnectorError as error:
                    self._terminal = self._terminal or error
                except Exception as error:  # noqa: BLE001 - it is raised to the query, which stops
                    _log.exception("the supervision of the fetchers failed; all of them end")
                    self._terminal = self._terminal or ConnectorError(
                        "FETCHERS_UNSUPERVISED",
                        f"The supervision of the fetchers failed with {type(error).__name__}",
                        "driver",
                        "The driver's log has the stack; start the query again.",
                    )
                    time.sleep(_POLL_SECONDS)

    def _step(self, selector: selectors.BaseSelector) -> bool:
        """Start, reap and stop what is due; False when all have ended for good."""
        stopping = self._stopping.is_set() or self._terminal is not None
        now = time.monotonic()
        for child in self._children:
            if child.process is None:
                if not stopping and now >= child.start_at:
                    self._start(selector, child)
                continue
            with self._lock:
                if stopping:
                    child.hang_up()
                else:
                    child.send_orders()
            if stopping and now >= self._kill_at:
                child.process.kill()
            if child.process.poll() is not None:
                self._reap(selector, child)
        return not stopping or any(child.process is not None for child in self._children)

    def _start(self, selector: selectors.BaseSelector, child: FetcherChild) -> None:
        """Start a process, if it may start; tried again later if the store does not answer or the system refuses."""
        try:
            if not self._may_start():
                return
            with self._lock:
                free = None if self._free_bytes is None else self._free_bytes - self._published_since
                child.start(self._plan, None if free is None else share_of(free, len(self._children)))
        except OSError as error:
            _log.warning("a fetcher cannot be started now: %s", error)
            child.start_at = time.monotonic() + _START_PAUSE
            return
        selector.register(child.reports, selectors.EVENT_READ, child)

    def _reap(self, selector: selectors.BaseSelector, child: FetcherChild) -> None:
        self._read(child)
        with contextlib.suppress(KeyError):
            selector.unregister(child.reports)
        fetcher = child.fetcher
        with self._lock:
            code = child.reap()
            last = child.error
            if child.failed_starts >= _MAX_FAILED_STARTS and self._terminal is None:
                self._terminal = ConnectorError(
                    "FETCHER_CANNOT_START",
                    f"Fetcher processes ended {_MAX_FAILED_STARTS} times before they were ready"
                    f"{'' if last is None else f'; the last one: {last.what}'}",
                    "" if last is None else last.where,
                    "The driver's log has what they wrote; fix it and start the query again.",
                )
        if not self._stopping.is_set() and self._terminal is None:
            pause = child.start_at - time.monotonic()
            _log.warning("a fetcher ended with code %s; the next one starts in %.1f s", code, pause)
        self._on_note(child.index, None)
        if fetcher is not None:
            self._clear_temporary(fetcher)

    def _clear_temporary(self, fetcher: str) -> None:
        """Delete the half-written segments of a process that has ended."""
        store = open_store(self._plan.root, "", self._plan.store_access)
        try:
            for name in store.list(TEMPORARY_FOLDER):
                if name.startswith(f"{fetcher}-"):
                    store.delete(f"{TEMPORARY_FOLDER}/{name}")
        except OSError as error:
            # They are also deleted when the next writer opens the spool.
            _log.warning("temporary files of a fetcher cannot be removed: %s", error)

    def _read(self, child: FetcherChild) -> bool:
        """Read what a child has reported; False if there was nothing."""
        reports = list(child.read())
        for report in reports:
            self._receive(child, report)
        return bool(reports)

    def _receive(self, child: FetcherChild, report: Mapping[str, Any]) -> None:
        if "published" in report and child.fetcher is not None:
            self._on_published(child.fetcher, report["published"]["number"])
        if "note" in report:
            self._on_note(child.index, report["note"])
        with self._lock:
            terminal = child.receive(report)
            if terminal is not None and self._terminal is None:
                self._terminal = terminal
            if "published" in report:
                self._published_since += report["published"]["bytes"]


class FetcherGroups:
    """The groups of all sources of a spool; see `connectors.spool.stream.background.Fetching`."""

    def __init__(self) -> None:
        self._groups: list[FetcherGroup] = []

    def add(self, group: FetcherGroup) -> None:
        """Add the fetchers of one more source, before `start`."""
        self._groups.append(group)

    def start(self) -> None:
        """Start all of them; returns at once."""
        for group in self._groups:
            group.start()

    def running_beside(self, group: FetcherGroup | None) -> set[str]:
        """Return the names of the fetchers that run for other sources than that of a group."""
        others = [status for other in self._groups if other is not group for status in other.status()]
        return {status.fetcher for status in others if status.fetcher is not None}

    def allow(self, free_bytes: int) -> None:
        """Share what may be fetched among the sources: at least one byte each while anything is free."""
        for group in self._groups:
            group.allow(share_of(free_bytes, len(self._groups)))

    def status(self) -> Sequence[FetcherStatus]:
        """Return the state of each fetcher, source by source."""
        return [status for group in self._groups for status in group.status()]

    def terminal_error(self) -> ConnectorError | None:
        """Return the first error that stops the query, if there is one."""
        return next((error for group in self._groups if (error := group.terminal_error()) is not None), None)

    def stop(self) -> None:
        """End all of them, at the same time."""
        with ThreadPoolExecutor(len(self._groups)) as pool:
            list(pool.map(FetcherGroup.stop, self._groups))
