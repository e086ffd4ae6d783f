"""The demonstration, as a user runs it: killed in the middle, counted by ids; the count sees a planted loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_demo(*arguments: str) -> tuple[int, dict[str, int], str]:
    command = [sys.executable, "-m", "connectors.cli", "demo", "--json", "--messages", "10000", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=280)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_the_demo_strikes_out_copies_and_its_count_sees_a_planted_loss() -> None:
    code, result, shown = run_demo("--plant-loss")
    assert code == 1
    assert (result["published"], result["lost"], result["doubled"]) == (10_000, 1, 0)
    assert result["duplicates"] > 0
    assert result["delivered"] == result["published"] + result["duplicates"]
    assert result["rows_per_second"] > 0
    assert "duplicates struck out" in " ".join(shown.split())


def test_the_demo_on_the_official_emulator_loses_and_doubles_nothing(pubsub_emulator: str) -> None:
    code, result, _ = run_demo("--endpoint", pubsub_emulator)
    assert (code, result["lost"], result["doubled"]) == (0, 0, 0)
    assert result["duplicates"] > 0
