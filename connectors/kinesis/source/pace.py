"""When a shard may be asked again: by calls and by bytes, as the service counts them, from the start of each call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from connectors.kinesis.client.responses import Page

RECORDS_A_SECOND: Final = 1000
BYTES_A_SECOND: Final = 1 << 20
"""What a shard of AWS takes in a second."""
_BUCKET_SECONDS = 1.0
"""The service counts by the second: what was not used in the last one is lost."""


class Pace:
    """The calls to one shard, and the bytes of their responses; not thread-safe.

    ``period`` is the time between two calls, ``rate`` the bytes a second. After a pause up to ``calls`` may be made at
    once; at first only one, unless ``rested``.
    """

    def __init__(
        self, period: float, rate: float, calls: int, *, rested: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._period = period
        self._rate = rate
        self._slack = (calls - 1) * period
        self._began = self._clock()
        self._calls_due = self._began + (0.0 if rested else self._slack)
        self._bytes_due = self._began

    def wait_seconds(self, calls: int = 1, *, spread: bool = False) -> float:
        """Return the seconds until so many calls may be made at once, not positive when that is now.

        With ``spread`` nothing is made up for after a pause, and the first of the calls is what is waited for.
        """
        due = self._calls_due if spread else self._calls_due + (calls - 1) * self._period - self._slack
        return max(due, self._bytes_due) - self._clock()

    def begin(self, calls: float = 1) -> None:
        """Count a call that begins now, or several in a row; a call of ``calls`` periods leaves others their share."""
        self._began = self._clock()
        self._calls_due = max(self._calls_due, self._began) + calls * self._period

    def forgive(self) -> None:
        """Let calls that counted for several delay the next no longer than two bursts would, one by somebody else."""
        self._calls_due = min(self._calls_due, max(self._began + 2 * self._slack, self._clock() + self._slack))

    def add_bytes(self, size: int) -> None:
        """Count what the call that has begun brought.

        A late call is made up for by the next ones, as far as the bucket of the service reaches: a response of more
        than a second's bytes blocks the shard until it is paid, whatever was saved before.
        """
        seconds = size / self._rate
        saved = max(0.0, _BUCKET_SECONDS - seconds)
        self._bytes_due = max(self._bytes_due, self._began - saved) + seconds


def is_above_limits(page: Page) -> bool:
    """Return whether more records of a page arrived in their time than a shard of AWS takes."""
    if not page.records:
        return False
    span_ms = page.records[-1].arrival_ms - page.records[0].arrival_ms + 1000
    limits = ((len(page.records), RECORDS_A_SECOND), (page.data_size, BYTES_A_SECOND))
    return any(found * 1000 > a_second * span_ms for found, a_second in limits)
