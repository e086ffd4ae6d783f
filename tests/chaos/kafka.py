"""``./dev chaos kafka``: random kills of an exactly-once query from Kafka to Kafka.

Each trial has topics of its own, and some kills of workers, source process, JVM and driver while its records pass; one
in five is of the JVM. What is done stands in the record, and a run that was stopped goes on from there.
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

from tests.chaos.rigs.kafka_kills import KillPlan, KillTrial
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.servers.kafka_broker import KafkaBroker
from tests.support.kafka_rig import KafkaRig

PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "numpy")


def random_kills(command_line: argparse.Namespace, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """The trials; broker and Spark start with the first of them."""
    end = time.monotonic() + command_line.minutes * 60
    started: list[Any] = []

    def run(folder: Path, plan: KillPlan) -> dict[str, Any]:
        if not started:
            broker = stack.enter_context(KafkaBroker())
            started.extend((broker, stack.enter_context(SparkJobs(stack.enter_context(temporary_folder("jobs"))))))
        broker, jobs = started
        try:
            return KillTrial(plan, folder / folder.name, KafkaRig(broker, folder), jobs).run()
        except BaseException:
            jobs.discard()
            raise

    for number in range(1, command_line.trials + 1):
        if time.monotonic() > end:
            break
        name = f"kill-{number:03d}"
        plan = KillPlan.make(record.trial_seed(name), command_line.kills, command_line.records)
        yield Trial(name, "exactly_once", partial(run, plan=plan))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos kafka", description=__doc__)
    parser.add_argument("--trials", type=int, default=10, help="trials in all (default: 10)")
    parser.add_argument("--kills", type=int, default=10, help="kills of each (default: 10)")
    parser.add_argument("--records", type=int, default=10_000, help="records of each (default: 10000)")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so many minutes")
    add_record_arguments(parser, "kafka")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)
    settings = {"kills": command_line.kills, "records": command_line.records}
    return run_trials("kafka", command_line, settings, PACKAGES, partial(random_kills, command_line))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
