"""A server's own clock, which can run fast and jump, and the list of what is due on it.

Both are plain data: who holds them passes the lock and starts the thread (see `pubsub_runtime`).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

__all__ = ["SECOND", "Schedule", "ServerClock"]

SECOND = 1_000_000_000
"""Nanoseconds: server time is counted in them."""


class ServerClock:
    """Wall-clock time that starts at the machine's, runs ``speed`` times as fast, and can jump forward.

    Args:
        speed: server seconds per real second, above 0.
        real: the real clock in nanoseconds that drives this one; it must never go back.
    """

    def __init__(self, speed: float = 1.0, real: Callable[[], int] = time.monotonic_ns) -> None:
        self._real = real
        # One tuple, replaced as a whole, so that a reader in another thread sees no half-made change.
        self._anchor = (real(), time.time_ns(), _checked_speed(speed))

    @property
    def speed(self) -> float:
        """Server seconds per real second."""
        return self._anchor[2]

    def now(self) -> int:
        """Server time in nanoseconds since 1970."""
        real_start, start, speed = self._anchor
        elapsed = self._real() - real_start
        return start + (elapsed if speed == 1.0 else int(elapsed * speed))

    def set_speed(self, speed: float) -> None:
        """Run ``speed`` times as fast as real time from now on; raises `ValueError` unless above 0."""
        self._anchor = (self._real(), self.now(), _checked_speed(speed))

    def jump(self, seconds: float) -> None:
        """Move server time forward at once; raises `ValueError` for a negative number of seconds."""
        if seconds < 0:
            message = f"the clock only jumps forward, not by {seconds} s"
            raise ValueError(message)
        real_start, start, speed = self._anchor
        self._anchor = (real_start, start + int(seconds * SECOND), speed)

    def real_seconds_until(self, due: int) -> float:
        """Real seconds until server time reaches ``due`` (nanoseconds); 0 when it is past."""
        return max(0.0, (due - self.now()) / self.speed / SECOND)


def _checked_speed(speed: float) -> float:
    if speed <= 0:
        message = f"speed must be above 0, not {speed}"
        raise ValueError(message)
    return float(speed)


class Schedule:
    """Actions ordered by the server time at which they are due; not thread-safe."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[int], None]]] = []
        self._count = 0

    def at(self, due: int, action: Callable[[int], None]) -> None:
        """Call ``action(now)`` when server time (nanoseconds) has reached ``due``; equal times keep their order."""
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, action))

    def next_due(self) -> int | None:
        """The server time of the next action, or None when nothing is planned."""
        return self._heap[0][0] if self._heap else None

    def run_due(self, now: int) -> None:
        """Run every action that is due at ``now``, also those that these actions add."""
        while self._heap and self._heap[0][0] <= now:
            _, _, action = heapq.heappop(self._heap)
            action(now)
