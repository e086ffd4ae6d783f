"""``./dev chaos stores``: the spool of Pub/Sub on object stores that are not ours.

On each of Azurite, moto, VersityGW and fake-gcs-server: what a store must do (tests/contract/test_stores.py), SIGKILL
of reader and fetcher at every failpoint, and random kills through Spark. What is done stands in the record, and a run
that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from connectors.core.errors import ServiceUnavailableError
from tests.chaos.pubsub import KillRig, TrialStore, random_kills
from tests.chaos.rigs.pubsub_sweep import run_sweep
from tests.chaos.support.record import ROOT, Record
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials
from tests.servers.object_stores import STORES, StoreServer

PACKAGES = ("pyspark", "pyarrow", "grpcio", "google-cloud-pubsub", "obstore")
PARTS = ("contract", "sweep", "random_kills")
CONTRACT = "tests/contract/test_stores.py"


class StartedStores:
    """The stores of a run, each started when it is first needed.

    Args:
        stack: ends them.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str, StoreServer] = {}

    def options(self, name: str, folder: str) -> Mapping[str, str]:
        """The options of a spool in a folder of a store."""
        if name not in self._started:
            if reason := STORES[name].unavailable():
                raise ServiceUnavailableError("TESTING_SERVER_NOT_STARTED", reason, name)
            self._started[name] = self._stack.enter_context(STORES[name]())
        return self._started[name].options(folder)


def run_contract(_folder: Path, name: str) -> dict[str, Any]:
    """Run the contract suite on a store; the outcome for the record."""
    counts = dict.fromkeys(("passed", "failed", "error", "skipped"), 0)
    output = ""
    for words in ([], ["--long"]):
        command = [sys.executable, "-m", "pytest", "-q", CONTRACT, "-k", f"[{name}]", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        for count, word in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout.splitlines()[-1]):
            counts[word] += int(count)
        output += done.stdout
    wrong = [f"{count} tests {word}" for word, count in counts.items() if count and word != "passed"]
    if wrong:
        print(output)
    elif not counts["passed"]:
        wrong = ["no test has run"]
    return {"ok": not wrong, "faults": wrong, "counts": {"tests": counts["passed"]}}


def trials_of(name: str, stores: StartedStores) -> Iterator[Trial]:
    """All trials of one store, but the random kills."""
    yield Trial(f"{name}-contract", f"{name}_contract", partial(run_contract, name=name))
    sweep = f"{name}-sweep"
    yield Trial(sweep, f"{name}_sweep", partial(run_sweep, spool=lambda _: stores.options(name, sweep)))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos stores", description=__doc__)
    parser.add_argument("--trials", type=int, default=8, help="of four random kills, for each store (default: 8)")
    parser.add_argument("--messages", type=int, default=2500, help="messages of each of them (default: 2500)")
    parser.add_argument("--store", choices=sorted(STORES), help="only this store")
    parser.add_argument("--only", choices=PARTS, help="only this part")
    add_record_arguments(parser, "stores")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)

    def trials(record: Record, stack: ExitStack) -> Iterator[Trial]:
        stores = StartedStores(stack)
        names = [name for name in STORES if command_line.store in {None, name}]
        for name in names:
            yield from trials_of(name, stores)
        rig = KillRig(record, stack)
        for name in names:
            store = TrialStore(name, partial(stores.options, name))
            yield from random_kills(rig, command_line.trials, command_line.messages, store)

    def picked(record: Record, stack: ExitStack) -> Iterator[Trial]:
        return (
            each
            for each in trials(record, stack)
            if command_line.only is None or each.part.endswith(f"_{command_line.only}")
        )

    settings = {"messages": command_line.messages, "stores": {name: store.version for name, store in STORES.items()}}
    return run_trials("stores", command_line, settings, PACKAGES, picked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
