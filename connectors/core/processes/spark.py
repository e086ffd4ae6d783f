"""What the Spark of this process can do, and all that the pack uses of PySpark without it being documented.

Platforms carry features of later releases back, so each feature is looked for, and nothing asks for a version. Where
one is missing, a stand-in takes the place of its classes. No other module uses a name that PySpark does not
document (a house rule), and tests/spark/test_internals.py looks for each in the Spark that is installed.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import accumulators as _accumulators
from pyspark.sql import datasource as _datasource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import Column, SparkSession
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
    from pyspark.sql.types import DataType, StructType

    ColumnOrName = Column | str

__all__ = [
    "ADMISSION_CONTROL",
    "COMMAND_LINES",
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
    "StreamPlan",
    "StringStartsWith",
    "SupportsTriggerAvailableNow",
    "classic_context",
    "executor_hosts",
    "features",
    "jvm_has_class",
    "reasons_of_spark",
    "require_pandas",
    "run_tasks_on",
    "running_query",
    "spark_schema",
    "spark_type",
    "stream_plan",
    "tasks_python",
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
COMMAND_LINES: Final = {
    "source": "pyspark.sql.streaming.python_streaming_source_runner",
    "worker": "pyspark.daemon",
}
"""The modules that Spark runs as the process of a stream's source, and as the parent of the workers of tasks."""
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


def classic_context(session: SparkSession | None) -> SparkContext | None:
    """Return the context of a session of Spark Classic; None of Spark Connect, where asking for it is an error."""
    context: SparkContext | None = getattr(session, "_sc", None)
    return context


def running_query(session: SparkSession) -> str | None:
    """Return the id of the streaming query that calls ``foreachBatch``; None of Spark Connect, which does not tell."""
    context = classic_context(session)
    return None if context is None else context.getLocalProperty("sql.streaming.queryId")


def jvm_has_class(session: SparkSession | None, name: str) -> bool:
    """Return whether a class is on the class path of the driver; Spark Connect does not let us see."""
    jvm: Any = getattr(session, "_jvm", None)
    if jvm is None:
        return False
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 - not with Spark Connect

    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return False
    return True


class StreamPlan(NamedTuple):
    """Formats and options of the sources of a query, in the order of its progress reports, and of its sink.

    The format of a source is empty where Spark has no options of it. That of a sink of Spark's own is its description.
    """

    sources: tuple[tuple[str, dict[str, str]], ...] = ()
    sink: tuple[str, dict[str, str]] = ("", {})


def stream_plan(session: SparkSession, query: str) -> StreamPlan | None:
    """Return what an active query was started with, by its id; None where the session does not show it.

    Spark's events have no options, and its progress reports name a Python source by its class in the JVM.
    """
    java: Any = getattr(session.streams.get(query), "_jsq", None)
    if java is None:
        return None
    from py4j.protocol import Py4JError  # noqa: PLC0415 - not with Spark Connect

    jvm: Any = session._jvm  # noqa: SLF001 - converts the maps of Scala
    try:
        execution = java.streamingQuery()
        nodes, sink = execution.analyzedPlan().collectLeaves(), execution.sink()
        sources = tuple(
            (leaf.sourceName(), dict(leaf.extraOptions().asCaseSensitiveMap()))
            if leaf.getClass().getSimpleName() == "StreamingRelationV2"
            else ("", {})
            for leaf in map(nodes.apply, range(nodes.size()))
            if leaf.isStreaming()
        )
        name = sink.name() if ".v2.python." in sink.getClass().getName() else sink.toString()
        options = jvm.scala.jdk.javaapi.CollectionConverters.asJava(_field(execution, "extraOptions"))
        return StreamPlan(sources, (name, dict(options)))
    except (Py4JError, AttributeError):  # a class of another form, or a platform that allows no such calls
        return None


def _field(value: Any, name: str) -> Any:
    """Return a private field of an object of the JVM; `AttributeError` if none of its classes declares it."""
    kind = value.getClass()
    while name not in (fields := {field.getName(): field for field in kind.getDeclaredFields()}):
        kind = kind.getSuperclass()
    fields[name].setAccessible(True)
    return fields[name].get(value)


def executor_hosts(context: SparkContext) -> list[str]:
    """Return the host of each executor, and of the driver, which Spark lists among them."""
    jvm: Any = context._jsc  # noqa: SLF001 - PySpark's own tracker names no executors
    return [info.host() for info in jvm.sc().statusTracker().getExecutorInfos()]


def tasks_python(context: SparkContext) -> str:
    """Return the Python that Spark starts for tasks and data sources: a name, or a path."""
    return context.pythonExec


def run_tasks_on(context: SparkContext, python: str) -> None:
    """Have functions and data sources that are made from now on run on this Python."""
    context.pythonExec = python


def spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - tasks need none of it

    return from_arrow_schema(schema)


def spark_type(kind: pa.DataType) -> DataType:
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - as above

    return from_arrow_type(kind)


def require_pandas() -> None:
    """Raise an `ImportError` where this Spark finds no pandas, or one that it does not take."""
    from pyspark.sql.pandas.utils import require_minimum_pandas_version  # noqa: PLC0415 - only Spark 4.0 needs pandas

    require_minimum_pandas_version()


def reasons_of_spark(error: BaseException) -> tuple[list[str], BaseException | None]:
    """Return the stacks of the JVM that an error of PySpark holds, and the error that caused it there."""
    # Classic PySpark and Spark Connect keep the stack under two names.
    stacks = (getattr(error, name, None) for name in ("_stackTrace", "_stacktrace"))
    return [stack for stack in stacks if isinstance(stack, str)], getattr(error, "_cause", None)


def withhold_empty_profiles() -> None:
    """Have this process of Spark's driver send a profile only once something was added to it.

    From Spark 4.2 on, such a process reports two profiles after each run, empty ones unless
    ``spark.sql.pyspark.dataSource.profiler`` is set. Spark Connect passes them on, and ``spark-pipelines run`` fails
    with ``UNKNOWN_RESPONSE`` once all rows are written. docs/faults/spark.md says more.
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
