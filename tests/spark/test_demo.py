"""The demonstration, as a user runs it: killed in the middle, counted by ids; the count sees a planted loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.cli.demo.run import DemoPlan, run_demo

pytestmark = pytest.mark.guarantee

ROOT = Path(__file__).parents[2]
NEVER = 2.0
MESSAGES = 10_000


def run_program(*arguments: str) -> tuple[int, dict[str, int], str]:
    command = [sys.executable, "-m", "connectors.cli", "demo", "--json", "--messages", str(MESSAGES), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=280)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_the_demo_strikes_out_copies_and_its_count_sees_a_planted_loss() -> None:
    code, result, shown = run_program("--plant-loss")
    assert code == 1
    assert (result["published"], result["lost"], result["doubled"]) == (MESSAGES, 1, 0)
    assert result["duplicates"] > 0
    assert result["delivered"] == result["published"] + result["duplicates"]
    assert result["rows_per_second"] > 0
    assert "duplicates dropped" in " ".join(shown.split())


# ./dev test has both parts: the demonstration above, and the emulator in tests/integration/pubsub/test_emulator.py.
@pytest.mark.long
def test_the_demo_on_the_official_emulator_loses_and_doubles_nothing(pubsub_emulator: str, tmp_path: Path) -> None:
    """Its fetcher dies between durable and ack; the kill of the query is the other test's."""
    plan = DemoPlan(tmp_path, messages=MESSAGES, endpoint=pubsub_emulator, kill_at=NEVER)
    result = run_demo(plan, lambda _: None)
    assert (result.published, result.lost, result.doubled) == (MESSAGES, 0, 0)
    assert result.duplicates > 0
