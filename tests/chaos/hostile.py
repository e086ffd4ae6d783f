"""``./dev chaos hostile``: hostile input of each kind in bulk, with a count of what became of it.

Altered offsets, ledgers and segments, foreign kinds of files, hostile messages, registries, metrics, event streams,
texts of services, and names of ``.proto`` files. An attempt gives the same rows, a named error, or ends within a bound
of time and memory. All else is wrong: an unnamed error, a signal, a hang, other rows, or what controls a terminal. Each
kind runs in a process of its own; what ends it counts, and it starts again after that attempt. To repeat an attempt::

    python -m tests.chaos.rigs.hostile_job KIND FOLDER --seed SEED --first NUMBER
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from connectors.core.errors import printable
from tests.chaos.rigs.hostile_attempts import ATTEMPT_SECONDS, read_log
from tests.chaos.rigs.hostile_job import KINDS
from tests.chaos.support.record import ROOT, Record
from tests.chaos.support.report_sections import HOSTILE_USED
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials

PACKAGES = ("pyarrow", "protobuf", "ptars", "botocore", "msgspec", "confluent-kafka", "grpcio-tools")
_SHOWN_FAULTS = 20
_START_SECONDS = 120.0


def attempt_all(folder: Path, name: str, seed: int, seconds: float) -> dict[str, Any]:
    """Make attempts of a kind for so many seconds; the outcome is that of a trial."""
    end = time.monotonic() + seconds
    faults = []
    first, printed = 0, ""
    while first == 0 or time.monotonic() < end:
        left = max(end - time.monotonic(), 0.0)
        command = [sys.executable, "-P", "-m", "tests.chaos.rigs.hostile_job", name, str(folder)]
        command += ["--seed", str(seed), "--first", str(first), "--seconds", str(left)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=left + ATTEMPT_SECONDS + _START_SECONDS,
            check=False,
        )
        printed += done.stdout + ("" if done.returncode else done.stderr)
        following = read_log((folder / "log").read_text())[2] if (folder / "log").exists() else first
        if done.returncode == 0:
            break
        if following == first:
            faults.append(f"no attempt was made: {done.stderr[-1000:]!a}")
            break
        faults.append(f"attempt {following - 1} ended its process by {done.returncode}: {done.stderr[-300:]!a}")
        with (folder / "log").open("a") as log:
            log.write("\n")  # the line of the attempt that ended it has no end
        first = following
    counts, wrong, made = read_log((folder / "log").read_text())
    faults += [f"attempt {number}: {text}" for number, text in wrong if text]
    if printed != printable(printed):
        faults.append(f"what it printed controls a terminal: {printed[:300]!a}")
    codes = {code: count for code, count in sorted(counts.items()) if code not in {*HOSTILE_USED, "wrong"}}
    totals = Counter({each: counts[each] for each in HOSTILE_USED if counts[each]})
    for fault in faults[:_SHOWN_FAULTS]:
        print(f"{name}, seed {seed}, {fault}", flush=True)
    return {
        "ok": not faults,
        "faults": faults[:_SHOWN_FAULTS],
        "what": KINDS[name].what,
        "codes": codes,
        "counts": {
            "attempts": made,
            **totals,
            "refused": sum(codes.values()),
            "wrong": max(len(faults), counts["wrong"]),
        },
    }


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos hostile", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all kinds together (default: 10)")
    parser.add_argument("--only", choices=sorted(KINDS), help="only this kind")
    add_record_arguments(parser, "hostile")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)
    seconds = command_line.minutes * 60 / len(KINDS)

    def trials(record: Record, _stack: ExitStack) -> Iterator[Trial]:
        for name in KINDS:
            if command_line.only in {None, name}:
                action = partial(attempt_all, name=name, seed=record.trial_seed(name), seconds=seconds)
                yield Trial(name, name, action)

    return run_trials("hostile", command_line, {"minutes": command_line.minutes}, PACKAGES, trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
