"""``./dev chaos kinesis``: the full fault run of the Kinesis source, for each mode of consuming.

A crash of the driver at every step of a batch, twice in a row, with a split or a merge in between; and random kills of
JVM, driver, source process and workers through Spark, several in each trial, while records come and shards are split
and merged: on our server, where calls fail too, and on kinesis-local and moto. What is done stands in the record, and a
run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from connectors.testing.kinesis import start_server_process
from tests.chaos.rigs.kinesis_kills import MODES, KillPlan, KillTrial
from tests.chaos.rigs.kinesis_load import RESHARD_SECONDS
from tests.chaos.support.other_servers import KINESIS_LOCAL, MOTO, OtherServer, OtherServers
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.support.kinesis_rig import KinesisRig
from tests.support.kinesis_sweep import crash_twice
from tests.support.spark_protocol.driver import STEPS

PACKAGES = ("pyspark", "pyarrow", "boto3", "msgspec")
OTHER_TRIALS = 3
"""On each server that we did not write, in each mode."""


@dataclass(frozen=True)
class Other:
    """A server that we did not write, and what it can do.

    Attributes:
        server: it.
        modes: of consuming, with the seconds between two splits or merges, from and to; None for no such.
    """

    server: OtherServer
    modes: Mapping[str, tuple[float, float] | None]


# A subscription to a new shard brings nothing for some seconds on kinesis-local: with fewer between two splits all is
# polled. moto has no SubscribeToShard. It moves the records of a split or merged shard into others, under new numbers,
# and goes on to put records into a closed one.
OTHERS = (
    Other(KINESIS_LOCAL, {"efo": (10.0, 20.0), "polling": RESHARD_SECONDS}),
    Other(MOTO, {"polling": None}),
)


def crashes(mode: str) -> Iterator[Trial]:
    """Crashes of the driver at each step, by the protocol driver."""

    def run(folder: Path, step: Any) -> dict[str, Any]:
        with start_server_process() as server:
            rig = KinesisRig(server, folder, shards=2)
            options = dict(MODES[mode].options) | (
                {"spoolLocation": str(folder / "spool")} if MODES[mode].spool else {}
            )
            values = crash_twice(rig, step, **options)
        return {
            "ok": True,
            "faults": [],
            "mode": mode,
            "crashed_at": step,
            "counts": {"kills": 6, "messages": len(values), "lost": 0, "doubled": 0},
        }

    for step in STEPS:
        yield Trial(f"{mode}-crash-{step}", f"{mode}_crashes", partial(run, step=step))


class KillRig:
    """The servers and the Spark process of random kills, which start with the first of them.

    Args:
        command_line: the parsed arguments.
        record: gives the seeds.
        stack: ends what is started.
    """

    def __init__(self, command_line: argparse.Namespace, record: Record, stack: ExitStack) -> None:
        self._command_line, self._record, self._stack = command_line, record, stack
        self._others = OtherServers(stack)

    @cached_property
    def _endpoint(self) -> str:
        return str(self._stack.enter_context(start_server_process(call_limit=0)).endpoint)

    @cached_property
    def _jobs(self) -> SparkJobs:
        return self._stack.enter_context(SparkJobs(self._stack.enter_context(temporary_folder("jobs"))))

    def trials(self, mode: str) -> Iterator[Trial]:
        """The kills on our server."""
        end = time.monotonic() + self._command_line.minutes * 60
        for number in range(-(-self._command_line.kills_in_all // self._command_line.kills)):
            if time.monotonic() > end:
                break
            name = f"{mode}-kill-{number + 1:03d}"
            yield Trial(name, f"{mode}_random_kills", partial(self._run, plan=self._plan(name, mode, number)))

    def trials_on(self, other: Other, mode: str) -> Iterator[Trial]:
        """The kills on a server that we did not write."""
        for number in range(OTHER_TRIALS):
            name = f"{other.server.name}-{mode}-kill-{number + 1:03d}"
            action = partial(self._run, plan=self._plan(name, mode, number), other=other)
            yield Trial(name, f"{other.server.name}_{mode}_random_kills", action, other.server.missing)

    def _plan(self, name: str, mode: str, number: int) -> KillPlan:
        return KillPlan.make(self._record.trial_seed(name), mode, number, self._command_line.kills)

    def _run(self, folder: Path, plan: KillPlan, other: Other | None = None) -> dict[str, Any]:
        own = folder / folder.name
        try:
            if other is None:
                return KillTrial(plan, own, self._endpoint, self._jobs).run()
            endpoint = self._others.endpoint(other.server)
            seconds = other.modes[plan.mode]
            trial = KillTrial(plan, own, endpoint, self._jobs, knobs=False, reshard_seconds=seconds)
            return {**trial.run(), "server": f"{other.server.name} {other.server.version()}"}
        except BaseException:
            self._jobs.discard()
            raise


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos kinesis", description=__doc__)
    parser.add_argument("--mode", choices=sorted(MODES), action="append", help="only this mode; may be repeated")
    parser.add_argument("--kills-in-all", type=int, default=60, help="random kills of each mode (default: 60)")
    parser.add_argument("--kills", type=int, default=10, help="random kills of a trial (default: 10)")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="begin no random kill of a mode after so many minutes"
    )
    others = [other.server.name for other in OTHERS]
    parser.add_argument("--only", choices=("crashes", "random_kills", *others), help="only this part, or this server's")
    add_record_arguments(parser, "kinesis")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)

    def trials(record: Record, stack: ExitStack) -> Iterator[Trial]:
        rig = KillRig(command_line, record, stack)
        for mode in command_line.mode or sorted(MODES):
            parts = {"crashes": crashes(mode), "random_kills": rig.trials(mode)}
            parts |= {other.server.name: rig.trials_on(other, mode) for other in OTHERS if mode in other.modes}
            for part, its_trials in parts.items():
                if command_line.only in {None, part}:
                    yield from its_trials

    return run_trials("kinesis", command_line, {"kills": command_line.kills}, PACKAGES, trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
