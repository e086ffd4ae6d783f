"""``./dev chaos pubsub``: the full fault run of the Pub/Sub source.

SIGKILL of reader and fetcher at every failpoint, twice in a row; the same with the spool on an object store; the same
with fetchers outside of the query; random kills through Spark, a quarter of them of the JVM, on our server, on Google's
emulator and on Go's pstest; and what 10,000 batches leave behind. What is done stands in the record, and a run that was
stopped goes on from there.
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
from tests.chaos.support.other_servers import EMULATOR, PSTEST, OtherServer, OtherServers
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.support.pubsub_growth import BASE_BATCH, footprints, grown
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import InProcessWorkers

PACKAGES = ("pyspark", "pyarrow", "grpcio", "google-cloud-pubsub", "ptars")
SWEEPS = 2
OTHERS = (EMULATOR, PSTEST)
OTHER_TRIALS = 3
"""On each server that we did not write."""
PARTS = (
    *("sweep", "object_sweep", "external_sweep", "random_kills"),
    *(f"{other.name}_random_kills" for other in OTHERS),
    "growth",
)


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
        self._others = OtherServers(stack)
        self.record = record

    @cached_property
    def _server(self) -> Any:
        return self._stack.enter_context(start_server_process(event_limit=0, seed=self.record.seed))

    @cached_property
    def _jobs(self) -> SparkJobs:
        return self._stack.enter_context(SparkJobs(self._stack.enter_context(temporary_folder("jobs"))))

    def run(
        self, folder: Path, seed: int, victims: tuple[str, ...], messages: int, where: TrialStore | OtherServer | None
    ) -> dict[str, Any]:
        """Run a trial in a folder of its own."""
        spool = where.options(folder.name) if isinstance(where, TrialStore) else None
        own = folder / folder.name
        try:
            plan = KillPlan.make(seed, victims, messages)
            if not isinstance(where, OtherServer):
                return KillTrial(plan, own, self._server, self._server.endpoint, self._jobs, spool).run()
            trial = KillTrial(plan.without_faults(), own, None, self._others.endpoint(where), self._jobs)
            return {**trial.run(), "server": f"{where.name} {where.version()}"}
        except BaseException:
            self._jobs.discard()
            raise


def random_kills(
    rig: KillRig, trials: int, messages: int, where: TrialStore | OtherServer | None = None
) -> Iterator[Trial]:
    """The random kills through Spark.

    Args:
        rig: runs them.
        trials: of four kills each.
        messages: of each of them.
        where: the store of their spools, instead of folders; or a server that we did not write, instead of ours.
    """
    prefix, part = ("kill", "random_kills") if where is None else (f"{where.name}-kill", f"{where.name}_random_kills")
    missing = where.missing if isinstance(where, OtherServer) else str
    for number in range(1, trials + 1):
        name, victims = f"{prefix}-{number:03d}", (*VICTIMS, DRIVERS[number % len(DRIVERS)])
        seed = rig.record.trial_seed(name)
        action = partial(rig.run, seed=seed, victims=victims, messages=messages, where=where)
        yield Trial(name, part, action, missing)


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
        rig = KillRig(record, stack)
        for trial in (
            *sweeps(),
            *random_kills(rig, command_line.trials, command_line.messages),
            *(trial for other in OTHERS for trial in random_kills(rig, OTHER_TRIALS, command_line.messages, other)),
            *growth(marks),
        ):
            if command_line.only in {None, trial.part}:
                yield trial

    return run_trials(
        "pubsub", command_line, {"messages": command_line.messages, "batches": command_line.batches}, PACKAGES, trials
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
