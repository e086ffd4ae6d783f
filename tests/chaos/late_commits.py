"""``./dev chaos late_commits``: requests of Kafka transactions that arrive late, on several versions of the broker.

A proxy holds one kind of request of a transaction until its client has gone on: sent it again, given up, or was killed;
in some trials the broker is killed too. The request arrives before the next attempt, within it, after its commit, or
within the third one, and each row of each batch must be in the topic once. The same is done to a sink that is altered
to use one producer for all attempts, and to such a producer without a sink, to count the harm there. What is done
stands in the record, and a run that was stopped goes on from there.
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
        """Run a trial of the altered sink, which may go wrong."""
        outcome = LateTrial(plan, self._kafka, self._proxy, self._altered_worker, folder.name).run()
        self._altered_worker.kill()
        counts = outcome.pop("counts")
        harm = {name: counts[name] for name in ("lost", "doubled", "torn", "hanging")}
        return {**outcome, "ok": bool(outcome["answers"]), "faults": [], "altered": harm, "found": outcome["faults"]}

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

    def run_client(self, folder: Path, request: Request, *, by_halves: bool) -> dict[str, Any]:
        """Run a trial of a producer without a sink, which may go wrong."""
        return reused_client_trial(request, self._kafka, self._proxy, folder.name, by_halves=by_halves)


def late_commits(command_line: argparse.Namespace, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """All trials that were asked for."""
    end = time.monotonic() + command_line.minutes * 60
    for version in command_line.broker or BROKERS:
        with stack.enter_context(ExitStack()) as own:
            for trial in Cells(version, BrokerRig(version, own), record).trials(command_line.trials):
                if time.monotonic() > end:
                    return
                yield trial


class Cells:
    """The cells of one version; the name of a trial gives it its seed."""

    def __init__(self, version: str, rig: BrokerRig, record: Record) -> None:
        self._version, self._rig, self._record = version, rig, record

    def trials(self, count: int) -> Iterator[Trial]:
        """Yield the trials, so many of each cell: each cell once, then each once more."""
        for number in range(1, count + 1):
            yield from self._ours(number)
            yield from self._reused(number)
            for request in TIMED_OUT:
                cell = (request, "timed_out", "given_up")
                yield self._trial("timeout", request.name, number, self._late(cell, transaction_ms=TRANSACTION_MS))
            if self._version == WITH_SPARK:
                yield self._trial("spark", "query", number, self._rig.run_spark)
        for request, seconds in zip(TIMED_OUT, LONG_SECONDS, strict=True):
            cell = (request, "before", "worker")
            yield self._trial("long", request.name, 1, self._late(cell, wait_seconds=seconds))

    def _ours(self, number: int) -> Iterator[Trial]:
        """Yield each request at each moment, and each time another way in which its client goes on."""
        for place, request in enumerate(Request):
            for turn, moment in enumerate(MOMENTS):
                cell = (request, moment, WAYS[(place + turn + number) % len(WAYS)])
                yield self._trial("", f"{request.name}-{moment}", number, self._late(cell))

    def _reused(self, number: int) -> Iterator[Trial]:
        """Yield the same for producers that are used again."""
        for request in ENDS:
            for moment in ("open", "two_later"):
                changes = {"step": Request.PRODUCE, "kills_after": request is Request.COMMIT}
                action = self._late((request, moment, "resent"), self._rig.run_altered, **changes)
                yield self._trial("reused", f"{request.name}-{moment}", number, action)
            yield self._trial(
                "client", request.name, number, partial(self._client, request=request, by_halves=number % 2 == 0)
            )

    def _trial(self, part: str, name: str, number: int, action: Callable[..., dict[str, Any]]) -> Trial:
        full = f"{self._version}-{part + '-' if part else ''}{name}-{number}".lower()
        return Trial(full, f"{self._version} {part}".strip(), partial(action, seed=self._record.trial_seed(full)))

    def _late(
        self,
        cell: tuple[Request, str, str],
        run: Callable[[Path, LatePlan], dict[str, Any]] | None = None,
        **changes: Any,
    ) -> Callable[..., dict[str, Any]]:
        def act(folder: Path, seed: int) -> dict[str, Any]:
            return (run or self._rig.run)(folder, replace(LatePlan.make(*cell, seed), **changes))

        return act

    def _client(self, folder: Path, seed: int, request: Request, by_halves: bool) -> dict[str, Any]:
        del seed  # nothing is chosen
        return self._rig.run_client(folder, request, by_halves=by_halves)


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
