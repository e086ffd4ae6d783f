"""``./dev chaos histories``: ten thousand simulated histories, and bugs that are planted to be found by them.

One seed decides a history: every interleaving of the spool's threads, every fault, every time; see
`tests.support.simulation`. The first part runs the seeds from 0 on, five hundred a trial. The second one applies each
patch of ``tests/planted/histories``, and those of ``tests/planted`` that are about the ledger, to a copy of the tree,
and runs seeds until a history is wrong; a bug that a thousand do not find fails. A seed is run again by
``python -m tests.support.simulation --seeds N --shorten --events FILE``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.support.record import Record
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials
from tests.support.planted_bugs import ROOT, copy_tree, plant

PACKAGES = ("greenlet", "pyarrow", "numpy", "obstore")
A_TRIAL = 500
MOST_UNTIL_FOUND = 1000
PLANTED = (
    *sorted((ROOT / "tests" / "planted" / "histories").glob("*.patch")),
    *(
        ROOT / "tests" / "planted" / f"{name}.patch"
        for name in (
            "ack_before_durable",
            "dedup_forgotten_over_a_restart",
            "id_run_after_free",
            "off_by_one_at_a_cut",
            "orphan_segment_dropped",
            "plan_by_listing_order",
            "state_published_before_its_record",
        )
    ),
)


def simulated(folder: Path, *arguments: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run histories with the code of a tree; return those that are wrong, and the counts."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.simulation", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if not lines or "histories" not in lines[-1]:
        raise RuntimeError(f"the simulation ended with {done.returncode}: {done.stderr[-2000:]}")
    return lines[:-1], lines[-1]


def histories(first: int, _folder: Path) -> dict[str, Any]:
    """Run the seeds of one trial; each must be right."""
    wrong, counts = simulated(ROOT, "--seeds", f"{first}-{first + A_TRIAL - 1}")
    return {
        "ok": not wrong,
        "faults": [f"seed {one['seed']}: {'; '.join(one['wrong'])}" for one in wrong],
        "counts": {"histories": counts["histories"], "steps": counts["steps"], "faults_inflicted": counts["faults"]},
    }


def planted(patch: Path, folder: Path) -> dict[str, Any]:
    """Plant a bug, and run histories until one is wrong."""
    copy_tree(folder)
    plant(patch, folder)
    wrong, counts = simulated(folder, "--seeds", f"0-{MOST_UNTIL_FOUND - 1}", "--until-wrong")
    return {
        "ok": bool(wrong),
        "faults": [] if wrong else [f"not found by {MOST_UNTIL_FOUND} histories"],
        "bug": patch.read_text().splitlines()[0],
        "counts": {"histories_until_found": counts["histories"]},
        "found": wrong[0]["wrong"][0] if wrong else "",
    }


def main(arguments: list[str]) -> int:
    """Run what is not in the record yet."""
    parser = argparse.ArgumentParser(prog="./dev chaos histories", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many histories (default: 10000)")
    parser.add_argument("--part", choices=("histories", "planted"), help="only this part")
    add_record_arguments(parser, "histories")
    told = parser.parse_args(arguments)

    def trials(_record: Record, _stack: ExitStack) -> Iterable[Trial]:
        def all_trials() -> Iterator[Trial]:
            for patch in PLANTED if told.part != "histories" else ():
                yield Trial(f"planted {patch.stem}", "planted", partial(planted, patch))
            for first in range(0, told.count if told.part != "planted" else 0, A_TRIAL):
                yield Trial(f"seeds {first} to {first + A_TRIAL - 1}", "histories", partial(histories, first))

        return all_trials()

    return run_trials("histories", told, {"histories_a_trial": A_TRIAL}, PACKAGES, trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
