"""One side of bench/kinesis_peer.py: a process and a Spark session of its own.

``_kinesis_peer_side.py JARS JAVA_OPTIONS``, both empty for ours. Each line of standard input is a command, one JSON
object with ``do`` and what the function of that name takes, and is answered by one line. Uses only what Spark 4.1 has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from connectors import register

_LOOK_SECONDS = 0.5
_MOST_SECONDS = 240.0


class Queries:
    """Runs one query after the other in a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read(self, name: str, options: Mapping[str, str], rows: int) -> dict[str, Any]:
        """Seconds from the start of a new query until `foreachBatch` has had so many rows, and until the first one."""
        seen, came = [0], threading.Event()
        firsts: list[float] = []

        def count(batch: DataFrame, _number: int) -> None:
            [found] = batch.selectExpr("count(data) AS found", "sum(length(data)) AS bytes").collect()
            if found["found"] and not firsts:
                firsts.append(time.perf_counter() - begin)
            seen[0] += found["found"]
            if seen[0] >= rows:
                came.set()

        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            frame = self._spark.readStream.format(name).options(**options).load()
            begin = time.perf_counter()
            query = frame.writeStream.foreachBatch(count).option("checkpointLocation", folder).start()
            while not came.wait(_LOOK_SECONDS):
                if not query.isActive or time.perf_counter() - begin > _MOST_SECONDS:
                    raise RuntimeError(f"{seen[0]} of {rows} rows came; {query.exception()}")
            seconds = time.perf_counter() - begin
            query.stop()
        return {"seconds": seconds, "first": firsts[0], "rows": seen[0]}

    def write(self, name: str, options: Mapping[str, str], folder: str) -> dict[str, Any]:
        """Seconds of a new query that writes the rows of JSON files."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
            rows = self._spark.readStream.schema("partitionKey STRING, data STRING").json(folder)
            writer = rows.writeStream.format(name).options(**options).option("checkpointLocation", checkpoint)
            begin = time.perf_counter()
            writer.trigger(availableNow=True).start().awaitTermination()
            return {"seconds": time.perf_counter() - begin}


def main(jars: str, java_options: str) -> None:
    """Serve commands until the input ends."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "2g").config("spark.log.level", "ERROR")
    if jars:
        builder = builder.config("spark.jars", jars).config("spark.driver.extraJavaOptions", java_options)
    spark = builder.getOrCreate()
    register(spark)
    queries = Queries(spark)
    print(json.dumps({"spark": spark.version}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(queries, command.pop("do"))(**command)), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:  # noqa: BLE001 - with a running query nothing ends in an orderly way
        traceback.print_exc()
    finally:
        os.killpg(0, signal.SIGKILL)
