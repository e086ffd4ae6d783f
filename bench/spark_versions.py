"""Rows per second on Spark 4.0, 4.1 and 4.2, each beside the newest version, in one run.

Each version is a process with a session of its own, local[2], in the environment that ``./dev --spark VERSION venv``
makes. `kafka`: a batch read of a topic of two partitions into the noop sink. Beside the rows a second stands the
processor time of driver, JVM and workers (`-cpu`). `pubsub`: a stream of a server that sends as fast as it can, 1 KB a
message, into the noop sink, default options; the rows of whole batches in one window a round, after a warm-up. Each
round starts another query. Both processors are busy then, so rows a second say the processor time too.
"""

from __future__ import annotations

import contextlib
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from _canned_pubsub import CannedPubSub
from _common import Benchmark, interleaved, parser
from _kafka import Costs, Rig, wanted
from _processor import ProcessorMeter
from _program import Program
from confluent_kafka.admin import AdminClient
from pubsub_stream import Times, query, row_windows

from tests.chaos.rigs.versions import SPARKS, on_spark
from tests.servers.kafka_broker import KafkaBroker

PARTITIONS = 2
SIZE = 1024
KAFKA_ROWS = 600_000
NEWEST = SPARKS[-1]
WINDOW = Times(windows=1, seconds=8.0, warm_up=15.0)


def kafka(stack: contextlib.ExitStack) -> dict[str, str]:
    """Fill a topic; return the options that read it."""
    broker = stack.enter_context(KafkaBroker(fast=True))
    made = Rig(broker, {}, AdminClient({"bootstrap.servers": broker.endpoint}))
    made.fill(made.topic("versions", PARTITIONS), PARTITIONS, KAFKA_ROWS, SIZE)
    return {"kafka.bootstrap.servers": broker.endpoint, "subscribe": "versions", "startingOffsets": "earliest"}


def read_kafka(benchmark: Benchmark, programs: Mapping[str, Program], options: dict[str, str], rounds: int) -> None:
    """Read in the same rounds on each version, after a warm-up that counts the rows."""
    costs = Costs()
    command = {"format": "kafka_py", "options": options}

    def run(version: str) -> float:
        with costs.of(programs[version], version, KAFKA_ROWS):
            seconds = programs[version].ask(command)["seconds"]
        return float(KAFKA_ROWS / seconds)

    for program in programs.values():
        assert program.ask({**command, "count": True})["rows"] == KAFKA_ROWS
    rates = {side.name: side for side in interleaved({each: partial(run, each) for each in programs}, rounds)}
    for version in SPARKS[:-1]:
        benchmark.compare(f"kafka-{version}", rates[version], rates[NEWEST], "rows/s")
        spent, newest = (costs.side(each, rounds) for each in (version, NEWEST))
        unit = "s of processor time for a million rows"
        benchmark.compare(f"kafka-{version}-cpu", spent, newest, unit, less_is_better=True)


def stream_pubsub(version: str) -> float:
    """Return the rows per second of a new query."""
    python, command_line = on_spark(version).python, Namespace(options={}, conf=[])
    with (
        CannedPubSub(size=SIZE) as server,
        query(
            "noop", server.subscription, server.address, Path(tempfile.gettempdir()), command_line, python
        ) as program,
    ):
        (rate,) = row_windows(f"pubsub-{version}", program.reports(), WINDOW, ProcessorMeter())
    return rate


def main() -> None:
    """Run the benchmark."""
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("spark_versions")
    with contextlib.ExitStack() as stack:
        programs = {
            each: stack.enter_context(Program("_spark_side.py", python=on_spark(each).python)) for each in SPARKS
        }
        versions = {each: next(program.reports())["spark"] for each, program in programs.items()}
        benchmark.settings(
            versions=versions, master="local[2]", bytes=SIZE, kafka_rows=KAFKA_ROWS, pubsub_window=WINDOW
        )
        if wanted(command_line, "kafka"):
            read_kafka(benchmark, programs, kafka(stack), command_line.rounds)
    if wanted(command_line, "pubsub"):
        rates = interleaved({each: partial(stream_pubsub, each) for each in SPARKS}, command_line.rounds)
        for side in rates[:-1]:
            benchmark.compare(f"pubsub-{side.name}", side, rates[-1], "rows/s")
    benchmark.finish()


if __name__ == "__main__":
    main()
