"""``./dev chaos power_loss``: a loss of power at every point of a spool's life, and a disk that is full at every call.

All of what ``./dev test`` samples. It prints what it has tried, and stops at the first failure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.support.full_disk_rig import live_on_full_disk
from tests.support.power_loss import Way
from tests.support.power_loss_rig import check, losses, record

REFUSALS = 3


def lose_power(folder: Path, name: str, seeds: int, dies_at: int | None = None) -> int:
    """Record a life and check all that could be left of it; how many different things those were."""
    recording = record(folder / name, dies_at)
    checked = 0
    for seed in range(seeds):
        ways = list(Way) if seed == 0 else [Way.MIXED]
        for left in losses(recording, ways, seed):
            check(folder / name, left)
            checked += 1
    return checked


def fill_up(folder: Path) -> int:
    """A disk that is full from each call on in turn; how many calls those were."""
    calls = len(live_on_full_disk(folder / "room", None, 0).taking)
    for place in range(calls):
        live_on_full_disk(folder / f"full-{place}", place, REFUSALS)
    return calls


def main(arguments: list[str]) -> int:
    """Run all of it; an error ends it."""
    parser = argparse.ArgumentParser(prog="./dev chaos power_loss", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=3, help="how often names and bytes are lost by chance at each point"
    )
    parser.add_argument("--deaths", type=int, default=40, help="lives with a death before the loss of power")
    parser.add_argument("--only", choices=("power", "deaths", "full"), help="only this part")
    command_line = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="power-loss-") as name:
        folder = Path(name)
        began = time.monotonic()
        if command_line.only in {None, "power"}:
            checked = lose_power(folder, "life", command_line.seeds)
            print(f"{checked} losses of power: 0 lost, 0 doubled, every replay equal", flush=True)
        if command_line.only in {None, "deaths"}:
            calls = len(record(folder / "measured").calls)
            for number in range(command_line.deaths):
                dies_at = calls * number // command_line.deaths
                checked = lose_power(folder, f"death-{number}", 1, dies_at)
                print(f"a death before call {dies_at} of {calls}, then {checked} losses of power: all well", flush=True)
        if command_line.only in {None, "full"}:
            print(f"a disk full from each of {fill_up(folder)} calls on: 0 lost, 0 doubled, no restart", flush=True)
        print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
