"""Time from put to sink, by enhanced fan-out beside polling, in one session of Spark on our own server.

A process of its own puts 500 records a second that hold the time, on two shards; both modes have their default
options, and the server pushes 10 ms after a record arrives. The sink is foreachBatch with toArrow, and a row counts
when that returns. No trigger interval; every row of a run but those of its first seconds counts. The ratio is polling
divided by enhanced fan-out, so more is better; a p50 below 500 ms is asked for by enhanced fan-out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import boto3
import numpy as np
from _common import Benchmark, Side, parser
from pyspark.sql import SparkSession

from connectors import register
from connectors.testing.kinesis import start_server_process

RATE = 500
SHARDS = 2
WARM_SECONDS = 6.0
SECONDS = 8.0
STREAM = "latency"
TICK_SECONDS = 0.01
KEYS = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": "test-secret"}
MODES = ("efo", "polling")


def put(url: str) -> None:
    """Put until the standard input ends; a request each hundredth of a second."""
    client = boto3.client("kinesis", endpoint_url=url, region_name="us-east-1", **KEYS)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    due, number = time.monotonic(), 0
    while not ended.wait(max(due - time.monotonic(), 0)):
        count = round(RATE * TICK_SECONDS)
        records = [{"Data": b"%d" % time.time_ns(), "PartitionKey": f"key-{number + each}"} for each in range(count)]
        client.put_records(StreamName=STREAM, Records=records)
        number += count
        due += TICK_SECONDS


def measure(spark: SparkSession, url: str, mode: str) -> tuple[float, float]:
    """Run a query for a while; p50 and p99 in milliseconds."""
    found: list[Any] = []
    ending = threading.Event()

    def sink(rows: Any, _batch: int) -> None:
        if ending.is_set():
            return
        values = rows.select("data").toArrow().column("data")
        now = time.time_ns()
        found.append((now, np.array([int(value.as_py()) for value in values], np.int64)))

    with tempfile.TemporaryDirectory() as folder:
        options = {"streamName": STREAM, "endpointUrl": url, "awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
        if mode == "efo":
            options |= {"consumerMode": "efo", "consumerName": "bench", "spoolLocation": f"{folder}/spool"}
        frame = spark.readStream.format("kinesis").options(**options).load()
        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", f"{folder}/checkpoint").start()
        time.sleep(WARM_SECONDS)
        counted_from = time.time_ns()
        time.sleep(SECONDS)
        ending.set()
        time.sleep(1)
        query.stop()
        time.sleep(6)  # the fetchers end, and another subscription is allowed
    late = np.concatenate([now - sent[sent >= counted_from] for now, sent in found]) / 1e6
    assert len(late) > RATE * SECONDS / 2, f"only {len(late)} rows"
    return float(np.percentile(late, 50)), float(np.percentile(late, 99))


def main() -> None:
    """Run the benchmark."""
    told = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kinesis_latency")
    benchmark.settings(rate=RATE, shards=SHARDS, seconds_a_round=SECONDS, trigger="none")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    with start_server_process() as server:
        server.create_stream(STREAM, SHARDS)
        command = [sys.executable, __file__, "--put", server.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as producer:
            runs: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
            for number in range(told.rounds):
                for mode in MODES if number % 2 else reversed(MODES):
                    runs[mode].append(measure(spark, server.url, mode))
                    print(f"{mode}: p50 {runs[mode][-1][0]:.0f} ms, p99 {runs[mode][-1][1]:.0f} ms", flush=True)
            producer.kill()
        for index, word in enumerate(("p50", "p99")):
            ours, theirs = (Side(mode, [each[index] for each in runs[mode]]) for mode in MODES)
            benchmark.compare(word, ours, theirs, "ms", less_is_better=True)
    spark.stop()
    benchmark.finish()


def _arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("--put")
    return made.parse_known_args()[0]


if __name__ == "__main__":
    if (asked := _arguments().put) is not None:
        put(asked)
    else:
        main()
