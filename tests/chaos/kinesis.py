"""``./dev chaos kinesis``: the full fault run of the Kinesis source, for each mode of consuming.

Two parts: a crash of the driver at every step of a batch, twice in a row, with a split or a merge in between; and
random kills of JVM, driver, source process and workers through Spark, several in each trial, while records come and
shards are split and merged. What is done stands in the record, and a run that was stopped goes on from there.
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

from connectors.testing.kinesis import start_server_process
from tests.chaos.rigs.kinesis_kills import MODES, KillPlan, KillTrial
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.support.kinesis_rig import KinesisRig
from tests.support.kinesis_sweep import crash_twice
from tests.support.spark_protocol.driver import STEPS

PACKAGES = ("pyspark", "pyarrow", "boto3", "msgspec")


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


def random_kills(command_line: argparse.Namespace, mode: str, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """The kills through Spark; server and Spark start with the first of them."""
    end = time.monotonic() + command_line.minutes * 60
    started: list[Any] = []

    def run(folder: Path, plan: KillPlan) -> dict[str, Any]:
        if not started:
            server = stack.enter_context(start_server_process(call_limit=0))
            started.extend((server, stack.enter_context(SparkJobs(stack.enter_context(temporary_folder("jobs"))))))
        server, jobs = started
        try:
            return KillTrial(plan, folder / folder.name, server.endpoint, jobs).run()
        except BaseException:
            jobs.discard()
            raise

    for number in range(-(-command_line.kills_in_all // command_line.kills)):
        if time.monotonic() > end:
            break
        name = f"{mode}-kill-{number + 1:03d}"
        plan = KillPlan.make(record.trial_seed(name), mode, number, command_line.kills)
        yield Trial(name, f"{mode}_random_kills", partial(run, plan=plan))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos kinesis", description=__doc__)
    parser.add_argument("--mode", choices=sorted(MODES), action="append", help="only this mode; may be repeated")
    parser.add_argument("--kills-in-all", type=int, default=60, help="random kills of each mode (default: 60)")
    parser.add_argument("--kills", type=int, default=10, help="random kills of a trial (default: 10)")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="begin no random kill of a mode after so many minutes"
    )
    parser.add_argument("--only", choices=("crashes", "random_kills"), help="only this part")
    add_record_arguments(parser, "kinesis")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)

    def trials(record: Record, stack: ExitStack) -> Iterator[Trial]:
        for mode in command_line.mode or sorted(MODES):
            if command_line.only != "random_kills":
                yield from crashes(mode)
            if command_line.only != "crashes":
                yield from random_kills(command_line, mode, record, stack)

    return run_trials("kinesis", command_line, {"kills": command_line.kills}, PACKAGES, trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
