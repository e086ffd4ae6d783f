"""Backoff and outages: how long to wait between attempts, when to give a service up, and what to log meanwhile."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from connectors.core.errors import ConnectorError, ServiceUnavailableError

T = TypeVar("T")

_log = logging.getLogger(__name__)

# From here on the ceiling has long reached any cap, and a larger power would overflow.
_LARGEST_EXPONENT: Final = 64
_INITIAL_SECONDS: Final = 0.1
_LOG_AFTER_SECONDS: Final = 5.0
_LOG_EVERY_SECONDS: Final = 60.0
_WAIT_SECONDS: Final = 15.0
"""Longer than the waits that are part of each run, such as ``availableNowQuiet``."""


class Backoff:
    """Counts failures in a row, and draws each delay from zero to a ceiling that doubles up to a cap.

    Full jitter spreads clients that failed together best: "Exponential Backoff And Jitter", AWS Architecture Blog,
    2015. ``uniform`` returns a number in [0, 1).
    """

    def __init__(
        self,
        initial_seconds: float = _INITIAL_SECONDS,
        cap_seconds: float = 10.0,
        uniform: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._initial_seconds = min(initial_seconds, cap_seconds)
        self._cap_seconds = cap_seconds
        self._uniform = uniform
        self._clock = clock
        self._since = self._log_at = 0.0
        self.failures = 0

    def next_delay_seconds(self, error: BaseException | None = None) -> float:
        """Count one more failure and return the time to wait before the next attempt.

        Failures that have lasted 5 seconds, or will have by the next attempt, are logged, and again each minute.
        """
        self.failures += 1
        exponent = min(self.failures - 1, _LARGEST_EXPONENT)
        delay = self._uniform() * min(self._cap_seconds, self._initial_seconds * 2.0**exponent)
        now = self._clock()
        if self.failures == 1:
            self._since, self._log_at = now, now + _LOG_AFTER_SECONDS
        if error is not None and now + delay >= self._log_at:
            self._log_at = now + _LOG_EVERY_SECONDS
            lasted = self.lasted_seconds
            _log.warning("[RETRYING] A call has failed %d times in %.0f s: %s", self.failures, lasted, error)
        return delay

    @property
    def lasted_seconds(self) -> float:
        """How long ago the first failure in a row was; 0 without one."""
        return self._clock() - self._since if self.failures else 0.0

    def reset(self) -> None:
        self.failures = 0


class WaitLog:
    """Logs what a wait waits for: after 15 seconds, and every minute from then on.

    ``what`` returns what has to happen, such as "a stream to open"; the loop of the wait calls `tick`.
    """

    def __init__(self, what: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Count from now, after progress."""
        self._since = self._clock()
        self._log_at = self._since + _WAIT_SECONDS

    @property
    def seconds(self) -> float:
        return self._clock() - self._since

    def tick(self) -> None:
        """Log what is waited for, if it is time to."""
        if self._clock() >= self._log_at:
            self._log_at = self._clock() + _LOG_EVERY_SECONDS
            _log.warning("[WAITING] A call has waited %.0f s for %s.", self.seconds, self._what())


@dataclass(frozen=True, slots=True)
class OutageRule:
    """When to give up a failing service: after ``seconds``, or if ``attempts`` is given, after that many retries.

    ``option`` is the option that sets the limit, empty without one; ``cap_seconds`` is the longest wait between two
    attempts.
    """

    seconds: float
    option: str = ""
    attempts: int | None = None
    cap_seconds: float = 10.0

    def gives_up(self, failures: int, lasted_seconds: float) -> bool:
        """Return whether that many failures in a row, or so long an outage, end the query."""
        return lasted_seconds >= self.seconds if self.attempts is None else failures > self.attempts

    def ending(self, error: ConnectorError) -> ConnectorError:
        """Return an error as it ends the query: with how long the service was retried, and the option that says so."""
        if not self.option:
            return error
        tried = f"for {self.seconds:g} s" if self.attempts is None else f"{self.attempts} times"
        advice = f"It was retried {tried}: raise the option {self.option} for longer outages."
        action = f"{error.action.rstrip('.')}. {advice}" if error.action else advice
        return type(error)(error.code, error.what, error.where, action)


class Outage:
    """The failures in a row of one service, and the waits between them; a success ends the outage with `reset`.

    It begins at ``began``, when the first call did, or else when that has failed.
    """

    def __init__(
        self,
        rule: OutageRule,
        uniform: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ) -> None:
        self._rule = rule
        self._clock = clock
        self._began = began
        self._backoff = Backoff(cap_seconds=rule.cap_seconds, uniform=uniform, clock=clock)
        self._uncounted = 0

    def reset(self) -> None:
        self._backoff.reset()
        self._uncounted = 0
        self._began = None

    @property
    def failures(self) -> int:
        return self._backoff.failures

    @property
    def left_seconds(self) -> float:
        """How long the service may still fail; infinite if attempts are counted."""
        return math.inf if self._rule.attempts is not None else self._rule.seconds - self._lasted_seconds

    @property
    def _lasted_seconds(self) -> float:
        return self._backoff.lasted_seconds if self._began is None else self._clock() - self._began

    def next_delay_seconds(self, error: ConnectorError, *, progress: bool = False) -> float:
        """Count a failure, and return the time to wait before the next attempt; the last one begins at the limit.

        With ``progress`` the call did a part of its work: the outage begins with this failure, which is not counted.

        Raises:
            ConnectorError: ``error``, if it doesn't pass by itself, or if the service is given up.
        """
        if not isinstance(error, ServiceUnavailableError):
            raise error
        if progress:
            self.reset()
            self._uncounted = 1
        delay = self._backoff.next_delay_seconds(error)
        if self._rule.gives_up(self.failures - self._uncounted, self._lasted_seconds):
            raise self._rule.ending(error) from None
        return min(delay, max(self.left_seconds, 0.0))


def wait_out(
    attempt: Callable[[], T],
    rule: OutageRule,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    uniform: Callable[[], float] = random.random,
) -> T:
    """Call ``attempt`` until it succeeds, fails permanently, or the rule gives the service up; raise its last error.

    If ``sleep`` returns True, as the ``wait`` of a set `threading.Event` does, it is given up at once.
    """
    outage = Outage(rule, uniform, clock, began=clock())
    while True:
        try:
            return attempt()
        except ConnectorError as error:
            if sleep(outage.next_delay_seconds(error)) is True:
                raise
