"""One fetcher process, seen from its parent: its pipes, its last report, its allowance."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import connectors
from connectors.core.errors import ConnectorError, ServiceUnavailableError, error_from_json
from connectors.core.failpoints import ROLE_VARIABLE
from connectors.core.retry import Backoff, RetryPolicy
from connectors.spool.fetching.target import FetchPlan

__all__ = ["FetcherChild", "FetcherStatus", "OutageLog", "next_allowance", "share_of"]

_log = logging.getLogger(__name__)

_RESTARTS: Final = RetryPolicy(initial_seconds=0.2, cap_seconds=10.0, deadline_seconds=None)
_GOOD_RUN_SECONDS: Final = 30.0
_STALE_SECONDS: Final = 5.0
_READ_BYTES: Final = 1 << 16
_OUTAGE_SECONDS: Final = 5.0
"""What passes within so many seconds is no outage: services close streams all the time."""
_WARN_AGAIN_SECONDS: Final = 60.0

_MALLOC: Final = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""How a fetcher allocates memory (glibc; others ignore it): from one arena, reused rather than returned.

What it handles comes in pieces of 100 KB to some MB, which pass from thread to thread. By default each piece is mapped
anew, and the page faults cost as much as all the rest; arenas of many threads hold twice as much as is needed. Measured
at 100 B a message: 1.6 instead of 2.2 us of processor time each, and 400 instead of 800 MB resident.
"""


@dataclass(frozen=True, slots=True)
class FetcherStatus:
    """The state of one fetcher; its counts are those of its present process.

    Attributes:
        fetcher: the name of its folder in the inbox; None until it is ready.
        healthy: it reports, all its streams are open, and nothing is wrong.
        paused: it has used up its allowance, or holds as much as it may.
        response_age: seconds since the service last answered; None if it never did.
        held_bytes, held_rows: received and not durable.
        settled_at: everything received before this time is durable (`time.monotonic`, one clock for all processes of a
            machine); None if unknown.
        published_bytes: bytes of the rows in its segments, by its last report.
        starts: how often a process was started in this place.
        error: its present trouble, which may pass.
    """

    index: int
    pid: int | None = None
    fetcher: str | None = None
    healthy: bool = False
    paused: bool = False
    streams: int = 0
    streams_open: int = 0
    response_age: float | None = None
    fetched_bytes: int = 0
    fetched_rows: int = 0
    held_bytes: int = 0
    held_rows: int = 0
    settled_at: float | None = None
    published_bytes: int = 0
    starts: int = 0
    error: ConnectorError | None = None
    counters: Mapping[str, int] = field(default_factory=dict)


_STATUS_FIELDS: Final = frozenset(field.name for field in fields(FetcherStatus))


class OutageLog:
    """Warns when fetchers are in trouble, when the trouble changes, each minute while it lasts, and at its end."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._since: float | None = None
        self._troubles: list[ConnectorError] = []
        self._warned: str | None = None
        self._warn_again_at = 0.0

    def see(self, now: float, fetchers: Sequence[FetcherStatus]) -> None:
        """Note the states of all fetchers at a monotonic time.

        An error may be gone for a moment, when some other call is answered: trouble ends when all are healthy again.
        """
        if all(one.error is None and (one.healthy or one.paused) for one in fetchers):
            self._end(now)
            return
        self._troubles = [one.error for one in fetchers if one.error is not None] or self._troubles
        if not self._troubles:
            return
        if self._since is None:
            self._since = now
        lasts, first = now - self._since, self._troubles[0]
        if lasts >= _OUTAGE_SECONDS and (first.code != self._warned or now >= self._warn_again_at):
            self._warned, self._warn_again_at = first.code, now + _WARN_AGAIN_SECONDS
            _log.warning(
                "[SPOOL_FETCHING_INTERRUPTED] %d of %d fetchers are in trouble for %.0f s, and try again (%s). %s",
                len(self._troubles),
                len(fetchers),
                lasts,
                self._root,
                first,
            )

    def _end(self, now: float) -> None:
        if self._since is not None and self._warned is not None:
            _log.warning(
                "[SPOOL_FETCHING_RESUMED] All fetchers work again, after %.0f s (%s).", now - self._since, self._root
            )
        self._since = self._warned = None
        self._troubles = []


def share_of(room: int, fetchers: int) -> int:
    """Return what each fetcher may add; at least one byte while there is any room: a fetcher may exceed its share."""
    return max(room // fetchers, 1) if room > 0 else 0


def next_allowance(published: int, share: int, sent: int | None) -> int | None:
    """Return the allowance to send to a fetcher now, or None if the one it has is near enough.

    `published` are the bytes of rows that its process has published, as far as they are counted; it may add `share` to
    them. `sent` is the allowance it has: bytes that its process may publish in all.
    """
    wanted = published + max(share, 0)
    if sent is None:
        return wanted
    step = max(share // 8, 1)
    if share <= 0 or abs(wanted - sent) >= step or sent - published < step:
        return wanted if wanted != sent else None
    return None


class FetcherChild:
    """A place in a group of fetchers, and the process that is in it now."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.process: subprocess.Popen[bytes] | None = None
        self.fetcher: str | None = None
        self.published_bytes = 0
        self.error: ConnectorError | None = None
        self.failed_starts = 0
        self.start_at = 0.0
        self._orders: dict[str, Any] = {}
        self._unsent: dict[str, None] = {}  # names of orders, the oldest first
        self._control = -1
        self._buffer = b""
        self._health: dict[str, Any] = {}
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

    def start(self, plan: FetchPlan, share: int | None) -> None:
        """Start a process, which may fetch `share` bytes of rows to begin with; None for no limit.

        Raises:
            OSError: the system has no process or descriptor left.
        """
        read_end, self._control = os.pipe()
        try:
            self.process = subprocess.Popen(
                # -P: a module of the same name in the working directory must not come before ours.
                [sys.executable, "-P", "-m", "connectors.spool.fetching.process"],
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
        self.fetcher, self.published_bytes, self._buffer, self._health = None, 0, b"", {}
        self._started_at = self._reported_at = time.monotonic()
        self._starts += 1
        self._allowance = share
        self._unsent.clear()
        first = {"plan": plan.to_json(), "index": self.index, "parent": os.getpid(), "allow": share}
        self._send(first | ({"orders": self._orders} if self._orders else {}))
        os.set_blocking(self._control, False)

    def allow(self, share: int) -> None:
        """Let it add so many bytes to the segments it has reported; sent if that is news."""
        allowance = next_allowance(self.published_bytes, share, self._allowance)
        if self._control >= 0 and allowance is not None and self._send({"allow": allowance}):
            self._allowance = allowance

    def order(self, name: str, value: Any) -> None:
        """Note what is wanted of every process in this place; None withdraws it. `send_orders` sends it."""
        if value is None:
            self._orders.pop(name, None)
        else:
            self._orders[name] = value
        self._unsent.setdefault(name)

    def send_orders(self) -> None:
        """Send the process the orders that it does not have yet, as far as the pipe takes them."""
        for name in list(self._unsent) if self._control >= 0 else ():
            # A pipe takes a line of up to 4 kB whole or not at all.
            if not self._send({"order": [name, self._orders.get(name)]}):
                return
            del self._unsent[name]

    def hang_up(self) -> None:
        """Close its standard input: it ends by itself."""
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield what it has reported since the last call."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.reports, _READ_BYTES):
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                yield from map(json.loads, lines)

    def receive(self, report: Mapping[str, Any]) -> ConnectorError | None:
        """Note a report; return the error in it, if it is one that no retry can fix."""
        self._reported_at = time.monotonic()
        if "ready" in report:
            self.fetcher, self.error, self.failed_starts = report["ready"]["fetcher"], None, 0
        elif "published" in report:
            self.published_bytes = report["published"]["total_bytes"]
        elif "health" in report:
            self._health = report["health"]
        elif "error" in report:
            self.error = error_from_json(report["error"]["error"])
            return self.error if report["error"]["terminal"] else None
        return None

    def reap(self) -> int:
        """Clean up after its process, which has ended; return the exit code."""
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
        self.process, self.fetcher, self._health = None, None, {}
        if self.error is None:
            self.error = ServiceUnavailableError(
                "FETCHER_ENDED",
                f"A fetcher process ended with code {code}",
                f"pid {process.pid}",
                "It is restarted; the driver's log has what it wrote.",
            )
        return code

    def status(self) -> FetcherStatus:
        """Return its state, by its last report."""
        health, quiet = self._health, time.monotonic() - self._reported_at
        error = error_from_json(health["error"]) if health.get("error") else self.error
        age = health.get("response_age")
        reports = self.process is not None and self.fetcher is not None and quiet < _STALE_SECONDS
        return FetcherStatus(
            **{
                **{name: value for name, value in health.items() if name in _STATUS_FIELDS},
                "index": self.index,
                "pid": None if self.process is None else self.process.pid,
                "fetcher": self.fetcher,
                "healthy": reports and error is None and 0 < health.get("streams", 0) == health.get("streams_open", 0),
                "response_age": None if age is None else age + quiet,
                "published_bytes": self.published_bytes,
                "starts": self._starts,
                "error": error,
            }
        )

    def _send(self, command: Mapping[str, Any]) -> bool:
        """Send one line; False if the pipe is full or broken: an allowance is then sent again later."""
        with contextlib.suppress(OSError):
            line = json.dumps(command).encode() + b"\n"
            while line:
                line = line[os.write(self._control, line) :]
            return True
        return False


def _environment() -> dict[str, str]:
    """Return the environment of a child: this one's, and the path that this pack was imported from."""
    package = str(Path(connectors.__file__).parent.parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {
        **_MALLOC,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, package])),
        ROLE_VARIABLE: "fetcher",
    }
