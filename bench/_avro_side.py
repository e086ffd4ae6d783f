"""One side of the cases through Spark in bench/avro.py: a process and a Spark session of its own.

``_avro_side.py SIDE [NAME=VALUE ...]``, with settings of the session after ``SIDE``: ``connectors``, ``jar`` (Spark's
own functions), ``fastavro`` (in an Arrow UDF, as users write it) or ``ceiling`` (an Arrow UDF that only returns a
column that it has). Each line of standard input is a command, one JSON object with ``do`` and what the method of that
name takes; each is answered by one JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyspark.sql.avro.functions as of_spark
import pyspark.sql.functions as sf
from _avro_cases import messages_of, schema_of, with_fastavro, written_by_fastavro
from _kafka_side import end_with_group, serve
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType

import connectors.avro as ours
from connectors.avro.options import parse_avro_options
from connectors.avro.worker import DecodeCall
from tests.servers.maven import class_path

_DISTINCT = 10_000
_WARM_UP = 2
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Side:
    """Decodes and encodes cached frames into Spark's noop sink.

    Args:
        spark: the session.
        name: which side it is.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark, self._name = spark, name
        self._frame: DataFrame | None = None
        self._column: Column | None = None

    def prepare(self, schema: str, direction: str, rows: int, batch: int) -> dict[str, Any]:
        """Cache a frame in two partitions, and warm up; the digest is that of the results.

        Args:
            schema: its name.
            direction: ``decode`` or ``encode``.
            rows: how many.
            batch: the rows of an Arrow batch.
        """
        if self._frame is not None:
            self._frame.unpersist(blocking=True)
        self._spark.conf.set(_BATCH, str(batch))
        text = json.dumps(schema_of(schema))
        messages = pa.array(messages_of(schema_of(schema), min(rows, _DISTINCT)), pa.binary())
        values = DecodeCall(text, parse_avro_options(None, "from_avro"))(messages)
        column = (messages if direction == "decode" else values).take(
            pa.array([row % len(messages) for row in range(rows)])
        )
        self._frame = self._spark.createDataFrame(pa.table({"value": column})).repartition(2).cache()
        ready = (values if direction == "decode" else messages).slice(0, batch)
        self._column = self._ceiling(ready) if self._name == "ceiling" else self._function(text, direction, values.type)
        assert self._frame.count() == rows
        digest = self._chosen().select(sf.bit_xor(sf.xxhash64("out"))).collect()[0][0]
        for _ in range(_WARM_UP):
            self.run()
        return {"digest": digest}

    def run(self) -> dict[str, Any]:
        """Convert the frame once."""
        chosen = self._chosen()
        begin = time.perf_counter()
        chosen.write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - begin}

    def _chosen(self) -> DataFrame:
        assert self._frame is not None
        assert self._column is not None
        chosen = self._frame.select(self._column.alias("out"))
        plan = str(chosen._jdf.queryExecution().optimizedPlan().toString())  # noqa: SLF001 - explain() prints only
        above_cache = plan.partition("InMemoryRelation")[0]
        assert ("ArrowEvalPython" in above_cache) == (self._name != "jar"), f"not what is measured: {above_cache}"
        return chosen

    def _ceiling(self, ready: pa.Array) -> Column:
        return sf.arrow_udf(lambda column: ready.slice(0, len(column)), from_arrow_type(ready.type))("value")

    def _function(self, schema: str, direction: str, kind: pa.DataType) -> Column:
        if self._name == "fastavro":
            parsed = fastavro.parse_schema(json.loads(schema))
            if direction == "decode":
                return sf.arrow_udf(_decoding(parsed, kind), from_arrow_type(kind))("value")
            return sf.arrow_udf(_encoding(parsed), BinaryType())("value")
        functions = of_spark if self._name == "jar" else ours
        convert = functions.from_avro if direction == "decode" else functions.to_avro
        return convert("value", schema)


def _decoding(parsed: Any, kind: pa.DataType) -> Any:
    def decode(column: pa.Array) -> pa.Array:
        return with_fastavro(parsed, kind, column)

    return decode


def _encoding(parsed: Any) -> Any:
    def encode(column: pa.Array) -> pa.Array:
        return written_by_fastavro(parsed, column)

    return encode


def main(name: str, *settings: str) -> None:
    """Serve commands until the input ends."""
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)  # the workers import what fastavro's side does
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "2g").config("spark.log.level", "ERROR")
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    if name == "jar":
        builder = builder.config("spark.jars", class_path("spark-avro").path)
    side = Side(builder.getOrCreate(), name)
    serve({"prepare": side.prepare, "run": side.run})


if __name__ == "__main__":
    end_with_group(partial(main, *sys.argv[1:]))
