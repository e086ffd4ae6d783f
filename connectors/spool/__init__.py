"""Fetching ahead of the micro-batches: segments, a ledger that admits them once, and positions that never change.

The public names: counts of a spool, and the parts to build a source of your own on a spool. See
``docs/how-to/write-a-source.md``. The rules R1 to R10 that the modules cite are in ``docs/explanation/spool.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from connectors.core.formats import extra_imports

if TYPE_CHECKING:
    from connectors.core.options.declaration import option
    from connectors.core.options.kinds import BOOLEAN, BYTES, DURATION, INTEGER, SECRET, STRING, Secret, choice
    from connectors.spool.admin.survey import SpoolRates, SpoolStats, rates, stats
    from connectors.spool.fetching.contract import Block, FetchContext, FetchTarget, Intake, TargetStatus
    from connectors.spool.options import SpoolOptions
    from connectors.spool.segments.rows import RowSchema
    from connectors.spool.source.connector import Feed, SpoolConnector, SpoolStart
    from connectors.spool.source.reader import SpoolBatchReader, SpoolDataSource, SpoolStreamReader

__all__ = [
    "BOOLEAN",
    "BYTES",
    "DURATION",
    "INTEGER",
    "SECRET",
    "STRING",
    "Block",
    "Feed",
    "FetchContext",
    "FetchTarget",
    "Intake",
    "RowSchema",
    "Secret",
    "SpoolBatchReader",
    "SpoolConnector",
    "SpoolDataSource",
    "SpoolOptions",
    "SpoolRates",
    "SpoolStart",
    "SpoolStats",
    "SpoolStreamReader",
    "TargetStatus",
    "choice",
    "option",
    "rates",
    "stats",
]

_MODULES: Final = {
    "core.options.declaration": ("option",),
    "core.options.kinds": ("BOOLEAN", "BYTES", "DURATION", "INTEGER", "SECRET", "STRING", "Secret", "choice"),
    "spool.admin.survey": ("SpoolRates", "SpoolStats", "rates", "stats"),
    "spool.fetching.contract": ("Block", "FetchContext", "FetchTarget", "Intake", "TargetStatus"),
    "spool.segments.rows": ("RowSchema",),
    "spool.source.connector": ("Feed", "SpoolConnector", "SpoolStart"),
    "spool.options": ("SpoolOptions",),
    "spool.source.reader": ("SpoolBatchReader", "SpoolDataSource", "SpoolStreamReader"),
}


def __getattr__(name: str) -> Any:
    # Fetchers and tasks import modules below, and need not wait for Spark and for what only others use.
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra_imports("spool", "a spool"):
        return getattr(importlib.import_module(f"connectors.{module}"), name)
