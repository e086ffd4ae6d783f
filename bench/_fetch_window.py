"""What fetchers take from the canned server in a window of time: acks, and processor seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from _canned_pubsub import CannedPubSub

START_SECONDS = 60


@dataclass(frozen=True)
class Window:
    """What was counted in a window: acks, and processor seconds of fetchers and server."""

    acked: int
    seconds: float
    fetchers: float
    server: float

    @classmethod
    def measure(cls, server: CannedPubSub, pids: list[int], seconds: float) -> Window:
        """Count for so many seconds, after one of warm-up."""
        time.sleep(1.0)
        before, used, began = server.stats(), seconds_of(pids), time.monotonic()
        time.sleep(seconds)
        after = server.stats()
        return cls(
            after["acked"] - before["acked"],
            time.monotonic() - began,
            seconds_of(pids) - used,
            after["cpu_seconds"] - before["cpu_seconds"],
        )


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something has begun."""
    end = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"it did not begin within {START_SECONDS} s")
        time.sleep(0.05)


def seconds_of(pids: list[int]) -> float:
    """Processor time of other processes; proc(5), fields 14 and 15."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
