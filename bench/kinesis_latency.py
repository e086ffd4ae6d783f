"""Time from put to sink, by enhanced fan-out beside polling, on our own server.

A process of its own puts 500 records a second that hold the time, on two shards; both modes have their default
options, and the server pushes 10 ms after a record arrives. The readers are called as Spark calls them, by the protocol
driver; with `--spark` by a session of Spark, with foreachBatch and toArrow. A row counts when the sink has it. No
trigger interval; every row of a run counts but those of its first seconds, in which consumer and subscriptions come to
be (until then records are polled). The ratio is polling divided by enhanced fan-out, so more is better; a p50 below
500 ms is asked for by enhanced fan-out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import boto3
import numpy as np
import pyarrow as pa
from _common import Benchmark, Side, parser
from pyspark.sql import SparkSession

from connectors import register
from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.support.spark_protocol.driver import StreamingQuery

RATE = 500
SHARDS = 2
WARM_SECONDS = 8.0
SUBSCRIBED_SECONDS = 3.0
LATEST_SECONDS = 60.0
SECONDS = 4.0
PAUSE_SECONDS = 5.5
"""The fetchers end, and another subscription is allowed."""
POLL_SECONDS = 0.01
LEAST_ROWS = 100
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


class Arrivals:
    """The rows that came to a sink, and how late."""

    def __init__(self) -> None:
        self._found: list[Any] = []
        self.counted_from = 0
        self.over = False

    def take(self, values: pa.ChunkedArray) -> None:
        """Take the rows of a batch."""
        now = time.time_ns()
        if not self.over:
            self._found.append((now, np.array([int(value.as_py()) for value in values], np.int64)))

    def percentiles(self) -> tuple[float, float]:
        """P50 and p99 in milliseconds."""
        late = np.concatenate([now - sent[sent >= self.counted_from] for now, sent in self._found]) / 1e6
        assert len(late) > LEAST_ROWS, f"only {len(late)} rows"
        return float(np.percentile(late, 50)), float(np.percentile(late, 99))


class Warm:
    """Whether a query runs as it will run on: for some seconds, the last of them with all its subscriptions.

    Args:
        subscribed: whether every shard has a subscription, or none is to come.
    """

    def __init__(self, subscribed: Callable[[], bool]) -> None:
        self._subscribed = subscribed
        self._end = time.monotonic() + WARM_SECONDS
        self._latest = time.monotonic() + LATEST_SECONDS

    def __call__(self) -> bool:
        """Whether counting can begin."""
        now = time.monotonic()
        assert now < self._latest, "the shards are not subscribed to"
        if not self._subscribed():
            self._end = max(self._end, now + SUBSCRIBED_SECONDS)
        return now > self._end


def by_protocol(options: dict[str, str], folder: str, arrivals: Arrivals, warm: Warm) -> None:
    """Run a query of the protocol driver for a while."""

    def sink(_batch: int, tables: Sequence[pa.Table]) -> None:
        for table in tables:
            arrivals.take(table["data"])

    source = "connectors.kinesis.datasource:KinesisDataSource"
    with StreamingQuery(source, options, checkpoint=f"{folder}/checkpoint", sink=sink) as query:
        while not warm():
            query.run_trigger()
            time.sleep(POLL_SECONDS)
        arrivals.counted_from = time.time_ns()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            query.run_trigger()
            time.sleep(POLL_SECONDS)


def by_spark(options: dict[str, str], folder: str, arrivals: Arrivals, warm: Warm) -> None:
    """Run a query of Spark for a while."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    frame = spark.readStream.format("kinesis").options(**options).load()
    writer = frame.writeStream.foreachBatch(lambda rows, _batch: arrivals.take(rows.toArrow()["data"]))
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    while not warm():
        time.sleep(POLL_SECONDS)
    arrivals.counted_from = time.time_ns()
    time.sleep(SECONDS)
    arrivals.over = True
    time.sleep(1)
    query.stop()


def measure(server: KinesisServerProcess, mode: str, *, spark: bool) -> tuple[float, float]:
    """Run a query for a while; p50 and p99 in milliseconds."""
    arrivals, url = Arrivals(), server.url
    warm = Warm(lambda: mode != "efo" or len(server.subscriptions(STREAM)) == SHARDS)
    with tempfile.TemporaryDirectory() as folder:
        options = {"streamName": STREAM, "endpointUrl": url, "awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
        if mode == "efo":
            options |= {"consumerMode": "efo", "consumerName": "bench", "spoolLocation": f"{folder}/spool"}
        (by_spark if spark else by_protocol)(options, folder, arrivals, warm)
        time.sleep(PAUSE_SECONDS)
    return arrivals.percentiles()


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--spark", action="store_true", help="by Spark")
    command_line = arguments.parse_args()
    benchmark = Benchmark("kinesis_latency")
    engine = "Spark" if command_line.spark else "the protocol driver"
    benchmark.settings(rate=RATE, shards=SHARDS, seconds_a_round=SECONDS, trigger="none", engine=engine)
    with start_server_process() as server:
        server.create_stream(STREAM, SHARDS)
        command = [sys.executable, __file__, "--put", server.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as producer:
            runs: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
            for number in range(command_line.rounds):
                for mode in MODES if number % 2 else reversed(MODES):
                    runs[mode].append(measure(server, mode, spark=command_line.spark))
                    print(f"{mode}: p50 {runs[mode][-1][0]:.0f} ms, p99 {runs[mode][-1][1]:.0f} ms", flush=True)
            producer.kill()
        for index, word in enumerate(("p50", "p99")):
            ours, theirs = (Side(mode, [each[index] for each in runs[mode]]) for mode in MODES)
            benchmark.compare(word, ours, theirs, "ms", less_is_better=True)
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
