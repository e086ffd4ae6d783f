"""``./dev chaos avro``: random Avro schemas and values, read and written by us, by fastavro and by Java's Avro.

30,000 rows, in trials with a seed each: all types, unions, logical types and namespaces; readers' schemas that differ
from the writer's, with aliases that are names of others and with wrong defaults; messages that are cut or changed at
random places. What we read must be what Java reads, in each of PERMISSIVE, ``on.error=column`` and FAILFAST, and what
we write must be read alike by both. Into each comparison faults are planted, which it must see. What is done stands in
the record, and a run that was stopped continues from there.
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

from tests.chaos.rigs.avro_trial import run_trial
from tests.chaos.support.record import Record
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials
from tests.support.clients import client_version, find_java_client

PACKAGES = ("pyarrow", "numpy", "fastavro")
ROWS = 5000
"""Of a trial."""
PART = "random"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos avro", description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000, help=f"{ROWS} a trial (default: 30000)")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so many minutes")
    add_record_arguments(parser, "avro")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    told = parse(arguments)
    if reason := find_java_client("avro").reason:
        print(reason)
        return 2
    end = time.monotonic() + told.minutes * 60

    def run(_folder: Path, seed: int) -> dict[str, Any]:
        return run_trial(seed, ROWS)

    def trials(record: Record, _stack: ExitStack) -> Iterator[Trial]:
        for number in range(-(-told.rows // ROWS)):
            if time.monotonic() > end:
                return
            name = f"random-{number + 1:02d}"
            yield Trial(name, PART, partial(run, seed=record.trial_seed(name)))

    settings = {"rows": ROWS, "java_avro": client_version("avro", "avro")}
    return run_trials("avro", told, settings, PACKAGES, trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
