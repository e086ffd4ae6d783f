"""Runs histories: ``python -m tests.support.simulation --seeds 0-99``, one line of JSON for each that is wrong."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from typing import Any

from tests.support.simulation import primitives

real_time = time.monotonic
primitives.install()

from tests.support.simulation.histories import Plan, run_apart, shortened  # noqa: E402 - after Python's own were replaced


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="FIRST-LAST")
    parser.add_argument("--plan", help="a plan as JSON, instead of seeds")
    parser.add_argument("--events", help="a file for the events of the last history, one line of JSON each")
    parser.add_argument("--shorten", action="store_true", help="cut each plan that fails down to what it needs")
    parser.add_argument("--until-wrong", action="store_true", help="end with the first history that is wrong")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many run at a time")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.NOTSET if given.verbose else logging.CRITICAL)
    first, _, last = given.seeds.partition("-")
    plans = [Plan.of_json(given.plan)] if given.plan else map(Plan.of_seed, range(int(first), int(last or first) + 1))
    began, histories, steps, faults, wrong = real_time(), 0, 0, 0, 0
    for outcome in run_apart(plans, given.processes):
        plan = outcome.plan
        histories, steps, faults = histories + 1, steps + outcome.steps, faults + len(plan.faults)
        if given.events:
            with open(given.events, "w") as file:  # noqa: PTH123 - a path of the user
                file.writelines(json.dumps(event) + "\n" for event in outcome.events)
        if outcome.wrong:
            wrong += 1
            smallest = shortened(plan, lambda one: bool(next(run_apart([one])).wrong)) if given.shorten else plan
            _tell({"seed": plan.seed, "wrong": outcome.wrong, "plan": json.loads(smallest.to_json())})
            if given.until_wrong:
                break
    seconds = real_time() - began
    counts = {"histories": histories, "wrong": wrong, "steps": steps, "faults": faults, "seconds": round(seconds, 1)}
    _tell(counts)
    return int(wrong > 0)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is a choice too, and no seed of ours decides it.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
