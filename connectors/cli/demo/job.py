"""The queries of the demo, in a process of their own, so that it can be killed: ``python -m connectors.cli.demo.job``.

It reads its plan as one line of JSON from standard input and streams until the file ``stop`` appears; when its input
ends, the demonstration is gone, and so is it. Each query's sink keeps one file per batch, named by the batch id and
replaced by a replay, as an idempotent sink does; each write leaves a line with the digest of its rows. While there is
a file ``hold``, a write waits between the two and Spark's own record that the batch is done: a kill of the driver then
makes Spark repeat a batch that is in the sink. A query that a kill ended is restarted, as its operator would do.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc

from connectors import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOG_NAME = "batches.jsonl"
ERROR_NAME = "error"
_POLL_SECONDS = 0.2
_HOLD_SECONDS = 20.0
_OUR_ERRORS = "connectors.core.errors."
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for half a minute starts sooner without its second compiler."""


def sink_files(folder: Path) -> list[Path]:
    """Return the files of a query's sink, one per batch, in order."""
    return sorted(folder.glob("*.arrow"), key=lambda path: int(path.stem))


def main(plan: Mapping[str, Any]) -> None:
    """Run the queries of a plan until the file ``stop`` appears or the process is killed."""
    folder, restarts = Path(plan["folder"]), int(plan["restarts"])
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a second of imports that only this process needs

    spark = (
        SparkSession.builder.master("local[2,4]")  # four attempts per task, as on a cluster
        .appName("pyspark-stream-connectors demo")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.extraJavaOptions", QUICK_JAVA)
        .getOrCreate()
    )
    register(spark)
    start = partial(_start, spark, folder, time.time_ns(), plan["run"])
    queries = {number: start(one) for number, one in enumerate(plan["queries"])}
    while not (folder / "stop").exists():
        time.sleep(_POLL_SECONDS)
        for number, query in queries.items():
            if query.isActive:
                continue
            error = str(query.exception() or "it ended by itself")
            if _OUR_ERRORS in error or not restarts:
                (folder / ERROR_NAME).write_text(error)
                sys.exit(1)
            restarts -= 1
            queries[number] = start(plan["queries"][number])
    for one, query in zip(plan["queries"], queries.values(), strict=True):
        if one["sink"]:  # nobody has counted yet how far this one is
            query.processAllAvailable()
        query.stop()
    spark.stop()


def _start(spark: SparkSession, parent: Path, started: int, run: str, plan: Mapping[str, Any]) -> StreamingQuery:
    folder = parent / plan["name"]
    sink = folder / "sink"
    sink.mkdir(parents=True, exist_ok=True)

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.toArrow()
        _replace(sink / f"{batch_id}.arrow", rows)
        digest = hashlib.sha256(json.dumps(rows.to_pydict()).encode()).hexdigest()
        own = sum(run in (text or "") for text in rows["text"].to_pylist())  # a topic that was there may have others
        entry = {"run": started, "batch": batch_id, "rows": own, "digest": digest, "ended": time.time()}
        with (folder / LOG_NAME).open("a") as log:
            log.write(json.dumps(entry) + "\n")
        give_up_at = time.monotonic() + _HOLD_SECONDS
        while (parent / "hold").exists() and time.monotonic() < give_up_at:
            time.sleep(_POLL_SECONDS / 10)

    rows = spark.readStream.format(plan["source"]).options(**plan["options"]).load()
    if plan["sink"]:
        writer = rows.select("key", "value").writeStream.format(plan["source"]).options(**plan["sink"])
    else:
        columns = zip(plan["columns"], ("text", "place", "position"), strict=True)
        writer = rows.selectExpr(*[f"{column} AS {name}" for column, name in columns]).writeStream.foreachBatch(write)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


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
