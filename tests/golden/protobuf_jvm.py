"""Asks Spark's own from_protobuf and to_protobuf; run by an interpreter whose pyspark pairs with the jar.

    PYTHON protobuf_jvm.py JAR < questions.json > answers.json

Reads a list of cases with the path of their descriptor set, writes a list of answers. Knows nothing of this pack.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql.protobuf.functions import from_protobuf, to_protobuf

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - what pyspark collects, with the session in UTC


def plain(value):  # noqa: ANN001, ANN201, PLR0911 - Python 3.8 to 3.11, and no types
    """A collected value as JSON: bytes as hexadecimal digits, times and intervals as microseconds, maps as pairs."""
    if isinstance(value, (bytes, bytearray)):
        return {"hex": bytes(value).hex()}
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, tuple):
        return {name: plain(item) for name, item in value.asDict(recursive=False).items()}
    if isinstance(value, dict):
        return [[plain(key), plain(item)] for key, item in value.items()]
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def ask(spark, case):  # noqa: ANN001, ANN201
    """The answer to one case."""
    if case["encode"]:
        frame = spark.sql("select " + case["encode"] + " as value")
        column = to_protobuf("value", case["message"], case["path"])
        return {"bytes": attempt(lambda: bytes(frame.select(column.alias("out")).collect()[0].out).hex())}
    column = from_protobuf("value", case["message"], case["path"], case["options"])
    rows = []
    schema = None
    for row in case["decode"]:
        frame = spark.createDataFrame([(bytearray.fromhex(row),)], "value binary").select(column.alias("out"))
        schema = frame.schema["out"].dataType.simpleString()
        rows.append(attempt(lambda frame=frame: plain(frame.collect()[0].out)))
    return {"schema": schema, "rows": rows}


def attempt(function):  # noqa: ANN001, ANN201
    """What a query gives, or that it fails."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - the answer is that it fails
        return {"error": str(error)[:200]}


def main():  # noqa: ANN201
    """Answer the questions."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", sys.argv[1])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    answers = [ask(spark, case) for case in json.load(sys.stdin)]
    json.dump({"version": spark.version, "answers": answers}, sys.stdout)
    spark.stop()


if __name__ == "__main__":
    main()
