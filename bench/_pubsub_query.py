"""The query of bench/pubsub_stream.py, in a process of its own: ``pubsub`` to a noop sink, or to foreachBatch.

It reads its plan as one line of JSON from standard input: ``options`` of the source, ``checkpoint``, ``sink`` and
``configuration`` of Spark. For each batch it prints one line of JSON: with the sink ``noop`` the batch's number, rows,
the times at which it began and ended (seconds, wall clock, as Spark reports them) and how long its steps took (ms);
with the sink ``latency`` its number, the time at which ``toArrow`` returned (ns, monotonic clock), and the time since
each row was sent (us), and then, on a line of its own, how long its steps took. The first eight bytes of a payload are
the time at which it was sent.

When its input ends, it and all of its process group are killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np
from _pubsub_latency import SENT_BYTES, show
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from connectors import register

_POLL_SECONDS = 0.2
_SELDOM_SECONDS = 1.0  # where each look would take its part of what is measured
_REPORTS_KEPT = 10  # each look fetches all that are kept; batches at full speed take seconds


def main(plan: Mapping[str, Any]) -> None:
    """Run the query until this process is killed or the query fails."""
    spark = _session(plan["configuration"])
    register(spark)
    writer = spark.readStream.format("pubsub").options(**plan["options"]).load().writeStream
    writer = writer.option("checkpointLocation", plan["checkpoint"])
    if plan["sink"] == "latency":
        for progress in _progress(writer.foreachBatch(_show_latencies).start(), _SELDOM_SECONDS):
            show({"durations": progress["durationMs"]})
        return
    for progress in _progress(writer.format("noop").start(), _POLL_SECONDS):
        began = datetime.fromisoformat(progress["timestamp"]).timestamp()
        ended = began + progress["durationMs"]["triggerExecution"] / 1e3
        steps = {"durations": progress["durationMs"]}
        show({"batch": progress["batchId"], "rows": progress["numInputRows"], "began": began, "ended": ended, **steps})


def _show_latencies(batch: DataFrame, number: int) -> None:
    rows = batch.toArrow()
    now = time.monotonic_ns()
    sent = b"".join(payload[:SENT_BYTES] for payload in rows["payload"].to_pylist())
    latencies = (now - np.frombuffer(sent, "<i8")) // 1000
    show({"batch": number, "ended": now, "latencies": latencies.tolist()})


def _progress(query: StreamingQuery, poll: float) -> Iterator[StreamingQueryProgress]:
    """Spark's report of each batch, as they come."""
    last = -1
    while not query.awaitTermination(poll):
        for progress in query.recentProgress:
            if progress["batchId"] > last:
                last = progress["batchId"]
                yield progress


def _session(configuration: Mapping[str, str]) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", _REPORTS_KEPT)
        .config("spark.log.level", "ERROR")
        .config(map=dict(configuration))
        .getOrCreate()
    )


def _end_with_parent() -> None:
    """Kill this process and its JVM when the benchmark is gone."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    plan = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(plan)
