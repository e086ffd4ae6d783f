"""Looks at the spools of running queries, beside them, and tells how fast they move."""

from __future__ import annotations

import time
from dataclasses import replace

from connectors.observe.measure import SpoolMeasurement
from connectors.spool.opening import read_state
from connectors.spool.stats import SpoolStats, stats
from connectors.spool.store import LocalStore

__all__ = ["SpoolWatch"]


class SpoolWatch:
    """Looks at one spool again and again.

    Args:
        path: its ``spoolLocation``; the spool may be made later.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._before: tuple[float, SpoolStats] | None = None

    def look(self) -> SpoolMeasurement:
        """The spool as it is now, with rates since the last look.

        Raises:
            SpoolError: there is no spool there, or it is damaged.
        """
        now, seen = time.monotonic(), stats(self.path)
        found = SpoolMeasurement(
            seen.spool,
            seen.sources,
            seen.delivered,
            seen.duplicates,
            seen.rows,
            seen.committed,
            seen.bytes,
            self._oldest_unread_ms(seen),
        )
        before, self._before = self._before, (now, seen)
        if before is None or before[1].spool != seen.spool or now <= before[0]:
            return found
        seconds, earlier = now - before[0], before[1]
        return replace(
            found,
            delivered_per_second=(seen.delivered - earlier.delivered) / seconds,
            kept_per_second=(seen.rows - earlier.rows) / seconds,
            committed_per_second=(seen.committed - earlier.committed) / seconds,
        )

    def _oldest_unread_ms(self, seen: SpoolStats) -> int:
        """By the publish times that the segments name, in microseconds; a segment counts as a whole."""
        state = read_state(LocalStore(self.path, "observe"), seen.spool)
        unread = [each.published[0] for each in state.segments if each.end > state.committed and each.published]
        return max(0, time.time_ns() // 1_000_000 - min(unread) // 1000) if unread else 0
