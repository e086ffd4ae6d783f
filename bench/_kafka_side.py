"""One side of a Kafka benchmark: a process and a Spark session of its own, so that neither side disturbs the other.

``_kafka_side.py FORMAT``, with a format of this pack, ``kafka``, or one of `_ready_rows.CEILINGS`. Each line of
standard input is a command, one JSON object with ``do`` and what the function of that name takes; each is answered by
one JSON object a line. When the input ends, this process and all of its group are killed: no query is ever stopped,
which Spark's own takes long over.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _ready_rows import DueRows, FetchedRows, ReadyRows, stamps
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from connectors import register
from tests.servers.maven import class_path

_STEPS = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")
_WRITTEN = ("key", "value", "partitionKey", "data", "payload")
_FIRST_ROWS_SECONDS = 120.0
_LAST_ROWS_SECONDS = 1.0


class Reading:
    """Reads topics into Spark's noop sink."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = name

    def count(self, options: Mapping[str, str]) -> dict[str, Any]:
        """The rows of a topic; also warms up."""
        return {"rows": self._spark.read.format(self._name).options(**options).load().count()}

    def batch(self, options: Mapping[str, str]) -> dict[str, Any]:
        """Read a topic once."""
        frame = self._spark.read.format(self._name).options(**options).load()
        begin = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - begin}

    def stream(
        self,
        options: Mapping[str, str],
        sink: str = "noop",
        name: str | None = None,
        to: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Read a topic by a query in batches; the first one, in which a query starts, is left out.

        Args:
            options: of the source.
            sink: ``noop``, ``parquet`` (Spark's file sink), ``delta`` (delta-rs, by examples/lakehouse.py), or a format
                of this pack, which gets values and keys.
            name: the format of the source, if it is not that of this side.
            to: the options of the sink.
        """
        frame = self._spark.readStream.format(name or self._name).options(**options).load()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            writer = _into(frame, sink, f"{folder}/table").options(**(to or {})).trigger(availableNow=True)
            begin = time.perf_counter()
            query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
            query.awaitTermination()
            ended = time.perf_counter()
            batches = [each for each in query.recentProgress if each["numInputRows"]]
        counted = batches[1:]
        return {
            "whole": ended - begin,
            # All but the batches after the first one: what it takes until a stream has had its first batch.
            "start": ended - begin - sum(each["durationMs"]["triggerExecution"] for each in counted) / 1e3,
            "rows": sum(each["numInputRows"] for each in batches),
            "counted": sum(each["numInputRows"] for each in counted),
            "seconds": sum(each["durationMs"]["triggerExecution"] for each in counted) / 1e3,
            "steps": steps_of(counted),
        }


def _into(frame: DataFrame, sink: str, location: str) -> DataStreamWriter:
    """The writer of a stream; a table gets the columns that users store."""
    if sink == "noop":
        return frame.writeStream.format(sink)
    if sink not in {"parquet", "delta"}:
        return frame.select([name for name in _WRITTEN if name in frame.columns]).writeStream.format(sink)
    columns = frame.select("key", "value", "partition", "offset", "timestamp")
    if sink == "parquet":
        return columns.writeStream.format(sink).option("path", location)
    sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
    return columns.writeStream.foreachBatch(importlib.import_module("lakehouse").delta_writer(location, "bench"))


class Writing:
    """Writes a cached frame into topics."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = name
        self._frame: DataFrame | None = None

    def frame(self, size: int, rows: int, *, keys: bool) -> dict[str, Any]:
        """Make the frame of a case, in two partitions."""
        if self._frame is not None:
            self._frame.unpersist(blocking=True)
        columns = [f"CAST(repeat('x', {size}) AS BINARY) AS value"]
        columns += ["CAST(CAST(id AS STRING) AS BINARY) AS key"] if keys else []
        self._frame = self._spark.range(0, rows, 1, 2).selectExpr(*columns).cache()
        return {"rows": self._frame.count()}

    def write(self, options: Mapping[str, str]) -> dict[str, Any]:
        """Write the frame into a topic."""
        assert self._frame is not None
        begin = time.perf_counter()
        self._frame.write.format(self._name).options(**options).mode("append").save()
        return {"seconds": time.perf_counter() - begin}


class Waiting:
    """A query whose rows hold the time at which they were sent; between two measurements it waits in its sink."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = name
        self._running = threading.Event()
        self._found: list[Any] = []
        self._query: StreamingQuery | None = None

    def _sink(self, rows: DataFrame, _batch: int) -> None:
        values = rows.select("value").toArrow().column("value")
        now = time.time_ns()
        self._found.append((now, stamps(values)))
        self._running.wait()

    def _last_batch(self) -> int:
        progress = None if self._query is None else self._query.lastProgress
        return -1 if progress is None else int(progress["batchId"])

    def start(self, options: Mapping[str, str], checkpoint: str) -> dict[str, Any]:
        """Start the query, and wait for its first rows."""
        frame = self._spark.readStream.format(self._name).options(**options).load()
        self._running.set()
        self._query = frame.writeStream.foreachBatch(self._sink).option("checkpointLocation", checkpoint).start()
        give_up_at = time.monotonic() + _FIRST_ROWS_SECONDS
        while not self._found and self._query.isActive and time.monotonic() < give_up_at:
            time.sleep(0.1)
        return {}

    def latency(self, settle: float, seconds: float) -> dict[str, Any]:
        """The latencies (ms) of the rows that were sent in so many seconds, after the query had so many to catch up."""
        assert self._query is not None
        self._running.set()
        time.sleep(settle)
        begin, last = time.time_ns(), self._last_batch()
        del self._found[:]
        time.sleep(seconds)
        end = time.time_ns()
        time.sleep(_LAST_ROWS_SECONDS)
        self._running.clear()
        if self._query.exception() is not None:
            raise RuntimeError(str(self._query.exception()))
        if not self._found:
            raise RuntimeError(f"no row came in {seconds} s")
        late = np.concatenate([now - sent[(sent >= begin) & (sent < end)] for now, sent in self._found]) / 1e6
        progress = [each for each in self._query.recentProgress if each["batchId"] > last]
        return {
            "rows": len(late),
            "p50": float(np.percentile(late, 50)),
            "p99": float(np.percentile(late, 99)),
            "steps": steps_of(progress),
        }


def steps_of(batches: list[Any]) -> dict[str, float]:
    """The median milliseconds of each step of some batches, as Spark reports them."""
    times = [each["durationMs"] for each in batches if each["numInputRows"]]
    return {step: statistics.median(each.get(step, 0) for each in times) for step in _STEPS} if times else {}


def session(**settings: str) -> SparkSession:
    """A session with all formats, Spark's own Kafka source and the ceilings among them."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config(map=settings)
        .config("spark.jars", ",".join(class_path("kafka-spark").jars))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    for kind in (ReadyRows, FetchedRows, DueRows):
        spark.dataSource.register(kind)
    return spark


def main(name: str) -> None:
    """Serve commands until the input ends."""
    spark = session()
    reading, writing, waiting = (kind(spark, name) for kind in (Reading, Writing, Waiting))
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "count": reading.count,
        "batch": reading.batch,
        "stream": reading.stream,
        "frame": writing.frame,
        "write": writing.write,
        "start": waiting.start,
        "latency": waiting.latency,
    }
    serve(commands)


def serve(commands: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Say that this process is there, and answer commands until the input ends."""
    _answer({})
    for line in sys.stdin:
        command = json.loads(line)
        _answer(commands[command.pop("do")](**command))


def _answer(found: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def end_with_group(run: Callable[[], None]) -> None:
    """Run a side, and then kill this process and its group, whatever came of it."""
    try:
        run()
    except BaseException:  # noqa: BLE001 - with a running query nothing ends in an orderly way
        traceback.print_exc()
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    end_with_group(lambda: main(sys.argv[1]))
