"""Fetching ahead of the micro-batches: segments, a ledger that admits them once, and positions that never change.

The rules R1 to R10 that the modules cite are in ``docs/explanation/spool.md``.
"""

from __future__ import annotations

from connectors.core.extras import extra_imports

with extra_imports("pubsub", "a spool"):
    from connectors.spool.admin.survey import SpoolRates, SpoolStats, rates, stats

__all__ = ["SpoolRates", "SpoolStats", "rates", "stats"]
