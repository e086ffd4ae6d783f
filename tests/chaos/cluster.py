"""``./dev chaos cluster``: faults of a standalone cluster of Spark, a master and two workers.

The application runs in client mode. For each source and each sink: an executor is killed, a machine is lost and another
one joins, the driver is killed and started again, dynamic allocation gives executors back, a machine is decommissioned.
The spool is on a shared folder, or on an object store; fetchers run beside the driver, or on executors, of which one
that fetches is killed. Each fault comes once to each flow before any comes twice. What is done stands in the record,
and a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from tests.chaos.rigs.cluster_faults import FAULTS, FLOWS, ClusterRig
from tests.chaos.support.record import Record
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials

PACKAGES = ("pyspark", "pyarrow", "grpcio", "google-cloud-pubsub", "confluent-kafka", "boto3", "obstore")


def faults(command_line: argparse.Namespace, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """The trials; the cluster starts with the first of them."""
    end, rig = time.monotonic() + command_line.minutes * 60, ClusterRig(stack)
    for number in range(1, command_line.rounds + 1):
        for fault in FAULTS:
            for flow in FLOWS:
                if time.monotonic() > end:
                    return
                if (command_line.flow and flow not in command_line.flow) or (
                    command_line.fault and fault not in command_line.fault
                ):
                    continue
                name = f"{flow}-{fault}-{number}"
                seed = record.trial_seed(name)
                action = partial(rig.run, seed=seed, flow=flow, fault=fault, messages=command_line.messages)
                yield Trial(name.replace("_", "-"), f"{flow}_{fault}", action)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="trials of each fault of each flow (default: 2)")
    parser.add_argument("--messages", type=int, default=2000, help="of each trial but Kinesis' (default: 2000)")
    parser.add_argument("--flow", choices=FLOWS, action="append", help="only this flow; may be repeated")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this fault; may be repeated")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so many minutes")
    add_record_arguments(parser, "cluster")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)
    return run_trials(
        "cluster", command_line, {"messages": command_line.messages}, PACKAGES, partial(faults, command_line)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
