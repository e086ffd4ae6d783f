"""The fetcher processes of a spool, seen from their parent: start, supervise, hold back, stop.

A fetcher is a child made by `subprocess` only (a fork of a process that uses gRPC hangs). It gets its plan, with the
secrets in it, as the first line of its standard input, and ends when that pipe ends: so it does not matter how the
parent ends, and Spark kills a source process without warning. One thread supervises them: it reads their reports, and
replaces a dead one by a new process with a new folder, after a pause that grows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from connectors.core.errors import ConnectorError
from connectors.core.processes.failpoints import ROLE_VARIABLE
from connectors.core.processes.interpreter import folder_of_module, importing_environment, python_command
from connectors.core.retry import Backoff
from connectors.spool.errors import fetcher_ended
from connectors.spool.fetching.messages import (
    MAX_REPORT_BYTES,
    REPORTS,
    Allow,
    Fault,
    FetchPlan,
    Health,
    Note,
    Ordered,
    Published,
    Ready,
    Report,
    Start,
    decode,
    encode,
    malformed,
)
from connectors.spool.fetching.room import next_allowance, share_of
from connectors.spool.store import open_store
from connectors.spool.store.disk import TEMPORARY_FOLDER

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.05
_START_PAUSE: Final = 1.0
_MAX_FAILED_STARTS: Final = 5
_GOOD_RUN_SECONDS: Final = 30.0
_STALE_SECONDS: Final = 5.0
_READ_BYTES: Final = 1 << 16

_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""A fetcher computes nothing by BLAS, for which NumPy would start a thread for each processor."""
_MALLOC: Final = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""How a fetcher allocates memory (glibc; others ignore it): from one arena, reused rather than returned.

By default each piece of 100 KB to some MB is mapped again, with its page faults, and the arenas of many threads hold
twice as much. At 100 B per message: 1.6 instead of 2.2 us of processor time, and 400 instead of 800 MB resident.
"""


@dataclass(frozen=True, slots=True)
class FetcherStatus:
    """The state of one fetcher; its counts are those of its present process.

    Attributes:
        fetcher: the name of its folder in the inbox; None until it is ready.
        healthy: it reports, all its streams are open, and nothing is wrong.
        paused: it has used up its allowance, or holds as much as it may.
        held_bytes, held_rows: received and not durable.
        settled_at: everything received before this time is durable (`time.monotonic`, one clock for all processes of a
            machine); None if unknown.
        starts: how often a process was started in this place.
    """

    index: int
    pid: int | None = None
    fetcher: str | None = None
    healthy: bool = False
    paused: bool = False
    streams: int = 0
    streams_open: int = 0
    fetched_bytes: int = 0
    fetched_rows: int = 0
    held_bytes: int = 0
    held_rows: int = 0
    settled_at: float | None = None
    published_bytes: int = 0
    starts: int = 0
    error: ConnectorError | None = None
    counters: Mapping[str, int] = field(default_factory=dict)


class FetcherChild:
    """A place in a group of fetchers, and the process that is in it now."""

    def __init__(self, plan: FetchPlan, index: int) -> None:
        self.plan = plan
        self.index = index
        self.process: subprocess.Popen[bytes] | None = None
        self.fetcher: str | None = None
        self.published_bytes = 0
        self.published_since = 0  # the last time that `allow` was called
        self.error: ConnectorError | None = None
        self.failed_starts = 0
        self.start_at = 0.0
        self._orders: dict[str, Any] = {}
        self._unsent: dict[str, bytes] = {}  # lines of orders by their names, the oldest first
        self._control = -1
        self.has_hung_up = False
        self._buffer = b""
        self._health = Health()
        self._reported_at = 0.0
        self._started_at = 0.0
        self._allowance: int | None = None
        self._starts = 0
        self._backoff = Backoff(initial_seconds=0.2)

    @property
    def reports(self) -> int:
        """The descriptor to read reports from; it does not block."""
        if self.process is None or self.process.stdout is None:
            raise ValueError("there is no process")
        return self.process.stdout.fileno()

    def start(self, share: int | None) -> None:
        """Start a process, which may fetch `share` bytes of rows to begin with; None for no limit.

        OSError: the system has no process or descriptor left.
        """
        read_end, self._control = os.pipe()
        try:
            self.process = subprocess.Popen(
                python_command("-m", "connectors.spool.fetching.process", *map(folder_of_module, self.plan.modules)),
                stdin=read_end,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=_environment(),
                # A session of its own: what a terminal sends to the driver's group does not reach it.
                start_new_session=True,
            )
        except OSError:
            self.hang_up()
            raise
        finally:
            os.close(read_end)
        os.set_blocking(self.reports, False)
        self.fetcher, self.published_bytes, self._buffer, self._health = None, 0, b"", Health()
        self.has_hung_up = False
        self._started_at = self._reported_at = time.monotonic()
        self._starts += 1
        self._allowance = share
        self._unsent.clear()
        self._send(encode(Start(self.plan, self.index, os.getpid(), share, self._orders)))
        os.set_blocking(self._control, False)

    def allow(self, share: int) -> None:
        """Let it add `share` bytes to the segments it has reported; sent if that is a change."""
        allowance = next_allowance(self.published_bytes, share, self._allowance)
        if self._control >= 0 and allowance is not None and self._send(encode(Allow(allowance))):
            self._allowance = allowance

    def order(self, name: str, value: Any) -> None:
        """Note what is wanted of every process in this place, for `send_orders`; None withdraws it.

        ConnectorError: it is too long.
        """
        line = encode(Ordered(name, value))
        if value is None:
            self._orders.pop(name, None)
        else:
            self._orders[name] = value
        self._unsent[name] = line

    def send_orders(self) -> None:
        """Send the process the orders that it does not have yet, as far as the pipe takes them."""
        for name in list(self._unsent) if self._control >= 0 else ():
            if not self._send(self._unsent[name]):
                return
            del self._unsent[name]

    def hang_up(self) -> None:
        """Close its standard input: it ends by itself."""
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def read(self) -> Iterator[Report]:
        """Yield what it has reported since the last call; `has_hung_up` then says whether no more can come.

        ConnectorError: it is not a report.
        """
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.reports, _READ_BYTES):
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in lines:
                    yield decode(line, REPORTS)
                if len(self._buffer) > MAX_REPORT_BYTES:
                    raise malformed("it does not end")
            self.has_hung_up = True

    def receive(self, report: Report) -> ConnectorError | None:
        """Note a report; return the error in it, if it is one that no retry can fix."""
        self._reported_at = time.monotonic()
        match report:
            case Ready():
                self.fetcher, self.error, self.failed_starts = report.fetcher, None, 0
            case Published():
                self.published_bytes = report.total_bytes
                self.published_since += report.bytes
            case Health():
                self._health = report
            case Fault():
                self.error = report.error
                return report.error if report.terminal else None
            case Note():
                pass  # the group passes it on
        return None

    def reap(self) -> tuple[int, ConnectorError]:
        """Clean up after its process, which has ended; return the exit code, and the error that it ended with."""
        process = self.process
        if process is None or process.stdout is None:
            raise ValueError("there is no process")
        code = process.wait()
        process.stdout.close()
        self.hang_up()
        if self.fetcher is None:
            self.failed_starts += 1
        if time.monotonic() - self._started_at > _GOOD_RUN_SECONDS:
            self._backoff.reset()
        self.start_at = time.monotonic() + self._backoff.next_delay_seconds()
        self.process, self.fetcher, self._health = None, None, Health()
        self.error = self.error or fetcher_ended(code, process.pid)
        return code, self.error

    def status(self) -> FetcherStatus:
        health = self._health
        error = health.error or self.error
        is_recent = time.monotonic() - self._reported_at < _STALE_SECONDS
        reports = self.process is not None and self.fetcher is not None and is_recent
        return FetcherStatus(
            index=self.index,
            pid=None if self.process is None else self.process.pid,
            fetcher=self.fetcher,
            healthy=reports and error is None and 0 < health.streams == health.streams_open,
            paused=health.paused,
            streams=health.streams,
            streams_open=health.streams_open,
            fetched_bytes=health.fetched_bytes,
            fetched_rows=health.fetched_rows,
            held_bytes=health.held_bytes,
            held_rows=health.held_rows,
            settled_at=health.settled_at,
            published_bytes=self.published_bytes,
            starts=self._starts,
            error=error,
            counters=health.counters,
        )

    def clear_temporary(self, fetcher: str) -> None:
        store = open_store(self.plan.root, "", self.plan.store_access)
        try:
            for name in store.list(TEMPORARY_FOLDER):
                if name.startswith(f"{fetcher}-"):
                    store.delete(f"{TEMPORARY_FOLDER}/{name}")
        except OSError as error:
            # They are also deleted when the next writer opens the spool.
            _log.warning("temporary files of a fetcher cannot be removed: %s", error)

    def _send(self, line: bytes) -> bool:
        """Send one line; False if the pipe is full or broken: an allowance is then sent again later."""
        with contextlib.suppress(OSError):
            while line:
                line = line[os.write(self._control, line) :]
            return True
        return False


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
        may_start: Callable[[FetchPlan, set[str]], bool] = lambda _plan, _others: True,
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
        """Add `count` fetchers of one source, before `start`."""
        children = [FetcherChild(plan, index) for index in range(count)]
        self._sources.append(children)
        self._children += children

    def start(self) -> None:
        """Start them; returns at once."""
        self._thread.start()

    def allow(self, free_bytes: int) -> None:
        """Let the fetchers add this many bytes of rows, together, to the segments reported so far.

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
                )
        if not self._stopping.is_set() and self._terminal is None:
            pause = child.start_at - time.monotonic()
            _log.warning("a fetcher ended with code %s; the next one starts in %.1f s", code, pause)
        self._on_note(child.index, None)
        if fetcher is not None:
            child.clear_temporary(fetcher)

    def _read(self, child: FetcherChild) -> None:
        """Read what a child has reported; the end of it may be on its way."""
        for report in child.read():
            if isinstance(report, Published) and child.fetcher is not None:
                self._on_published(child.fetcher, report.number)
            elif isinstance(report, Note):
                self._on_note(child.index, report.value)
            with self._lock:
                terminal = child.receive(report)
                self._terminal = self._terminal or terminal


def _environment() -> dict[str, str]:
    return {**_ONE_THREAD, **_MALLOC, **importing_environment(), ROLE_VARIABLE: "fetcher"}
