"""One version of Spark in bench/spark_versions.py: a process of its own that reads into the noop sink.

Each line of standard input is a command, one JSON object: ``format`` and ``options``, and ``count`` to count the rows
too. It is answered by one line with the rows and the seconds of the read. Uses only what Spark 4.0 has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from pyspark.sql import SparkSession

from connectors import register


def read(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    """Read once, all there is."""
    kind, options = command["format"], command["options"]
    frame = spark.read.format(kind).options(**options).load()
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return {"seconds": time.perf_counter() - begin, "rows": frame.count() if command.get("count") else 0}


def main() -> None:
    """Serve commands until the input ends."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "2g").config("spark.log.level", "ERROR").getOrCreate()
    register(spark)
    print(json.dumps({"spark": spark.version}), flush=True)
    for line in sys.stdin:
        print(json.dumps(read(spark, json.loads(line))), flush=True)


if __name__ == "__main__":
    try:
        main()
    finally:
        os.killpg(0, signal.SIGKILL)
