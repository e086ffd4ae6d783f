"""``./dev chaos network``: faults of the network between the parts of a query and real services, through toxiproxy.

Each cell is a flow, such as Kinesis by enhanced fan-out or an exactly-once query from Kafka to Kafka, and a fault:
latency, resets, little bandwidth, half-open connections, outages, answers that do not come while a process is killed,
or a process that is paused for a minute. What is done stands in the record, and a run that was stopped goes on from
there. What is tried first has most faults once, each with another flow.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tests.chaos.rigs.network_faults import FAULTS
from tests.chaos.rigs.network_flows import FLOWS, Services
from tests.chaos.rigs.network_trial import Cell, NetworkTrial
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.servers.toxiproxy import Toxiproxy

PACKAGES = ("pyspark", "pyarrow", "grpcio", "google-cloud-pubsub", "boto3", "confluent-kafka", "obstore")
PAUSES = (
    ("pubsub", "jvm"),
    ("kafka", "broker"),
    ("kinesis_efo", "fetcher"),
    ("kafka_exactly_once", "worker"),
    ("kinesis_polling", "source_runner"),
    ("pubsub_store", "fetcher"),
    ("kafka_exactly_once", "broker"),
    ("kafka_exactly_once", "jvm"),
    ("pubsub", "source_runner"),
    ("kinesis_polling", "worker"),
)
"""Which process of which flow is paused."""
OF_EMULATOR = ("latency", "resets", "outage_5_s", "half_open")
"""It has no clock of its own, and is slow to start: the rest is for our server."""


def is_tried(flow: str, fault: str) -> bool:
    """Whether a fault of the network makes sense for a flow."""
    details, kind = FAULTS[fault], FLOWS[flow]
    if details.server_seconds and not kind.has_clock:
        return False
    if details.kills and not set(details.kills) & set(kind.victims):
        return False
    return flow != "pubsub_emulator" or fault in OF_EMULATOR


def cells() -> list[tuple[str, str]]:
    """All flows and faults, in rounds: in each of them every fault, always with another flow."""
    names = list(FLOWS)
    every = {*((flow, fault) for fault in FAULTS for flow in names if is_tried(flow, fault)), *PAUSES}
    faults = dict.fromkeys([*FAULTS, *(victim for _, victim in PAUSES)])
    rounds = [
        (names[(place + shift) % len(names)], fault)
        for shift in range(len(names))
        for place, fault in enumerate(faults)
    ]
    return [cell for cell in rounds if cell in every]


class NetworkRig:
    """The servers and the Spark process of a run, which start with its first trial.

    Args:
        record: gives the seeds.
        stack: ends what is started.
    """

    def __init__(self, record: Record, stack: ExitStack) -> None:
        self._stack = stack
        self._services = Services(stack, record.seed)

    @cached_property
    def _jobs(self) -> SparkJobs:
        return self._stack.enter_context(SparkJobs(self._stack.enter_context(temporary_folder("jobs"))))

    def run(self, folder: Path, cell: Cell) -> dict[str, Any]:
        """Run a trial in a folder of its own."""
        try:
            return NetworkTrial(cell, folder / folder.name, self._services, self._jobs).run()
        except BaseException:
            self._jobs.discard()
            raise


def network(command_line: argparse.Namespace, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """All trials that were asked for."""
    end = time.monotonic() + command_line.minutes * 60
    rig = NetworkRig(record, stack)
    for number in range(1, command_line.rounds + 1):
        for flow, fault in cells():
            if time.monotonic() > end:
                return
            if (command_line.flow in {None, flow}) and (command_line.fault in {None, fault}):
                name = f"{flow}-{'' if fault in FAULTS else 'paused-'}{fault}-{number}"
                cell = Cell(flow, fault, record.trial_seed(name))
                yield Trial(name, flow if fault in FAULTS else "paused", partial(rig.run, cell=cell))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos network", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="trials of each cell (default: 1)")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so many minutes")
    parser.add_argument("--flow", choices=sorted(FLOWS), help="only this flow")
    parser.add_argument("--fault", choices=sorted({fault for _, fault in cells()}), help="only this fault")
    add_record_arguments(parser, "network")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)
    return run_trials(
        "network", command_line, {"toxiproxy": Toxiproxy.version}, PACKAGES, partial(network, command_line)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
