"""What every fault run does: its trials in turn, each into the record, and a look at what is left behind."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.chaos.support.record import ROOT, Record, RecordMismatchError
from tests.support.processes import RUN_MARK, orphans

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
        missing: says why it cannot run on this machine; empty if it can.
    """

    name: str
    part: str
    action: Callable[[Path], dict[str, Any]]
    missing: Callable[[], str] = str


def add_record_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options that say where the record of the run called ``what`` is, and whether it begins anew."""
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "faults" / f"{what}.json", help="its file")
    parser.add_argument("--fresh", action="store_true", help="begin anew instead of going on from the record")
    parser.add_argument(
        "--across",
        action="store_true",
        help="go on from a record of other code, and try again what failed with it; new trials name their commit",
    )
    parser.add_argument("--seed", type=int, help="of a new record (default: a random one)")
    parser.add_argument(
        "--least", type=int, default=1, metavar="N", help="run each part again, by other seeds, until it has N trials"
    )


def run_trials(
    what: str,
    command_line: argparse.Namespace,
    settings: Mapping[str, Any],
    packages: Sequence[str],
    trials: Callable[[Record, ExitStack], Iterable[Trial]],
) -> int:
    """Run what is not done yet; 1 if any trial of the record failed, 2 if the record cannot be gone on from.

    Args:
        what: the run, as the record calls it.
        command_line: the parsed arguments, with the options of `add_record_arguments`.
        settings: which a record must share to be gone on from.
        packages: whose versions the record says.
        trials: all of the run, from its record; what they start is closed with the stack.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    os.environ[RUN_MARK] = mark = uuid4().hex
    try:
        record = Record(
            command_line.record,
            what,
            dict(settings),
            packages,
            fresh=command_line.fresh,
            across=command_line.across,
            seed=command_line.seed,
        )
    except RecordMismatchError as error:
        print(error)
        return 2
    print(f"seed {record.seed}, {len(record.trials)} trials done before", flush=True)
    skipped: list[str] = []
    for _ in range(command_line.least):
        with ExitStack() as stack:
            for trial in trials(record, stack):
                name = record.in_round(trial.name)
                if record.done(name) or (record.round > 1 and record.count(trial.part) >= command_line.least):
                    continue
                if reason := trial.missing():
                    skipped.append(f"{name}: {reason}")
                else:
                    _run_trial(record, replace(trial, name=name))
        record.round += 1
    print(json.dumps(record.summary, indent=1))
    end = time.monotonic() + _ORPHAN_SECONDS
    while (left := orphans(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    if left:
        print(f"processes left behind: {left}")
    if skipped:
        print("\n".join([f"skipped, {len(skipped)} trials:", *skipped]))
    if record.failed:
        print(f"failed: {', '.join(record.failed)}")
    return 1 if record.failed or left else 0


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


def _run_trial(record: Record, trial: Trial) -> None:
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
    outcome = {**outcome, "seconds": round(time.monotonic() - began, 1)}
    record.add(trial.name, trial.part, outcome)
    print(_progress_line(trial.name, outcome), flush=True)


def _progress_line(name: str, outcome: Mapping[str, Any]) -> str:
    """What became of a trial, in one line."""
    counts = outcome.get("counts", {})
    shown = ("messages", "deliveries", "batches", "kills", "replays_compared", "lost", "doubled")
    numbers = " ".join(f"{key}={counts[key]}" for key in shown if key in counts)
    victims = f"{' '.join(outcome['killed'])}, " if "killed" in outcome else ""
    verdict = "ok" if outcome["ok"] else "FAILED: " + "; ".join(outcome["faults"])
    return f"{name}: {victims}{numbers} {outcome['seconds']:.0f} s {verdict}"
