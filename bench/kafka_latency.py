"""Time from produce to sink, ours beside Spark's own source, in one run.

A process of its own produces 1,000 records a second that hold the time; the sink is foreachBatch with toArrow, and a
row counts when that returns. No trigger interval. Each side is one query in a process of its own, with its own Spark
session; while another one is measured, it waits inside of its sink. Every row of a round counts that was sent after
the query had caught up. The ratio is Spark's own divided by ours, so more is better. Beside it the processor time of
each side for a second of its stream (`cpu`), and the steps of its batches.

`ceiling`, in the same rounds: a Python source whose offsets and rows are there, at the same rate; nothing is asked of a
broker. Its rows count from the time at which they were due. Asked for: a p50 within 15 ms of the ceiling's (the line
`behind the ceiling`), and ratios of at least 0.9.
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
from _ready_rows import DUE, STAMP_BYTES

RATE = 1000
PARTITIONS = 2
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
            producer.produce(topic, time.time_ns().to_bytes(STAMP_BYTES, "little"), partition=sent % PARTITIONS)
            sent += 1
        producer.poll(0)
        time.sleep(0.001)


def start(made: Rig, topic: str, folder: str) -> None:
    """Start the queries, one after the other, and warm each up."""
    kafka = {"kafka.bootstrap.servers": made.broker.endpoint, "subscribe": topic, "startingOffsets": "latest"}
    due = {"rate": str(RATE), "size": str(STAMP_BYTES), "partitions": str(PARTITIONS)}
    for name, program in made.sides.items():
        options = due | {"begin": str(time.time_ns())} if name == DUE else kafka
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
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kafka_latency")
    benchmark.settings(peer=JVM_VERSION, rate=RATE, seconds_a_round=SECONDS, trigger="none", master="local[2]")
    with rig(DUE) as made, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        topic = made.topic("latency", PARTITIONS)
        with subprocess.Popen([sys.executable, __file__, "--produce", made.broker.endpoint, topic]) as producer:
            try:
                start(made, topic, folder)
                rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in made.sides}
                for number in range(command_line.rounds):
                    for name in rounds if number % 2 else reversed(rounds):
                        rounds[name].append(measure(made.sides[name], name))
            finally:
                producer.kill()
        for word, unit in UNITS.items():
            sides = {name: Side(name, [each[word] for each in found]) for name, found in rounds.items()}
            benchmark.compare(word, sides[OURS], sides[THEIRS], unit, less_is_better=True)
            benchmark.compare(f"ceiling-{word}", sides[DUE], sides[THEIRS], unit, less_is_better=True)
            behind = zip(sides[OURS].values, sides[DUE].values, strict=True)
            benchmark.show(word, Side("behind the ceiling", [ours - best for ours, best in behind]), unit)
    benchmark.finish()


def _arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("--produce", nargs=2)
    return made.parse_known_args()[0]


if __name__ == "__main__":
    if (command_line := _arguments().produce) is not None:
        produce(*command_line)
    else:
        main()
