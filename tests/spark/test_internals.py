"""What the pack uses of PySpark without it being documented, on any supported Spark: is it there, does it do its part?

A Spark that drops or moves a name fails here. So does a new use without a probe.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from connectors.core.processes import spark as internals
from tests import house_rules as rules

# PySpark before 4.2 leaves sockets open.
pytestmark = [pytest.mark.versions, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

ROOT = Path(__file__).resolve().parents[2]
VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
SINCE = {"pyspark.sql.worker.utils": (4, 2)}
"""Spark versions before these have not got the name, and `connectors.core.processes.spark` does without it."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


class Sink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "sink_of_a_test"

    def streamWriter(self, *_: Any) -> Any:
        raise NotImplementedError


def names_used() -> list[str]:
    return sorted({name for _, name in rules.spark_internals(ROOT, ROOT / rules.SPARK_HELPER)})


def failure(spark: SparkSession) -> PySparkException:
    with pytest.raises(PySparkException) as caught:
        spark.sql("SELECT raise_error('planned')").collect()
    return caught.value


def has(module: str, name: str) -> Callable[[SparkSession], bool]:
    return lambda _: hasattr(pytest.importorskip(module), name)


def session_has(name: str) -> Callable[[SparkSession], bool]:
    return lambda spark: getattr(spark, name, None) is not None


def context_has(name: str) -> Callable[[SparkSession], bool]:
    return lambda spark: getattr(spark.sparkContext, name, None) is not None


def connect_errors_have(name: str) -> Callable[[SparkSession], bool]:
    """Its module needs packages of Spark Connect, so it is read."""
    source = Path(pyspark.__file__).parent / "errors/exceptions/connect.py"
    return lambda _: f"self.{name}" in source.read_text()


def started_query_has(name: str) -> Callable[[SparkSession], bool]:
    def probe(spark: SparkSession) -> bool:
        query = spark.readStream.format("rate").load().writeStream.format("noop").start()
        query.stop()
        return hasattr(query, name)

    return probe


PROBES: dict[str, Callable[[SparkSession], bool]] = {
    "_accumulatorRegistry": has("pyspark.accumulators", "_accumulatorRegistry"),
    "_cause": lambda spark: hasattr(failure(spark), "_cause"),
    "_jsc": context_has("_jsc"),
    "_jsq": started_query_has("_jsq"),
    "_jvm": session_has("_jvm"),
    "_sc": session_has("_sc"),
    "_stackTrace": lambda spark: "org.apache.spark" in getattr(failure(spark), "_stackTrace", ""),
    "_stacktrace": connect_errors_have("_stacktrace"),
    "_value": lambda spark: hasattr(spark.sparkContext.accumulator(0), "_value"),
    "py4j.protocol": lambda _: find_spec("py4j.protocol") is not None,
    "py4j.protocol.Py4JError": has("py4j.protocol", "Py4JError"),
    "py4j.protocol.Py4JJavaError": has("py4j.protocol", "Py4JJavaError"),
    "pyspark.accumulators": lambda _: find_spec("pyspark.accumulators") is not None,
    "pyspark.daemon": lambda _: find_spec("pyspark.daemon") is not None,
    "pyspark.sql.pandas.types": lambda _: find_spec("pyspark.sql.pandas.types") is not None,
    "pyspark.sql.pandas.types.from_arrow_schema": has("pyspark.sql.pandas.types", "from_arrow_schema"),
    "pyspark.sql.pandas.types.from_arrow_type": has("pyspark.sql.pandas.types", "from_arrow_type"),
    "pyspark.sql.pandas.utils": lambda _: find_spec("pyspark.sql.pandas.utils") is not None,
    "pyspark.sql.pandas.utils.require_minimum_pandas_version": has(
        "pyspark.sql.pandas.utils", "require_minimum_pandas_version"
    ),
    "pyspark.sql.streaming.python_streaming_source_runner": lambda _: (
        find_spec("pyspark.sql.streaming.python_streaming_source_runner") is not None
    ),
    "pyspark.sql.worker.utils": lambda _: find_spec("pyspark.sql.worker.utils") is not None,
    "pythonExec": context_has("pythonExec"),
}


def test_each_name_that_is_used_has_a_probe_and_no_other() -> None:
    assert names_used() == sorted(PROBES)


@pytest.mark.parametrize("name", names_used())
def test_a_name_is_in_the_versions_that_are_said_to_have_it(spark: SparkSession, name: str) -> None:
    assert PROBES[name](spark) == (SINCE.get(name, (4, 0)) <= VERSION)


def test_a_session_of_spark_classic_shows_its_context_its_executors_and_its_classes(spark: SparkSession) -> None:
    context = internals.classic_context(spark)
    assert context is spark.sparkContext
    assert internals.executor_hosts(context) == [spark.conf.get("spark.driver.host")]
    assert internals.jvm_has_class(spark, "org.apache.spark.SparkContext")
    assert not internals.jvm_has_class(spark, "org.apache.spark.NoSuchClass")


def test_a_query_that_runs_shows_formats_and_options_of_its_sources_and_its_sink(
    spark: SparkSession, tmp_path: Path
) -> None:
    rates = [spark.readStream.format("rate").option("rowsPerSecond", number).load() for number in (1, 2)]
    (tmp_path / "in").mkdir()
    text = spark.readStream.text(str(tmp_path / "in")).selectExpr("now() AS timestamp", "1L AS value")
    table = spark.range(1).selectExpr("now() AS timestamp", "id AS value")
    spark.dataSource.register(Sink)
    writer = rates[0].union(rates[1]).union(text).join(table, "value").writeStream
    options = {"checkpointLocation": str(tmp_path / "checkpoint"), "someOption": "1"}
    sources = (("rate", {"rowsPerSecond": "1"}), ("rate", {"rowsPerSecond": "2"}), ("", {}))
    for start, sink in (
        (lambda: writer.format("sink_of_a_test").options(**options).start(), "sink_of_a_test"),
        (
            lambda: writer.format("parquet").options(**options).start(f"{tmp_path}/out"),
            f"FileSink[file:{tmp_path}/out]",
        ),
    ):
        query = start()
        plan = internals.stream_plan(spark, str(query.id))
        query.stop()
        assert plan is not None
        assert (plan.sources, plan.sink[0]) == (sources, sink)
        assert plan.sink[1].items() >= options.items()


def test_a_query_that_has_ended_shows_no_plan(spark: SparkSession) -> None:
    assert internals.stream_plan(spark, "00000000-0000-0000-0000-000000000000") is None


def test_without_a_session_of_spark_classic_there_is_no_context_and_no_class() -> None:
    assert internals.classic_context(None) is None
    assert not internals.jvm_has_class(None, "java.lang.String")


def test_functions_run_on_the_python_that_is_set(spark: SparkSession, tmp_path: Path) -> None:
    context, before = spark.sparkContext, internals.tasks_python(spark.sparkContext)
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\necho started >>"{tmp_path}/started"\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    internals.run_tasks_on(context, str(wrapper))
    try:
        assert internals.tasks_python(context) == str(wrapper)
        doubled: Any = spark.udf.register("doubled_elsewhere", lambda number: number * 2, "bigint")
        assert spark.range(3, 4).select(doubled("id")).collect()[0][0] == 6
    finally:
        internals.run_tasks_on(context, before)
    assert (tmp_path / "started").read_text()


def test_the_stack_of_a_failure_in_the_jvm_is_returned(spark: SparkSession) -> None:
    stacks, _ = internals.reasons_of_spark(failure(spark))
    assert any("org.apache.spark" in stack for stack in stacks)
    assert internals.reasons_of_spark(ValueError("ours")) == ([], None)


PYTHON_STREAMS = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream"
METHODS = {"initialOffset", "latestOffset", "partitions", "read", "commit", "stop"}
METHODS_OF_4_2 = {"getDefaultReadLimit", "reportLatestOffset"}


def test_this_spark_asks_no_python_source_for_metrics(spark: SparkSession) -> None:
    """When this fails, `lastProgress` can have the metrics of `connectors.kafka.lag`: see docs/faults/spark.md."""
    jvm: Any = spark._jvm
    asked = jvm.java.lang.Class.forName("org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics")
    names = [PYTHON_STREAMS, *(PYTHON_STREAMS + more for more in ("WithAdmissionControl", "WithTriggerAvailableNow"))]
    streams = [jvm.java.lang.Class.forName(name) for name in names if internals.jvm_has_class(spark, name)]
    assert len(streams) == (3 if VERSION >= (4, 2) else 1)
    assert not [stream.getName() for stream in streams if asked.isAssignableFrom(stream)]
    methods = {name for name in dir(DataSourceStreamReader) if not name.startswith("_")}
    assert methods == METHODS | (METHODS_OF_4_2 if VERSION >= (4, 2) else set())


class Pairs(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pairs_of_a_test"

    def schema(self) -> str:
        return "one INT, other INT"

    def reader(self, **_: Any) -> DataSourceReader:
        return PairsReader()

    def streamReader(self, **_: Any) -> DataSourceStreamReader:
        return PairsStreamReader()


class PairsReader(DataSourceReader):
    def read(self, _partition: Any) -> Iterator[tuple[int, int]]:
        yield 1, 2


class PairsStreamReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:
        return {"rows": 1}

    def partitions(self, _start: Any, _end: Any) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, _partition: Any) -> Iterator[tuple[int, int]]:
        yield 1, 2


def test_this_spark_tells_no_python_source_which_columns_a_query_uses(spark: SparkSession, tmp_path: Path) -> None:
    """When this fails, a source can leave out columns that nobody reads: see docs/faults/spark.md."""
    spark.dataSource.register(Pairs)
    batch = spark.read.format("pairs_of_a_test").load().select("one")
    stream = spark.readStream.format("pairs_of_a_test").load().select("one")
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    query.processAllAvailable()
    query.stop()
    plans = [batch._jdf.queryExecution().executedPlan().toString(), query._jsq.explainInternal(False)]
    assert [plan for plan in plans if not re.search(r"Scan.*\[one#\d+, other#\d+\]", plan)] == [], plans


def test_types_of_arrow_become_spark_s() -> None:
    assert internals.spark_type(pa.list_(pa.int64())).simpleString() == "array<bigint>"
    schema = internals.spark_schema(pa.schema([("id", pa.int32()), ("name", pa.string())]))
    assert schema.simpleString() == "struct<id:int,name:string>"
