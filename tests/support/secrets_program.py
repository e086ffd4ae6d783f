"""A program that uses formats with secret options in every way and prints what Spark shows of them: one JSON object.

Its argument is a list of cases: a format, whether it is written, and the options.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors import register


def plans(frame: Any) -> str:
    """What ``explain(True)`` prints of a frame or a running query."""
    extended = frame._jsq if isinstance(frame, StreamingQuery) else frame._jdf.queryExecution()
    if isinstance(frame, StreamingQuery):
        return str(extended.explainInternal(True))
    return str(frame.sparkSession._jvm.PythonSQLUtils.explainString(extended, "extended"))


def error_of(action: Callable[[], object]) -> str:
    """What the user is told by an action that must fail."""
    try:
        action()
    except PySparkException as error:
        return str(error)
    raise AssertionError("it did not fail")


def typo(frame: DataFrame) -> str:
    """The AnalysisException for a column that is not there."""
    return error_of(lambda: frame.select("typo"))


def run(query: StreamingQuery) -> str:
    """The plans and the error of a query that is stopped soon."""
    try:
        query.awaitTermination(3)
        shown = ""
    except PySparkException as error:
        shown = str(error)
    shown += plans(query)
    query.stop()
    return shown


def read(spark: SparkSession, source: str, options: dict[str, str], folder: str) -> dict[str, str]:
    """What is shown of reads."""
    batch = spark.read.format(source).options(**options).load()
    stream = spark.readStream.format(source).options(**options).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", f"{folder}/read").start()
    return {
        "batch explain": plans(batch),
        "batch error": typo(batch),
        "stream explain": plans(stream),
        "stream error": typo(stream),
        "stream query": run(query),
    }


def write(spark: SparkSession, source: str, options: dict[str, str], folder: str) -> dict[str, str]:
    """What is shown of writes of rows whose columns do not fit."""
    rows = spark.range(1).selectExpr("id as nothing")
    batch = rows.write.format(source).options(**options).mode("append")
    stream = spark.readStream.format("rate").load().selectExpr("value as nothing")
    query = stream.writeStream.format(source).options(**options).option("checkpointLocation", f"{folder}/write")
    return {"batch error": error_of(batch.save), "stream query": run(query.start())}


def plans_of_the_user_interface(spark: SparkSession) -> str:
    """The plans that Spark's web page shows, also those of writes."""
    found = spark._jsparkSession.sharedState().statusStore().executionsList()
    return "\n".join(found.apply(at).physicalPlanDescription() for at in range(found.size()))


def main() -> None:
    """Print one line of JSON."""
    job = json.loads(sys.argv[1])
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", **job["settings"]}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    register(spark)
    once = spark.conf.get("spark.sql.redaction.options.regex")
    register(spark)
    shown: dict[str, Any] = {"regex": once, "again": spark.conf.get("spark.sql.redaction.options.regex")}
    for number, (source, writes, options) in enumerate(job["cases"]):
        use = write if writes else read
        shown[f"{number} {source}"] = use(spark, source, options, f"{job['folder']}/{number}")
    shown["user interface"] = plans_of_the_user_interface(spark)
    spark.stop()
    sys.stdout.write(json.dumps(shown) + "\n")


if __name__ == "__main__":
    main()
