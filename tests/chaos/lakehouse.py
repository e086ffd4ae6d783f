"""``./dev chaos lakehouse``: random kills of queries from Kafka, Pub/Sub and Kinesis into Delta tables.

Into each table by delta-rs, with the code of examples/lakehouse.py; on Spark 4.2 (``./dev --lowest``) by the jar of
Delta too, in `foreachBatch` and as a sink. JVM, driver, source process, fetchers and workers are killed while rows
pass; each number must be in the table once, and each batch in one commit. What is done stands in the record, and a run
that was stopped goes on from there; each Spark has a record of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.rigs.lakehouse_kills import KillPlan, KillTrial
from tests.chaos.rigs.lakehouse_sources import SOURCES, source
from tests.chaos.support.lakehouse_tables import spark_settings, ways
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder

PACKAGES = ("pyspark", "pyarrow", "deltalake", "confluent-kafka", "google-cloud-pubsub", "boto3")


class Rigs:
    """Servers and Spark processes, each started with its first trial.

    Args:
        stack: ends what is started.
        command_line: the parsed arguments.
    """

    def __init__(self, stack: ExitStack, command_line: argparse.Namespace) -> None:
        self._stack, self._command_line = stack, command_line
        self._started: dict[str, Any] = {}

    def run(self, folder: Path, name: str, way: str, seed: int) -> dict[str, Any]:
        """Run a trial in a folder of its own."""
        numbers = self._get(name, lambda place: source(name, place))
        jobs = self._get(way, lambda place: SparkJobs(place, spark_settings(way)))
        plan = KillPlan.make(seed, way, numbers.victims, self._command_line.kills, self._command_line.records)
        try:
            return KillTrial(plan, folder / folder.name, numbers, jobs).run()
        except BaseException:
            jobs.discard()
            raise

    def _get(self, name: str, start: Any) -> Any:
        if name not in self._started:
            folder = self._stack.enter_context(temporary_folder(name))
            self._started[name] = self._stack.enter_context(start(folder))
        return self._started[name]


def random_kills(command_line: argparse.Namespace, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """The trials, one of each source and way in turn."""
    end = time.monotonic() + command_line.minutes * 60
    rigs = Rigs(stack, command_line)
    for number in range(1, command_line.trials + 1):
        for way in command_line.way or ways():
            for name in SOURCES:
                if time.monotonic() > end:
                    return
                if command_line.source and name not in command_line.source:
                    continue
                trial = f"{name}-{way}-{number:02d}"
                run = partial(rigs.run, name=name, way=way, seed=record.trial_seed(trial))
                yield Trial(trial, f"{name}_{way}", run)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos lakehouse", description=__doc__)
    parser.add_argument("--trials", type=int, default=5, help="of each source and way (default: 5)")
    parser.add_argument("--kills", type=int, default=10, help="of each of them (default: 10)")
    parser.add_argument("--records", type=int, default=10_000, help="records of each of them (default: 10000)")
    parser.add_argument("--way", choices=ways(), action="append", help="only this way; may be repeated")
    parser.add_argument("--source", choices=SOURCES, action="append", help="only this source; may be repeated")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so many minutes")
    add_record_arguments(parser, "lakehouse" if len(ways()) == 1 else "lakehouse_jar")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)
    settings = {"kills": command_line.kills, "records": command_line.records}
    return run_trials("lakehouse", command_line, settings, PACKAGES, partial(random_kills, command_line))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
