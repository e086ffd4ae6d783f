"""``./dev chaos pubsub``: the full fault run of the Pub/Sub source.

Three parts: SIGKILL of reader and fetcher at every failpoint, twice in a row; random kills through Spark, a third of
them of the JVM; and what 10,000 batches leave behind. What is done stands in the record, and a run that was stopped
goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from connectors.testing.protocol import InProcessWorkers
from connectors.testing.pubsub import PubSubServer, start_server_process
from tests.chaos._pubsub_kills import VICTIMS, KillPlan, KillTrial
from tests.chaos._pubsub_sweep import run_sweep
from tests.chaos._record import ROOT, Record, RecordMismatchError
from tests.chaos._spark import SparkJobs
from tests.processes import RUN_MARK, orphans
from tests.pubsub_growth import footprints, grown
from tests.pubsub_rig import PubSubRig

PACKAGES = ("pyspark", "pyarrow", "grpcio", "google-cloud-pubsub", "ptars")
SWEEPS = 2
BASE_BATCH = 400

_ORPHAN_SECONDS = 10.0
_TERMINATED = 143
"""As a shell says it of a process that SIGTERM has ended."""


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        name: in the record.
        part: of the run.
        action: does it in a new folder; returns the outcome for the record.
        details: what the record says of it, whatever the outcome is.
    """

    name: str
    part: str
    action: Callable[[Path], dict[str, Any]]
    details: Mapping[str, Any] = field(default_factory=dict)


def sweeps() -> Iterator[Trial]:
    """The crash sweeps."""
    for number in range(1, SWEEPS + 1):
        yield Trial(f"sweep-{number}", "sweep", run_sweep)


def random_kills(record: Record, trials: int, messages: int, stack: ExitStack) -> Iterator[Trial]:
    """The random kills through Spark; server and Spark start with the first of them."""
    started: list[Any] = []

    def run(folder: Path, seed: int, victim: str) -> dict[str, Any]:
        if not started:
            server = stack.enter_context(start_server_process(event_limit=0, seed=record.seed))
            jobs = stack.enter_context(SparkJobs(stack.enter_context(temporary_folder("jobs"))))
            started.extend((server, jobs))
        server, jobs = started
        try:
            plan = KillPlan.make(seed, victim, messages)
            return KillTrial(plan, folder / folder.name, server, server.endpoint, jobs).run()
        except BaseException:
            jobs.discard()
            raise

    for number in range(1, trials + 1):
        name, victim = f"kill-{number:03d}", VICTIMS[(number - 1) % len(VICTIMS)]
        action = partial(run, seed=record.trial_seed(name), victim=victim)
        yield Trial(name, "random_kills", action, {"victim": victim})


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


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """A folder that goes in the end, but stays, and is named, when a trial failed."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
    failed = False
    try:
        yield folder
    except Exception:
        print(f"left for a look: {folder}", flush=True)
        failed = True
        raise
    finally:
        if not failed:
            shutil.rmtree(folder, ignore_errors=True)


def run_trial(record: Record, trial: Trial) -> None:
    """Run a trial and add it to the record, whatever comes of it; say so in one line."""
    began = time.monotonic()
    outcome: dict[str, Any] = {}
    try:
        with temporary_folder(trial.name) as folder:
            outcome = trial.action(folder)
            assert outcome["ok"], outcome["faults"]
    except Exception as error:  # noqa: BLE001 - a trial that fails is what the record is for
        traceback.print_exc()
        text = str(error).replace(str(folder), "FOLDER").splitlines() or [""]
        outcome = {**outcome, "ok": False, "faults": outcome.get("faults") or [f"{type(error).__name__}: {text[0]}"]}
    outcome = {**trial.details, **outcome, "seconds": round(time.monotonic() - began, 1)}
    record.add(trial.name, trial.part, outcome)
    print(progress_line(trial.name, outcome), flush=True)


def progress_line(name: str, outcome: Mapping[str, Any]) -> str:
    """What became of a trial, in one line."""
    counts = outcome.get("counts", {})
    shown = ("messages", "deliveries", "batches", "kills", "replays_compared", "lost", "doubled")
    numbers = " ".join(f"{key}={counts[key]}" for key in shown if key in counts)
    victim = f"{outcome['victim']} at {outcome.get('rows_at_kill')} rows, " if "victim" in outcome else ""
    verdict = "ok" if outcome["ok"] else "FAILED: " + "; ".join(outcome["faults"])
    return f"{name}: {victim}{numbers} {outcome['seconds']:.0f} s {verdict}"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos pubsub", description=__doc__)
    parser.add_argument("--trials", type=int, default=60, help="random kills through Spark (default: 60)")
    parser.add_argument("--messages", type=int, default=5000, help="messages of each of them (default: 5000)")
    parser.add_argument("--batches", type=int, default=10_000, help="batches of the last part (default: 10000)")
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "faults" / "pubsub.json", help="its file")
    parser.add_argument("--fresh", action="store_true", help="begin anew instead of going on from the record")
    parser.add_argument("--seed", type=int, help="of a new record (default: a random one)")
    parser.add_argument("--only", choices=("sweep", "random_kills", "growth"), help="only this part")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; 1 if any trial of the record failed, 2 if the record cannot be gone on from."""
    told = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    os.environ[RUN_MARK] = mark = uuid4().hex
    settings = {"messages": told.messages, "batches": told.batches}
    try:
        record = Record(told.record, "pubsub", settings, PACKAGES, fresh=told.fresh, seed=told.seed)
    except RecordMismatchError as error:
        print(error)
        return 2
    print(f"seed {record.seed}, {len(record.trials)} trials done before", flush=True)
    marks = sorted({min(2000, told.batches), told.batches})
    with ExitStack() as stack:
        for trial in (*sweeps(), *random_kills(record, told.trials, told.messages, stack), *growth(marks)):
            if told.only in {None, trial.part} and not record.done(trial.name):
                run_trial(record, trial)
    print(json.dumps(record.summary, indent=1))
    end = time.monotonic() + _ORPHAN_SECONDS
    while (left := orphans(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    if left:
        print(f"processes left behind: {left}")
    if record.failed:
        print(f"failed: {', '.join(record.failed)}")
    return 1 if record.failed or left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
