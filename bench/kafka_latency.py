"""Time from produce to sink, ours beside Spark's own source, in one run.

A process of its own produces 1,000 records a second that hold the time; the sink is foreachBatch with toArrow, and a
row counts when that returns. No trigger interval. Each side is one query in a process of its own, with its own Spark
session; while the other one is measured, it waits inside of its sink. Every row of a round counts that was sent after
the query had caught up. The ratio is Spark's own divided by ours, so more is better; 1/1.5 = 0.67 is asked for, for p50
and p99. Beside it the processor time of each side for a second of its stream (`cpu`), and the steps of its batches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from _common import Benchmark, Side, parser
from _kafka import JVM_VERSION, OURS, THEIRS, Rig, rig
from _program import Program

RATE = 1000
WARM_SECONDS = 15.0
SETTLE_SECONDS = 3.0
SECONDS = 6.0
UNITS = {"p50": "ms", "p99": "ms", "cpu": "s of processor time a second"}


def produce(endpoint: str, topic: str) -> None:
    """Produce until this process is killed."""
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


def start(made: Rig, topic: str, folder: str) -> None:
    """Start the queries, one after the other, and warm each up."""
    options = {"kafka.bootstrap.servers": made.broker.endpoint, "subscribe": topic, "startingOffsets": "latest"}
    for name, program in made.sides.items():
        program.ask({"do": "start", "options": options, "checkpoint": f"{folder}/{name}"})
        program.ask({"do": "latency", "settle": SETTLE_SECONDS, "seconds": WARM_SECONDS})


def measure(program: Program, name: str) -> dict[str, Any]:
    """One round of a side: latencies in milliseconds, processor time, steps."""
    before, begin = program.cpu_seconds(), time.monotonic()
    found = program.ask({"do": "latency", "settle": SETTLE_SECONDS, "seconds": SECONDS})
    found["cpu"] = (program.cpu_seconds() - before) / (time.monotonic() - begin)
    print(f"# {name}: {json.dumps(found)}", flush=True)
    assert found["rows"] > RATE * SECONDS * 0.9, f"only {found['rows']} rows"
    return found


def main() -> None:
    """Run the benchmark."""
    told = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kafka_latency")
    benchmark.settings(peer=JVM_VERSION, rate=RATE, seconds_a_round=SECONDS, trigger="none", master="local[2]")
    with rig() as made, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        topic = made.topic("latency", 2)
        with subprocess.Popen([sys.executable, __file__, "--produce", made.broker.endpoint, topic]) as producer:
            try:
                start(made, topic, folder)
                rounds: dict[str, list[dict[str, Any]]] = {OURS: [], THEIRS: []}
                for number in range(told.rounds):
                    for name in (OURS, THEIRS) if number % 2 else (THEIRS, OURS):
                        rounds[name].append(measure(made.sides[name], name))
            finally:
                producer.kill()
        for word, unit in UNITS.items():
            ours, theirs = (Side(name, [each[word] for each in rounds[name]]) for name in (OURS, THEIRS))
            benchmark.compare(word, ours, theirs, unit, less_is_better=True)
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
