"""The one retry policy: exponential backoff with full jitter, a cap and a deadline. Long retries are logged.

Beside it the one rule of outages, which all sources and sinks follow; the log of waits that are no retries; and the
watch of the parent process, without which a retry or a call would outlive a killed driver.

Full jitter (a delay drawn evenly from zero to the exponential ceiling) spreads many clients that failed together best:
see "Exponential Backoff And Jitter" in the AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar

from connectors.core.errors import ConnectorError, ServiceUnavailableError

T = TypeVar("T")

_log = logging.getLogger(__name__)

# From here on the ceiling has long reached any cap, and a larger power would overflow.
_LARGEST_EXPONENT: Final = 64
_INITIAL_SECONDS: Final = 0.1
_LOG_AFTER_SECONDS: Final = 5.0
"""Failures in a row that have lasted, or by the next attempt will have lasted, so long are logged."""
_LOG_EVERY_SECONDS: Final = 60.0
_WAIT_SECONDS: Final = 15.0
"""Longer than the waits that are part of each run, such as ``availableNowQuiet``."""
_WAIT_EVERY_SECONDS: Final = 60.0
_PARENT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to try again: the ceiling of the delay doubles with each failure, up to a cap.

    No attempt begins later than the deadline after the first one; None for no deadline.

    Raises:
        ValueError: the first ceiling is not in (0, cap].
    """

    initial_seconds: float = 0.1
    cap_seconds: float = 10.0
    deadline_seconds: float | None = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.initial_seconds <= self.cap_seconds:
            raise ValueError(f"initial_seconds {self.initial_seconds} is not in (0, cap_seconds {self.cap_seconds}]")

    def ceiling_seconds(self, failures: int) -> float:
        """Return the largest delay after so many failures in a row, counted from 1."""
        exponent = min(failures - 1, _LARGEST_EXPONENT)
        return float(min(self.cap_seconds, self.initial_seconds * 2.0**exponent))


class Backoff:
    """Counts failures in a row and computes delays, for loops that never end; the policy's deadline is ignored.

    ``uniform`` returns a number in [0, 1).
    """

    def __init__(
        self,
        policy: RetryPolicy,
        uniform: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._uniform = uniform
        self._clock = clock
        self._since = self._log_at = 0.0
        self.failures = 0

    def next_delay_seconds(self, error: BaseException | None = None) -> float:
        """Count one more failure and return the time to wait before the next attempt.

        The error is logged when failures have lasted some seconds, and every minute from then on.
        """
        self.failures += 1
        delay = self._uniform() * self._policy.ceiling_seconds(self.failures)
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
        """Begin the count of failures again, after a success."""
        self.failures = 0


class WaitLog:
    """Says in the log what a wait waits for: after 15 seconds, and every minute from then on.

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
        """How long the wait has lasted."""
        return self._clock() - self._since

    def tick(self) -> None:
        """Log what is waited for, if it is time to."""
        if self._clock() >= self._log_at:
            self._log_at = self._clock() + _WAIT_EVERY_SECONDS
            _log.warning("[WAITING] A call has waited %.0f s for %s.", self.seconds, self._what())


class ParentWatch:
    """Tells whether the process that started this one has ended, for loops that must not outlive a killed driver.

    `parent` is its process id where this process was told it; it may have ended before this is made.
    """

    def __init__(self, parent: int | None = None) -> None:
        self._parent = os.getppid() if parent is None else parent

    def is_gone(self) -> bool:
        """Return whether it has ended; the kernel then gives this process another parent."""
        return os.getppid() != self._parent


@cache
def end_with_parent() -> None:
    """End this process soon after its parent has ended, whatever call it is in; once for a process.

    Spark kills the source process of a stream, but only while the JVM lives: after its death nobody else ends a call of
    an SDK that waits for a service.
    """
    parent = ParentWatch()

    def watch() -> None:
        while not parent.is_gone():
            time.sleep(_PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def is_transient(error: BaseException) -> bool:
    """Return whether trying again later can help without a change by the user."""
    return isinstance(error, ConnectorError) and error.transient


def retry(
    attempt: Callable[[], T],
    policy: RetryPolicy,
    *,
    retryable: Callable[[BaseException], bool] = is_transient,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    uniform: Callable[[], float] = random.random,
) -> T:
    """Call ``attempt`` until it succeeds, fails permanently, or the deadline has passed; raise its last error.

    If ``sleep`` returns True, as the ``wait`` of a set `threading.Event` does, retries end.
    """
    backoff = Backoff(policy, uniform, clock)
    started = clock()
    while True:
        try:
            return attempt()
        except Exception as error:
            if not retryable(error):
                raise
            delay = backoff.next_delay_seconds(error)
            limit = policy.deadline_seconds
            if limit is not None and clock() - started + delay > limit:
                raise
            if sleep(delay) is True:
                raise


@dataclass(frozen=True, slots=True)
class OutageRule:
    """When a service that fails is given up: after so many ``seconds``, or instead after so many ``attempts`` more.

    ``option`` is the option that says so, empty without one; ``cap_seconds`` is the longest wait between two attempts.
    """

    seconds: float
    option: str
    attempts: int | None = None
    cap_seconds: float = 10.0

    def gives_up(self, failures: int, lasted_seconds: float) -> bool:
        """Return whether so many failures in a row, or so long an outage, end the query."""
        return lasted_seconds >= self.seconds if self.attempts is None else failures > self.attempts

    def ending(self, error: ConnectorError) -> ConnectorError:
        """Return an error as it ends the query: it says how long the service was asked again, and by which option."""
        if not self.option:
            return error
        tried = f"for {self.seconds:g} s" if self.attempts is None else f"{self.attempts} times"
        advice = f"It was tried again {tried}: raise the option {self.option} for longer outages."
        action = f"{error.action.rstrip('.')}. {advice}" if error.action else advice
        return type(error)(error.code, error.what, error.where, action)


class Outage:
    """The failures in a row of one service, and the waits between them; a success ends the outage by `reset`.

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
        initial = min(_INITIAL_SECONDS, rule.cap_seconds)
        self._backoff = Backoff(RetryPolicy(initial, rule.cap_seconds, deadline_seconds=None), uniform, clock)
        self._uncounted = 0

    def reset(self) -> None:
        """End the outage, after a success."""
        self._backoff.reset()
        self._uncounted = 0
        self._began = None

    @property
    def failures(self) -> int:
        """How many calls in a row have failed."""
        return self._backoff.failures

    @property
    def left_seconds(self) -> float:
        """How long the service may still fail; without end where attempts are counted."""
        return math.inf if self._rule.attempts is not None else self._rule.seconds - self._lasted_seconds

    @property
    def _lasted_seconds(self) -> float:
        return self._backoff.lasted_seconds if self._began is None else self._clock() - self._began

    def next_delay_seconds(self, error: ConnectorError, *, progress: bool = False) -> float:
        """Count a failure, and return the time to wait before the next attempt; the last one begins at the limit.

        With ``progress`` the call did a part of its work: an outage begins with this failure, which is not counted.
        Raises the error when it is none of an outage, or when the service is given up.
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
