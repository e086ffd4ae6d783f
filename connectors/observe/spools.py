"""Looks at the spools of running queries, beside them, and tells how fast they move."""

from __future__ import annotations

import time
from dataclasses import replace

from connectors.observe.measure import SpoolMeasurement
from connectors.spool.stats import SpoolRates, SpoolStats, stats

__all__ = ["SpoolWatch"]


class SpoolWatch:
    """Looks at one spool again and again.

    Args:
        path: its ``spoolLocation``; the spool may be made later. An object store is reached as its environment says.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._before: SpoolStats | None = None

    def look(self) -> SpoolMeasurement:
        """The spool as it is now, with rates since the last look.

        Raises:
            SpoolError: there is no spool there, or it is damaged.
        """
        seen = stats(self.path)
        found = SpoolMeasurement(
            seen.spool,
            seen.sources,
            seen.delivered,
            seen.duplicates,
            seen.rows,
            seen.committed,
            seen.bytes,
            _age_ms(seen.oldest_unread),
        )
        before, self._before = self._before, seen
        if before is None or before.spool != seen.spool or seen.taken <= before.taken:
            return found
        rates = SpoolRates.between(before, seen)
        return replace(
            found,
            fetched_per_second=rates.fetched,
            admitted_per_second=rates.admitted,
            kept_per_second=rates.kept,
            committed_per_second=rates.committed,
        )


def _age_ms(published: int | None) -> int:
    """How long ago a publish time, in microseconds, was; 0 for none."""
    return 0 if published is None else max(0, time.time_ns() // 1_000_000 - published // 1000)
