"""The query of the demo, in a process of its own, so that it can be killed: ``python -m connectors.cli.demo.job``.

It reads its plan as one line of JSON from standard input and streams until the stop file appears; when its input ends,
the demonstration is gone, and so is it. Its sink keeps one file a batch, named by the batch id and replaced by a
replay, as an idempotent sink does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc

from connectors import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_NAME = "batches.jsonl"
_POLL_SECONDS = 1
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for half a minute starts sooner without its second compiler."""


def sink_files(folder: Path) -> list[Path]:
    """Return the files of the sink, one a batch."""
    return sorted(folder.glob("*.arrow"), key=lambda path: int(path.stem))


def main(plan: Mapping[str, Any]) -> None:
    """Run the query of a plan, its ``folder`` and ``options``, until the stop file appears or the process is killed."""
    folder = Path(plan["folder"])
    sink, stop = folder / "sink", folder / "stop"
    sink.mkdir(exist_ok=True)
    spark = _session()
    register(spark)
    run = time.time_ns()

    def write(batch: DataFrame, batch_id: int) -> None:
        started = time.time()
        rows = batch.toArrow()
        _replace(sink / f"{batch_id}.arrow", rows)
        entry = {"run": run, "batch": batch_id, "rows": len(rows), "started": started, "ended": time.time()}
        with (folder / LOG_NAME).open("a") as log:
            log.write(json.dumps(entry) + "\n")

    query = (
        spark.readStream.format("pubsub")
        .options(**plan["options"])
        .load()
        .selectExpr("messageId", "attributes['uid'] AS uid", "offset")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    while not stop.exists() and query.isActive:
        query.awaitTermination(_POLL_SECONDS)
    query.stop()
    spark.stop()


def _session() -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a second of imports that only this process needs

    return (
        SparkSession.builder.master("local[2]")
        .appName("pyspark-stream-connectors demo")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.extraJavaOptions", QUICK_JAVA)
        .getOrCreate()
    )


def _replace(path: Path, rows: pa.Table) -> None:
    temporary = path.with_suffix(".tmp")
    with pa.ipc.new_file(temporary, rows.schema) as writer:
        writer.write_table(rows)
    os.replace(temporary, path)  # noqa: PTH105 - the same call under its plain name


def _end_with_parent() -> None:
    """Kill this process and its JVM when the demonstration is gone."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    from_parent = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(from_parent)
