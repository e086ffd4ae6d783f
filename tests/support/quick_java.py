"""Lets the JVMs of Spark in tests start in a quarter of the time: one compiler, and classes from an archive.

Java's second compiler and the loading of classes are most of what a short run of Spark takes. Measured for a session
with one query: 16.0 s of processor time as Java comes, 8.4 s without the second compiler, 3.8 s with the archive too.
Java ignores an archive that is not there or that another Java or Spark has made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from connectors.cli.demo.job import QUICK_JAVA

ARCHIVE = Path(sys.prefix, "spark.jsa")
VARIABLE = "SPARK_SUBMIT_OPTS"
"""What Spark's launcher adds to the options of a driver's JVM."""
OPTIONS = f"{QUICK_JAVA} -Xlog:cds=off -Xlog:cds+dynamic=off -XX:SharedArchiveFile={ARCHIVE}"

# Uses what tests use most, so that its classes are in the archive.
_PROGRAM = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
folder = sys.argv[1]
spark.range(10).select(udf(lambda number: number, "long")("id").alias("id")).write.parquet(f"{folder}/rows")
rows = spark.readStream.schema("id BIGINT").parquet(f"{folder}/rows")
for form in ("parquet", "memory"):
    writer = rows.writeStream.format(form).queryName("q").option("checkpointLocation", f"{folder}/{form}-checkpoint")
    writer.trigger(availableNow=True).start(*[f"{folder}/out"] * (form == "parquet")).awaitTermination()
spark.sql("SELECT id % 2 AS k, count(*) FROM q GROUP BY k ORDER BY k").collect()
spark.stop()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def make_archive() -> str:
    """Write the archive unless it is there; return why it could not be written, or an empty text."""
    if ARCHIVE.is_file():
        return ""
    new = ARCHIVE.with_suffix(".new")
    options = f"{QUICK_JAVA} -Xlog:cds=off -Xlog:cds+dynamic=off -XX:ArchiveClassesAtExit={new}"
    with TemporaryDirectory() as folder:
        command = (sys.executable, "-c", _PROGRAM, folder)
        environment = os.environ | {VARIABLE: options, "SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    if done.returncode or not new.is_file():
        return (done.stderr.strip().splitlines() or ["Java wrote no archive"])[-1]
    new.replace(ARCHIVE)
    return ""
