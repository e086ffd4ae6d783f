"""``./dev chaos pubsub``: the full fault run of the Pub/Sub source.

Five parts: SIGKILL of reader and fetcher at every failpoint, twice in a row; the same with the spool on an object
store; the same with fetchers outside of the query; random kills through Spark, a quarter of them of the JVM; and what
10,000 batches leave behind. What is done stands in the record, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from connectors.testing.pubsub import PubSubServer, start_server_process
from tests.chaos.rigs.pubsub_kills import DRIVERS, VICTIMS, KillPlan, KillTrial
from tests.chaos.rigs.pubsub_sweep import own_object_store, run_sweep
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.support.pubsub_growth import BASE_BATCH, footprints, grown
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import InProcessWorkers

PACKAGES = ("pyspark", "pyarrow", "grpcio", "google-cloud-pubsub", "ptars")
SWEEPS = 2
PARTS = ("sweep", "object_sweep", "external_sweep", "random_kills", "growth")


@dataclass(frozen=True)
class TrialStore:
    """An object store for the spools of trials.

    Attributes:
        name: in the names of the trials.
        options: of a spool in a folder of that name; starts the store if that is needed.
    """

    name: str
    options: Callable[[str], Mapping[str, str]]


def sweeps() -> Iterator[Trial]:
    """The crash sweeps."""
    for number in range(1, SWEEPS + 1):
        yield Trial(f"sweep-{number}", "sweep", run_sweep)
    for number in range(1, SWEEPS + 1):
        yield Trial(f"object-sweep-{number}", "object_sweep", partial(run_sweep, spool=own_object_store))
    for number in range(1, SWEEPS + 1):
        # The second one with the spool on an object store, as on a cluster.
        action = partial(run_sweep, external=True, spool=own_object_store if number > 1 else None)
        yield Trial(f"external-sweep-{number}", "external_sweep", action)


class KillRig:
    """The server and the Spark process of random kills, which start with the first of them.

    Args:
        record: gives the seeds.
        stack: ends what is started.
    """

    def __init__(self, record: Record, stack: ExitStack) -> None:
        self._stack = stack
        self.record = record

    @cached_property
    def _server(self) -> Any:
        return self._stack.enter_context(start_server_process(event_limit=0, seed=self.record.seed))

    @cached_property
    def _jobs(self) -> SparkJobs:
        return self._stack.enter_context(SparkJobs(self._stack.enter_context(temporary_folder("jobs"))))

    def run(
        self, folder: Path, seed: int, victims: tuple[str, ...], messages: int, store: TrialStore | None
    ) -> dict[str, Any]:
        """Run a trial in a folder of its own."""
        spool = None if store is None else store.options(folder.name)
        try:
            plan = KillPlan.make(seed, victims, messages)
            return KillTrial(plan, folder / folder.name, self._server, self._server.endpoint, self._jobs, spool).run()
        except BaseException:
            self._jobs.discard()
            raise


def random_kills(rig: KillRig, trials: int, messages: int, store: TrialStore | None = None) -> Iterator[Trial]:
    """The random kills through Spark.

    Args:
        rig: runs them.
        trials: of four kills each.
        messages: of each of them.
        store: for the spools of the trials, instead of folders.
    """
    prefix, part = ("kill", "random_kills") if store is None else (f"{store.name}-kill", f"{store.name}_random_kills")
    for number in range(1, trials + 1):
        name, victims = f"{prefix}-{number:03d}", (*VICTIMS, DRIVERS[number % len(DRIVERS)])
        seed = rig.record.trial_seed(name)
        yield Trial(name, part, partial(rig.run, seed=seed, victims=victims, messages=messages, store=store))


def growth(batches: list[int]) -> Iterator[Trial]:
    """Thousands of batches by the protocol driver."""

    def run(folder: Path) -> dict[str, Any]:
        with PubSubServer(event_limit=0, keep_acked_messages=100) as server:
            rig = PubSubRig(server, server.endpoint, folder, InProcessWorkers())
            base, *later = footprints(rig, [BASE_BATCH, *batches])
        faults = [line for footprint in later for line in grown(footprint, base)]
        return {
            "ok": not faults,
            "faults": faults,
            "footprints": [asdict(footprint) for footprint in (base, *later)],
            "counts": {"batches": batches[-1], "messages": len(rig.published), "lost": 0, "doubled": 0},
        }

    yield Trial("growth", "growth", run)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos pubsub", description=__doc__)
    parser.add_argument("--trials", type=int, default=75, help="of four random kills through Spark (default: 75)")
    parser.add_argument("--messages", type=int, default=5000, help="messages of each of them (default: 5000)")
    parser.add_argument("--batches", type=int, default=10_000, help="batches of the last part (default: 10000)")
    parser.add_argument("--only", choices=PARTS, help="only this part")
    add_record_arguments(parser, "pubsub")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)
    marks = sorted({min(2000, command_line.batches), command_line.batches})

    def trials(record: Record, stack: ExitStack) -> Iterator[Trial]:
        for trial in (
            *sweeps(),
            *random_kills(KillRig(record, stack), command_line.trials, command_line.messages),
            *growth(marks),
        ):
            if command_line.only in {None, trial.part}:
                yield trial

    return run_trials(
        "pubsub", command_line, {"messages": command_line.messages, "batches": command_line.batches}, PACKAGES, trials
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
