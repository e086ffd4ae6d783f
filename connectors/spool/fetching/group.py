"""The fetcher processes of a spool, seen from their parent: start, supervise, hold back, stop.

One thread supervises them: it reads their reports, and replaces a dead one by a new process with a new folder, after a
pause that grows.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from connectors.core.errors import ConnectorError
from connectors.spool.fetching.child import FetcherChild, FetcherStatus
from connectors.spool.fetching.messages import FetchPlan, Note, Published
from connectors.spool.fetching.room import share_of

__all__ = ["FetcherGroup"]

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.05
_START_PAUSE: Final = 1.0
_MAX_FAILED_STARTS: Final = 5


class FetcherGroup:
    """The fetchers of a spool; the callbacks run in the supervising thread.

    Args:
        on_published: receives the fetcher's name and the segment's number; a dying fetcher may publish without a
            report, so the folder itself is the truth.
        may_start: receives a plan, and the names of the fetchers that run for other sources. Called before each start,
            which waits until it returns True. A source with message ordering uses it to wait until every earlier
            folder is unlocked and admitted (rule R3).
        free_bytes: as in `allow`; None for no limit.
        on_note: receives the place of a fetcher and what its target has noted; None when its process has ended.
    """

    def __init__(
        self,
        *,
        on_published: Callable[[str, int], None] = lambda _fetcher, _number: None,
        may_start: Callable[[FetchPlan, set[str]], bool] = lambda _plan, _beside: True,
        free_bytes: int | None = None,
        on_note: Callable[[int, Any], None] = lambda _index, _value: None,
    ) -> None:
        self._on_published = on_published
        self._may_start = may_start
        self._free_bytes = free_bytes
        self._on_note = on_note
        self._sources: list[list[FetcherChild]] = []
        self._children: list[FetcherChild] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._kill_at = float("inf")
        self._terminal: ConnectorError | None = None
        self._thread = threading.Thread(target=self._supervise, name="fetchers", daemon=True)

    def add(self, plan: FetchPlan, count: int) -> None:
        """Add so many fetchers of one source, before `start`."""
        children = [FetcherChild(plan, index) for index in range(count)]
        self._sources.append(children)
        self._children += children

    def start(self) -> None:
        """Start them; returns at once."""
        self._thread.start()

    def allow(self, free_bytes: int) -> None:
        """Let the fetchers add so many bytes of rows, together, to the segments reported so far.

        The sources share them evenly. Cheap; to be called whenever rows were admitted or committed. A fetcher with
        anything left of its share may exceed it by one response a stream; so pass at least one byte when nothing is
        left to read.
        """
        with self._lock:
            self._free_bytes = free_bytes
            for child in self._children:
                child.published_since = 0
            for children in self._sources:
                share = self._share(children, free_bytes)
                for child in children:
                    child.allow(share)

    def order(self, index: int, name: str, value: Any) -> None:
        """Tell the fetcher in a place of the first source, and each that follows there, what is wanted of it now.

        The value is JSON; it replaces the one of this name, and None withdraws it. `ConnectorError`: it has more than
        some 4 kB.
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

    # The supervising thread.

    def _supervise(self) -> None:
        with selectors.DefaultSelector() as selector:
            running = True
            while running:
                try:
                    running = self._step(selector)
                    for key, _ in selector.select(_POLL_SECONDS):
                        self._read(key.data)
                        if key.data.has_hung_up:
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
        peers = next(children for children in self._sources if child in children)
        others = {other.fetcher for other in self._children if other not in peers}
        try:
            if not self._may_start(child.plan, {name for name in others if name is not None}):
                return
            with self._lock:
                child.start(None if self._free_bytes is None else self._share(peers, self._free_bytes))
        except OSError as error:
            _log.warning("a fetcher cannot be started now: %s", error)
            child.start_at = time.monotonic() + _START_PAUSE
            return
        selector.register(child.reports, selectors.EVENT_READ, child)

    def _share(self, children: Sequence[FetcherChild], free_bytes: int) -> int:
        """Return the bytes that each fetcher of a source may add to what it has reported."""
        free = share_of(free_bytes, len(self._sources)) - sum(child.published_since for child in children)
        return share_of(free, len(children))

    def _reap(self, selector: selectors.BaseSelector, child: FetcherChild) -> None:
        self._read(child)
        with contextlib.suppress(KeyError):
            selector.unregister(child.reports)
        fetcher = child.fetcher
        with self._lock:
            code, last = child.reap()
            if child.failed_starts >= _MAX_FAILED_STARTS and self._terminal is None:
                self._terminal = ConnectorError(
                    "FETCHER_CANNOT_START",
                    f"Fetcher processes ended {_MAX_FAILED_STARTS} times before they were ready; the last one: "
                    f"{last.what}",
                    last.where,
                    "The driver's log has what they wrote; fix it and start the query again.",
                )
        if not self._stopping.is_set() and self._terminal is None:
            pause = child.start_at - time.monotonic()
            _log.warning("a fetcher ended with code %s; the next one starts in %.1f s", code, pause)
        self._on_note(child.index, None)
        if fetcher is not None:
            child.clear_temporary(fetcher)

    def _read(self, child: FetcherChild) -> None:
        """Read what a child has reported, of which the end may be on its way."""
        for report in child.read():
            if isinstance(report, Published) and child.fetcher is not None:
                self._on_published(child.fetcher, report.number)
            elif isinstance(report, Note):
                self._on_note(child.index, report.value)
            with self._lock:
                terminal = child.receive(report)
                self._terminal = self._terminal or terminal
