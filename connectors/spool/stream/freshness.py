"""What calls of Spark wait for: rows that are new, or the knowledge that there are none."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from connectors.core.retry import WaitLog

_log = logging.getLogger(__name__)
_WAIT_STEP: Final = 0.5
_LONGEST_SECONDS: Final = 300.0
_LONG_WAIT: Final = 1.0


class Reason(StrEnum):
    """Why a call of Spark need not wait any longer."""

    NEW_ROWS = "there are new rows"
    QUIET = "the streams are open, and brought nothing"
    ALL_CAME = "all that was published before the run began has come"
    SPOOL_FULL = "the spool is full"
    SOURCE_LOST = "the source delivers nothing more"
    TIMEOUT = "the time is over"


class Freshness:
    """What has come in, noted by the admitting thread within `changing`; calls of Spark wait for it.

    A bounded run ends after `quiet` seconds without old rows, or after `longest` if streams are unhealthy; without a
    `longest` of the user's, an outage of the service is no reason to end. Times are seconds of the monotonic clock;
    publish times are microseconds of the service.

    Attributes:
        healthy_since: when all streams were last seen to become healthy; None while they are not.
        bound_time: publish time that separates old rows from new ones; None before any bounded run.
    """

    def __init__(self, quiet: float, longest: float | None) -> None:
        self.healthy_since: float | None = None
        self.bound_time: int | None = None
        self._quiet = quiet
        self._longest = _LONGEST_SECONDS if longest is None else longest
        self._waits_for_service = longest is None
        self._is_out = False
        self._began = 0.0
        self._settled = 0.0
        self._old: float | None = None
        self._changed = threading.Condition()
        self._changes = 0

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Note something, as one change; whoever waits looks for a reason again. Nothing slow belongs in it."""
        with self._changed:
            yield
            self._changes += 1
            self._changed.notify_all()

    def begin(self, now: float, bound_time: int) -> None:
        """Begin a bounded run, at this time of the service as far as it is known."""
        self._began, self.bound_time = now, bound_time

    def round_ended(self, now: float, *, healthy: bool, settled: float, out: bool = False) -> None:
        """Note a round of admission: whether streams were healthy, and before when all that came is admitted.

        ``out`` says that nothing works because of the service.
        """
        self._is_out = out
        self._settled = max(self._settled, settled)
        if not healthy:
            self.healthy_since = None
        elif self.healthy_since is None:
            self.healthy_since = now

    def admitted(self, now: float, published: tuple[int, int] | None, rows: int) -> None:
        """Note an admitted segment with so many new rows, published between two times."""
        if self.bound_time is not None and published is not None:
            # Seen now, so the service's clock was at least so far when the run began, whatever the clock here said.
            self.bound_time = max(self.bound_time, published[1] - int((now - self._began) * 1e6))
        if rows and self.bound_time is not None and (published is None or published[0] < self.bound_time):
            self._old = now

    def all_came(self, now: float) -> bool:
        """Whether all messages published before a bounded run began have come, so that its end may be fixed.

        Healthy streams must have brought nothing old for a while; what a fetcher still holds may be old.
        """
        with self._changed:
            last = max(self._began, self._old or self._began)
            since, settled = self.healthy_since, self._settled
        if now - last >= self._longest and not (self._is_out and self._waits_for_service):
            return True
        return since is not None and settled - max(last, since) >= self._quiet

    def wait(
        self,
        reason: Callable[[], Reason | None],
        check: Callable[[], None],
        deadline: float = float("inf"),
        what: str = "fetched messages",
    ) -> Reason:
        """Wait until there is a reason to answer, or the deadline; return the reason. Raises what `check` raises.

        No lock is held while `reason` and `check` run: they may read from storage. ``what`` says in the log what is
        waited for, when that takes long.
        """
        began = time.monotonic()
        log = WaitLog(lambda: what)
        seen = self._changes
        while (result := reason()) is None and time.monotonic() <= deadline:
            check()
            log.tick()
            with self._changed:
                step = min(_WAIT_STEP, max(deadline - time.monotonic(), 0.0))
                self._changed.wait_for(lambda: self._changes != seen, step)  # noqa: B023 - it is called here
                seen = self._changes
        check()
        result = result or Reason.TIMEOUT
        if time.monotonic() - began >= _LONG_WAIT:
            _log.info("A call of Spark has waited %.1f s: %s.", time.monotonic() - began, result)
        return result
