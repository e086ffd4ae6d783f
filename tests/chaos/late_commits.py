"""``./dev chaos late_commits``: requests of exactly-once writes that reach the broker late, on several versions of Kafka.

A proxy holds one kind of request of a transaction until its client has gone on: sent it again, given up, or was killed;
in some trials the broker is killed too. The request arrives before the next attempt, within it, after its commit, or
within the third one, and each row of each batch must be in the topic once. The same is done to a sink that is altered
to use one producer for all attempts, and to such a producer without a sink: there it must do harm. What is done stands
in the record, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tests.chaos.rigs.late_commits import MOMENTS, ROWS, WAYS, LatePlan, LateTrial, Worker, reused_client_trial
from tests.chaos.rigs.late_spark import LateSparkTrial
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.servers.kafka_broker import KafkaBroker
from tests.support.kafka_proxy import LateRequests, Request
from tests.support.kafka_rig import KafkaRig
from tests.support.planted_bugs import copy_tree, planted_bugs

PACKAGES = ("pyspark", "pyarrow", "confluent-kafka")
BROKERS = ("3.9.1", "4.0.1", "4.1.1", "4.2.1", "4.4.0")
WITH_SPARK = "4.1.1"
"""Where a query of Spark is tried as well."""
LONG_SECONDS = (30.0, 60.0, 120.0)
SETTINGS = {"broker.session.timeout.ms": "4000"}
"""A killed broker leads its partitions again after so long; with less, one that stalls for a moment loses them."""
TRANSACTION_MS = 3000
TIMED_OUT = (Request.COMMIT, Request.PRODUCE, Request.OFFSET_COMMIT)
ENDS = (Request.COMMIT, Request.ABORT)


class BrokerRig:
    """A broker of one version behind a proxy, with workers; they start with the first trial.

    Args:
        version: of the broker.
        stack: ends what is started.
        folder: for logs of workers.
    """

    def __init__(self, version: str, stack: ExitStack) -> None:
        self._version, self._stack = version, stack

    @cached_property
    def _kafka(self) -> KafkaRig:
        broker = KafkaBroker(settings=SETTINGS, proxy=self._proxy.endpoint, version=self._version)
        self._stack.enter_context(broker)
        self._proxy.lead_to(broker.proxied_endpoint)
        return KafkaRig(broker, self._folder)

    @cached_property
    def _proxy(self) -> LateRequests:
        return self._stack.enter_context(LateRequests())

    @cached_property
    def _folder(self) -> Path:
        return self._stack.enter_context(temporary_folder("late"))

    @cached_property
    def _worker(self) -> Worker:
        return self._stack.enter_context(Worker(log=self._folder / "worker.log"))

    @cached_property
    def _altered_worker(self) -> Worker:
        tree = self._folder / "altered"
        copy_tree(tree)
        next(bug for bug in planted_bugs() if bug.name == "producer_used_again").plant(tree)
        return self._stack.enter_context(Worker(tree, self._folder / "altered.log"))

    def run(self, folder: Path, plan: LatePlan) -> dict[str, Any]:
        """Run a trial of our sink."""
        return LateTrial(plan, self._kafka, self._proxy, self._worker, folder.name).run()

    def run_altered(self, folder: Path, plan: LatePlan) -> dict[str, Any]:
        """Run a trial of the altered sink, which must go wrong."""
        outcome = LateTrial(plan, self._kafka, self._proxy, self._altered_worker, folder.name).run()
        self._altered_worker.kill()
        counts = outcome.pop("counts")
        faults = [] if outcome["faults"] else ["the altered sink did no harm"]
        harm = {name: counts[name] for name in ("lost", "doubled", "torn", "hanging")}
        return {**outcome, "ok": not faults, "faults": faults, "altered": harm, "found": outcome["faults"]}

    def run_spark(self, folder: Path, seed: int) -> dict[str, Any]:
        """Run a trial of a query of Spark."""
        try:
            return LateSparkTrial(seed, folder / folder.name, self._kafka, self._jobs, self._proxy).run()
        except BaseException:
            self._jobs.discard()
            raise

    @cached_property
    def _jobs(self) -> SparkJobs:
        return self._stack.enter_context(SparkJobs(self._folder / "jobs"))

    def run_client(self, folder: Path, request: Request) -> dict[str, Any]:
        """Run a trial of a producer without a sink, which must go wrong."""
        return reused_client_trial(request, self._kafka, self._proxy, folder.name)


def late_commits(command_line: argparse.Namespace, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """All trials that were asked for."""
    end = time.monotonic() + command_line.minutes * 60
    for version in command_line.broker or BROKERS:
        with ExitStack() as own:
            for trial in trials_of(version, BrokerRig(version, own), command_line.trials, record):
                if time.monotonic() > end:
                    return
                yield trial


def trials_of(version: str, rig: BrokerRig, count: int, record: Record) -> Iterator[Trial]:
    """The trials on one version, each with the name that gives it its seed."""

    def trial(part: str, name: str, number: int, action: Callable[..., dict[str, Any]]) -> Trial:
        full = f"{version}-{part + '-' if part else ''}{name}-{number}".lower()
        return Trial(full, f"{version} {part}".strip(), partial(action, seed=record.trial_seed(full)))

    def ours(folder: Path, seed: int, cell: tuple[Request, str, str], **changes: Any) -> dict[str, Any]:
        return rig.run(folder, replace(LatePlan.make(*cell, seed), **changes))

    def altered(folder: Path, seed: int, cell: tuple[Request, str, str], kills: bool) -> dict[str, Any]:
        plan = replace(LatePlan.make(*cell, seed), step=Request.PRODUCE, kills_after=kills)
        return rig.run_altered(folder, plan)

    def client(folder: Path, seed: int, request: Request) -> dict[str, Any]:
        del seed
        return rig.run_client(folder, request)

    for number in range(1, count + 1):
        for place, request in enumerate(Request):
            for turn, moment in enumerate(MOMENTS):
                cell = (request, moment, WAYS[(place + turn + number) % len(WAYS)])
                yield trial("", f"{request.name}-{moment}", number, partial(ours, cell=cell))
        for request in ENDS:
            for moment in ("open", "two_later"):
                action = partial(altered, cell=(request, moment, "resent"), kills=number % 2 == 0)
                yield trial("reused", f"{request.name}-{moment}", number, action)
            yield trial("client", request.name, number, partial(client, request=request))
        for request in TIMED_OUT:
            action = partial(ours, cell=(request, "timed_out", "given_up"), transaction_ms=TRANSACTION_MS)
            yield trial("timeout", request.name, number, action)
        if version == WITH_SPARK:
            yield trial("spark", "query", number, rig.run_spark)
    for request, seconds in zip((Request.COMMIT, Request.PRODUCE, Request.OFFSET_COMMIT), LONG_SECONDS, strict=True):
        yield trial("long", request.name, 1, partial(ours, cell=(request, "before", "worker"), wait_seconds=seconds))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos late_commits", description=__doc__)
    parser.add_argument("--trials", type=int, default=3, help="trials of each cell (default: 3)")
    parser.add_argument("--broker", action="append", help=f"a version of Kafka (default: {', '.join(BROKERS)})")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so many minutes")
    add_record_arguments(parser, "late_commits")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)
    return run_trials("late_commits", command_line, {"rows": ROWS}, PACKAGES, partial(late_commits, command_line))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
