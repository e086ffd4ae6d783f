"""Rows per second on Spark 4.0, 4.1 and 4.2, each beside the newest version, in one run.

Each version is a process with a session of its own, local[2], in the environment that ``./dev --spark VERSION venv``
makes. `kafka`: a batch read of a topic of two partitions into the noop sink. Beside the rows a second stands the
processor time of driver, JVM and workers (`-cpu`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial

from _common import Benchmark, interleaved, parser
from _kafka import Costs, Rig, wanted
from _program import Program
from confluent_kafka.admin import AdminClient

from tests.chaos.rigs.versions import SPARKS, on_spark
from tests.servers.kafka_broker import KafkaBroker

PARTITIONS = 2
SIZE = 1024
KAFKA_ROWS = 600_000
NEWEST = SPARKS[-1]


def kafka(stack: contextlib.ExitStack) -> dict[str, str]:
    """Fill a topic; return the options that read it."""
    broker = stack.enter_context(KafkaBroker(fast=True))
    made = Rig(broker, {}, AdminClient({"bootstrap.servers": broker.endpoint}))
    made.fill(made.topic("versions", PARTITIONS), PARTITIONS, KAFKA_ROWS, SIZE)
    return {"kafka.bootstrap.servers": broker.endpoint, "subscribe": "versions", "startingOffsets": "earliest"}


def compare(
    benchmark: Benchmark, case: str, programs: Mapping[str, Program], options: dict[str, str], rows: int, rounds: int
) -> None:
    """Read in the same rounds on each version, after a warm-up that counts the rows."""
    costs = Costs()
    command = {"format": {"kafka": "kafka_py"}.get(case, case), "options": options}

    def run(version: str) -> float:
        with costs.of(programs[version], version, rows):
            seconds = programs[version].ask(command)["seconds"]
        return float(rows / seconds)

    for program in programs.values():
        assert program.ask({**command, "count": True})["rows"] == rows
    rates = {side.name: side for side in interleaved({each: partial(run, each) for each in programs}, rounds)}
    for version in SPARKS[:-1]:
        benchmark.compare(f"{case}-{version}", rates[version], rates[NEWEST], "rows/s")
        spent, newest = (costs.side(each, rounds) for each in (version, NEWEST))
        unit = "s of processor time for a million rows"
        benchmark.compare(f"{case}-{version}-cpu", spent, newest, unit, less_is_better=True)


def main() -> None:
    """Run the benchmark."""
    told = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("spark_versions")
    with contextlib.ExitStack() as stack:
        programs = {
            each: stack.enter_context(Program("_spark_side.py", python=on_spark(each).python)) for each in SPARKS
        }
        versions = {each: next(program.reports())["spark"] for each, program in programs.items()}
        benchmark.settings(versions=versions, master="local[2]", bytes=SIZE, kafka_rows=KAFKA_ROWS)
        if wanted(told, "kafka"):
            compare(benchmark, "kafka", programs, kafka(stack), KAFKA_ROWS, told.rounds)
    benchmark.finish()


if __name__ == "__main__":
    main()
