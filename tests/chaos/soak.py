"""``./dev chaos soak``: long runs at a steady rate with a fault every minute.

Three flows: Kafka to Kafka exactly once, Pub/Sub with its spool on an object store, Kinesis by enhanced fan-out while
shards are split and merged. In the end nothing is lost, doubled or out of order, and memory, threads, open files, files
of the spool and latency are those of the beginning. What is done stands in the record.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.rigs.soak_flows import SOAKS, DirectServices
from tests.chaos.rigs.soak_trial import RATE, SoakPlan, SoakTrial
from tests.chaos.support.footprint import TOLERANCES
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder

PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "grpcio", "boto3", "obstore")


def run(folder: Path, plan: SoakPlan) -> dict[str, Any]:
    """Run a soak with servers and Spark of its own."""
    with ExitStack() as stack:
        services = DirectServices(stack, plan.seed)
        jobs = stack.enter_context(SparkJobs(stack.enter_context(temporary_folder("jobs"))))
        return SoakTrial(plan, folder / folder.name, services, jobs).run()


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of each flow (default: 60)")
    parser.add_argument("--flow", choices=sorted(SOAKS), help="only this flow")
    add_record_arguments(parser, "soak")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    told = parse(arguments)

    def trials(record: Record, _stack: ExitStack) -> Iterator[Trial]:
        for flow in SOAKS:
            if told.flow in {None, flow}:
                name = f"{flow}-{told.minutes:g}-minutes"
                plan = SoakPlan.make(record.trial_seed(name), flow, told.minutes)
                yield Trial(name, flow, partial(run, plan=plan))

    settings = {"rate": RATE, "tolerances": {name: asdict(each) for name, each in TOLERANCES.items()}}
    return run_trials("soak", told, settings, PACKAGES, trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
