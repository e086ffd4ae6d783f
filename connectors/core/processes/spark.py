"""What the Spark of this process can do, and the one fault of its workers that is worked around.

Platforms carry features of later releases back, so each feature is looked for, and nothing asks for a version. Where
one is missing, a stand-in takes the place of its classes.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pyspark import accumulators as _accumulators
from pyspark.sql import datasource as _datasource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter,
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
        StringStartsWith,
    )
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

__all__ = [
    "ADMISSION_CONTROL",
    "PUSHED_FILTERS",
    "STREAM_ARROW_WRITERS",
    "DataSourceStreamArrowWriter",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "StringStartsWith",
    "SupportsTriggerAvailableNow",
    "features",
    "withhold_empty_profiles",
]

ADMISSION_CONTROL: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark says where a batch begins and by how much it is limited, and announces ``Trigger.AvailableNow``."""
STREAM_ARROW_WRITERS: Final = hasattr(_datasource, "DataSourceStreamArrowWriter")
PUSHED_FILTERS: Final = hasattr(_datasource, "Filter")
_FILTERS: Final = (
    "EqualNullSafe",
    "EqualTo",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "LessThan",
    "LessThanOrEqual",
    "StringStartsWith",
)
_PLANNER: Final = "pyspark.sql.worker.utils"
"""Loaded by the processes that build, plan and commit for the driver, and by no task."""
_PROFILES: Final = (-1, -2)
"""The numbers of the profiles (``SpecialAccumulatorIds`` of Spark 4.2)."""


def features() -> dict[str, bool]:
    """Return by name which of the features that the connectors use this Spark has."""
    from pyspark.sql import functions  # noqa: PLC0415 - a source process needs none of them

    return {
        "limits of Python stream readers, Trigger.AvailableNow": ADMISSION_CONTROL,
        "Arrow writers of streams": STREAM_ARROW_WRITERS,
        "pushed filters": PUSHED_FILTERS,
        "Arrow functions": hasattr(functions, "arrow_udf"),
    }


def withhold_empty_profiles() -> None:
    """Have this process of Spark's driver send a profile only once something was added to it.

    From Spark 4.2 on, such a process reports two profiles after each run, empty ones unless
    ``spark.sql.pyspark.dataSource.profiler`` is set. Spark Connect passes them on, and ``spark-pipelines run`` fails
    with ``UNKNOWN_RESPONSE`` once all rows are written. docs/explanation/spark-faults.md says more.
    """
    if _PLANNER not in sys.modules:  # a user's program may have profiles of its own under these numbers
        return
    registered = _accumulators._accumulatorRegistry  # noqa: SLF001 - no public name reaches it
    for number in _PROFILES:
        profile = registered.get(number)
        if profile is not None and not profile._value:  # noqa: SLF001 - `value` belongs to the driver alone
            profile.__class__ = _SentOnceAdded
            del registered[number]


class _SentOnceAdded(_accumulators.Accumulator[Any]):
    def add(self, term: Any) -> None:
        _accumulators._accumulatorRegistry[self.aid] = self  # noqa: SLF001 - as above
        super().add(term)


if not TYPE_CHECKING:
    if ADMISSION_CONTROL:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    else:

        class ReadLimit:
            """Stands for the limit of a batch."""

        class ReadAllAvailable(ReadLimit):
            """Stands for no limit."""

        class ReadMaxRows(ReadLimit):
            """Stands for a number of rows."""

            def __init__(self, max_rows: int) -> None:
                self.max_rows = max_rows

        class SupportsTriggerAvailableNow:
            """Stands for a reader that is told of bounded runs."""

    if STREAM_ARROW_WRITERS:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    else:

        class DataSourceStreamArrowWriter(_datasource.DataSourceStreamWriter, _datasource.DataSourceArrowWriter):
            """Stands for a writer of Arrow batches.

            Spark 4.0 hands a writer Arrow batches if it is one of batch writes, and does not look whether the write is
            that of a stream (pyspark/sql/worker/write_into_data_source.py).
            """

    if PUSHED_FILTERS:
        from pyspark.sql.datasource import (
            EqualNullSafe,
            EqualTo,
            Filter,
            GreaterThan,
            GreaterThanOrEqual,
            In,
            LessThan,
            LessThanOrEqual,
            StringStartsWith,
        )
    else:

        class Filter:
            """Stands for a condition that this Spark keeps to itself."""

        globals().update({name: type(name, (Filter,), {}) for name in _FILTERS})
