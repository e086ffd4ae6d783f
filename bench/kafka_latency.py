"""Time from produce to sink, ours beside Spark's own source, in one session.

A process of its own produces 1,000 records a second that hold the time; the sink is foreachBatch with toArrow, and a
row counts when that returns. No trigger interval; every row of a run but those of its first seconds counts. The ratio
is Spark's own divided by ours, so more is better; 1/1.5 = 0.67 is asked for, for p50 and p99.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np
from _common import Benchmark, Side, parser
from _kafka import JVM_VERSION, OURS, THEIRS, Rig, rig

RATE = 1000
WARM_SECONDS = 2.5
SECONDS = 5.0


def produce(endpoint: str, topic: str) -> None:
    """Produce until the standard input ends."""
    from confluent_kafka import Producer  # noqa: PLC0415 - only the child process needs it

    producer = Producer({"bootstrap.servers": endpoint, "linger.ms": 0})
    begin, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - begin) * RATE)
        for _ in range(sent, due):
            producer.produce(topic, b"%d" % time.time_ns(), partition=sent % 2)
            sent += 1
        producer.poll(0)
        time.sleep(0.001)


def measure(made: Rig, topic: str, name: str) -> tuple[float, float]:
    """Run a query for a while; p50 and p99 in milliseconds."""
    found: list[Any] = []

    ending = threading.Event()

    def sink(rows: Any, _batch: int) -> None:
        if ending.is_set():
            return  # to be interrupted inside of a call of Python is what Spark takes long over
        values = rows.select("value").toArrow().column("value")
        now = time.time_ns()
        found.append((now, np.array([int(value.as_py()) for value in values], np.int64)))

    options = {"kafka.bootstrap.servers": made.broker.endpoint, "subscribe": topic, "startingOffsets": "latest"}
    frame = made.spark.readStream.format(name).options(**options).load()
    with tempfile.TemporaryDirectory() as folder:
        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", folder).start()
        time.sleep(WARM_SECONDS)
        counted_from = time.time_ns()
        time.sleep(SECONDS)
        ending.set()
        time.sleep(1)
        query.stop()
    late = np.concatenate([now - sent[sent >= counted_from] for now, sent in found]) / 1e6
    assert len(late) > RATE * SECONDS / 2, f"only {len(late)} rows"
    return float(np.percentile(late, 50)), float(np.percentile(late, 99))


def main() -> None:
    """Run the benchmark."""
    told = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kafka_latency")
    benchmark.settings(peer=JVM_VERSION, rate=RATE, seconds_a_round=SECONDS, trigger="none")
    with rig() as made:
        topic = made.topic("latency", 2)
        command = [sys.executable, __file__, "--produce", made.broker.endpoint, topic]
        with subprocess.Popen(command) as producer:
            runs: dict[str, list[tuple[float, float]]] = {OURS: [], THEIRS: []}
            for number in range(told.rounds):
                for name in (OURS, THEIRS) if number % 2 else (THEIRS, OURS):
                    runs[name].append(measure(made, topic, name))
                    print(f"{name}: p50 {runs[name][-1][0]:.0f} ms, p99 {runs[name][-1][1]:.0f} ms", flush=True)
            producer.kill()
        for index, word in enumerate(("p50", "p99")):
            ours, theirs = (Side(name, [each[index] for each in runs[name]]) for name in (OURS, THEIRS))
            benchmark.compare(word, ours, theirs, "ms", less_is_better=True)
    benchmark.finish()


def _arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("--produce", nargs=2)
    return made.parse_known_args()[0]


if __name__ == "__main__":
    if (told := _arguments().produce) is not None:
        produce(*told)
    else:
        main()
