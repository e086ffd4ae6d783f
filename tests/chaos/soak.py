"""``./dev chaos soak``: long runs at a steady rate with a fault every minute.

Three flows: Kafka to Kafka exactly once, Pub/Sub with its spool on an object store, Kinesis by enhanced fan-out while
shards are split and merged. In the end nothing is lost, doubled or out of order, and memory, threads, open files, files
of the spool and latency are those of the beginning. What is done stands in the record, with all samples. ``--judge``
runs nothing, and judges these samples by the rules of this code; a trial with another verdict then names its first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.rigs.soak_flows import SOAKS, DirectServices
from tests.chaos.rigs.soak_trial import RATE, SoakPlan, SoakTrial
from tests.chaos.support.footprint import TOLERANCES, Sample, verdict
from tests.chaos.support.record import Record, head_commit, summary
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder

PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "grpcio", "boto3", "obstore")


def run(folder: Path, plan: SoakPlan) -> dict[str, Any]:
    """Run a soak with servers and Spark of its own."""
    with ExitStack() as stack:
        services = DirectServices(stack, plan.seed)
        jobs = stack.enter_context(SparkJobs(stack.enter_context(temporary_folder("jobs"))))
        return SoakTrial(plan, folder / folder.name, services, jobs).run()


def judge_again(trial: Mapping[str, Any], commit: str) -> dict[str, Any]:
    """Return a trial of the record with the verdict that its samples have by the rules of this code."""
    columns = trial["samples"]
    samples = [Sample(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
    measured, grown = verdict(samples, trial["minutes"] * 60)
    faults = [fault for fault in trial["faults"] if fault not in trial["grown"]] + grown
    if faults == trial["faults"]:
        return dict(trial)
    changed = {"ok": not faults, "faults": faults, "grown": grown, "medians": measured}
    return {**trial, **changed, "judged": {"commit": commit, "before": trial["faults"]}}


def judge(path: Path) -> None:
    """Judge a record again, and write it."""
    commit, content = head_commit(), json.loads(path.read_text())
    content["trials"] = [judge_again(trial, commit) for trial in content["trials"]]
    content["summary"] = summary(content["trials"])
    path.write_text(json.dumps(content, indent=1) + "\n")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of each flow (default: 60)")
    parser.add_argument("--flow", choices=sorted(SOAKS), help="only this flow")
    parser.add_argument("--judge", action="store_true", help="judge what the record has again, and run nothing")
    add_record_arguments(parser, "soak")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)
    if command_line.judge:
        judge(command_line.record)
        return 0

    def trials(record: Record, _stack: ExitStack) -> Iterator[Trial]:
        for flow in SOAKS:
            if command_line.flow in {None, flow}:
                name = f"{flow}-{command_line.minutes:g}-minutes"
                plan = SoakPlan.make(record.trial_seed(name), flow, command_line.minutes)
                yield Trial(name, flow, partial(run, plan=plan))

    settings = {"rate": RATE, "tolerances": {name: asdict(each) for name, each in TOLERANCES.items()}}
    return run_trials("soak", command_line, settings, PACKAGES, trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
