"""A Spark process that runs one streaming query after the other.

    python -m tests.chaos.support.spark_job EVENTS SETTINGS     # of the session, as JSON

Each line of standard input is a command: ``{"run": plan}``, ``{"stop": true}`` or ``{"end": true}``. What happens is
appended to the file EVENTS, one JSON object a line. When standard input ends, whoever started this is gone, and so is
this process with its JVM.

The sink is keyed on the batch id: one file a batch, replaced by a replay. Each run of a batch also leaves a line with
the digest of its rows in ``batches.jsonl``, before the file is replaced, so that replays can be compared.

A query that ends by itself is started again on the same checkpoint, as whoever runs queries would do.
"""

from __future__ import annotations

import json
import os
import pkgutil
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from connectors import register
from connectors.cli.demo.job import QUICK_JAVA
from connectors.executors import fetch_on_executors
from connectors.protobuf import from_protobuf
from tests.chaos.support.lakehouse_tables import into_table
from tests.support.spark_protocol.driver import digest

LOG_NAME = "batches.jsonl"
SINK_NAME = "sink"

_MASTER = "local[2,4]"
"""Two cores, and four attempts a task, as a cluster has: a task whose worker dies is run again."""
_POLL_SECONDS = 0.1
_BURST_TASKS = 12
_MOST_RESTARTS = 20
"""More than a trial kills source processes; a query that cannot start is given up all the same."""


class Events:
    """The file of events."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        append(self._path, {"event": event, "time": time.time(), **fields})


def append(path: Path, entry: Mapping[str, Any]) -> None:
    """Append a line to a file by one write, so that a kill leaves no half line in between."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(descriptor)


def entries(path: Path) -> list[dict[str, Any]]:
    """Every entry that `append` has written: one that is being written may be seen in part, and counts when whole."""
    try:
        whole, _, _ = path.read_text().rpartition("\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in whole.splitlines()]


def session(folder: Path, settings: Mapping[str, str]) -> SparkSession:
    """A Spark session that keeps its temporary files in a folder; settings may give it another master."""
    return (
        SparkSession.builder.master(_MASTER)
        .appName("pyspark-stream-connectors chaos")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.extraJavaOptions", QUICK_JAVA)
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config(map=dict(settings))
        .getOrCreate()
    )


def start_query(spark: SparkSession, plan: Mapping[str, Any]) -> StreamingQuery:
    """Start the query of a plan: ``folder``, ``format`` and ``options`` of the source, ``sink_pause`` in seconds.

    With ``sink``, which has ``format``, ``options`` and may have ``columns``, rows go there; with ``way`` into a table.
    With ``trigger`` there is time between batches. With ``registry``, as from_protobuf takes it, values are decoded,
    and the first field is a column of its own. Rows have the number of their task in ``task_column``. With ``source``,
    as ``MODULE:CLASS``, a data source of that format is registered first.
    """
    folder = Path(plan["folder"])
    if "source" in plan:
        spark.dataSource.register(pkgutil.resolve_name(plan["source"]))
    if "way" in plan:
        rows = spark.readStream.format(plan["format"]).options(**plan["options"]).load()
        writer = into_table(rows.selectExpr(f"{plan['number']} AS number"), plan)
        return writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    if "sink" in plan:
        rows = spark.readStream.format(plan["format"]).options(**plan["options"]).load()
        chosen = rows.selectExpr(*plan["sink"].get("columns", ("key", "value")))
        writer = _triggered(chosen.writeStream.format(plan["sink"]["format"]), plan)
        return writer.options(**plan["sink"]["options"], checkpointLocation=str(folder / "checkpoint")).start()
    sink = folder / SINK_NAME
    sink.mkdir(exist_ok=True)

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.toArrow()
        append(folder / LOG_NAME, {"batch": batch_id, "rows": len(rows), "digest": digest([rows])})
        time.sleep(plan["sink_pause"])
        _replace(sink / f"{batch_id}.arrow", rows)

    rows = spark.readStream.format(plan["format"]).options(**plan["options"]).load()
    if "registry" in plan:
        rows = rows.withColumn("decoded", from_protobuf("value", schemaRegistry=plan["registry"])["field_1"])
    task = plan.get("task_column", "task")
    writer = rows.selectExpr("*", f"spark_partition_id() AS {task}").writeStream.foreachBatch(write)
    return _triggered(writer, plan).option("checkpointLocation", str(folder / "checkpoint")).start()


def _triggered(writer: DataStreamWriter, plan: Mapping[str, Any]) -> DataStreamWriter:
    return writer.trigger(processingTime=plan["trigger"]) if "trigger" in plan else writer


def _burst(spark: SparkSession, seconds: float) -> None:
    """Run a job beside the query with more tasks than there are cores, each of so many seconds."""

    def wait(number: int) -> int:
        time.sleep(seconds)
        return number

    tasks = spark.range(0, _BURST_TASKS, 1, _BURST_TASKS).select(udf(wait, "long", useArrow=False)("id"))
    threading.Thread(target=tasks.collect, daemon=True).start()


@contextmanager
def _fetching(spark: SparkSession, plan: Mapping[str, Any], query: StreamingQuery) -> Iterator[None]:
    """Fetch on the executors while a query runs, if its options leave that to others."""
    if plan["options"].get("fetch") != "external":
        yield
        return
    with fetch_on_executors(spark, plan["format"], plan["options"], query=query):
        yield


def run(spark: SparkSession, plan: Mapping[str, Any], commands: queue.SimpleQueue[dict[str, Any]], log: Events) -> None:
    """Run a query until a command comes; start it again when it ends by itself."""
    for _ in range(_MOST_RESTARTS):
        query = start_query(spark, plan)
        log.write("started", folder=plan["folder"])
        if "burst" in plan:
            _burst(spark, plan["burst"])
        with _fetching(spark, plan, query):
            while commands.empty() and query.isActive:
                time.sleep(_POLL_SECONDS)
        error = query.exception()
        if query.isActive:
            query.stop()
        if error is None:
            break
        log.write("query_ended", error=str(error))
    commands.get()
    log.write("stopped", folder=plan["folder"])


def _replace(path: Path, rows: pa.Table) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    with pa.ipc.new_file(temporary, rows.schema) as writer:
        writer.write_table(rows)
    temporary.replace(path)


def _read_commands(commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass on commands; at the end of input kill this process and its JVM."""
    for line in sys.stdin:
        commands.put(json.loads(line))
    os.killpg(0, signal.SIGKILL)


def main(events: Path, settings: Mapping[str, str]) -> None:
    """Serve commands until ``end`` comes."""
    log = Events(events)
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    spark = session(Path.cwd(), settings)
    register(spark)
    log.write("ready", spark=spark.version)
    while "run" in (command := commands.get()):
        run(spark, command["run"], commands, log)
    spark.stop()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), json.loads(sys.argv[2]))
    except BaseException:  # noqa: BLE001 - with a dead JVM nothing here can be ended in an orderly way
        traceback.print_exc()
        os._exit(1)
