"""One fetcher process as its parent sees it: start it, send commands, note reports, clean up after it.

It is a child made by `subprocess` only (a fork of a process that uses gRPC hangs). It gets its plan, with the secrets
in it, as the first line of its standard input, and ends when that pipe ends: so it does not matter how the parent ends,
and Spark kills a source process without warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from connectors.core.errors import ConnectorError
from connectors.core.processes.failpoints import ROLE_VARIABLE
from connectors.core.processes.interpreter import python_command, python_environment, without_present_folder
from connectors.core.retry import Backoff, RetryPolicy
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
from connectors.spool.fetching.room import next_allowance
from connectors.spool.store import open_store
from connectors.spool.store.local import TEMPORARY_FOLDER

__all__ = ["FetcherChild", "FetcherStatus"]

_log = logging.getLogger(__name__)

_RESTARTS: Final = RetryPolicy(initial_seconds=0.2, cap_seconds=10.0, deadline_seconds=None)
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
twice as much. Measured at 100 B a message: 1.6 instead of 2.2 us of processor time, and 400 instead of 800 MB resident.
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
        self._backoff = Backoff(_RESTARTS)

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
                python_command("-m", "connectors.spool.fetching.process"),
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
        """Let it add so many bytes to the segments it has reported; sent if that is a change."""
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

        ConnectorError: it is no report.
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
        """Return its state, by its last report."""
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
        """Delete the half-written segments of a process that has ended."""
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


def _environment() -> dict[str, str]:
    """Return the environment of a child: this one's, and the path by which it finds what this process found.

    A target that is not of this pack may be where only Spark looks, as what ``addPyFile`` has brought. What PYTHONPATH
    names is meant, also where that is the present folder.
    """
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *without_present_folder(sys.path)]
    return {**_ONE_THREAD, **_MALLOC, **python_environment(paths), ROLE_VARIABLE: "fetcher"}
