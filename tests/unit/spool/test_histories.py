"""Simulated histories of the spool: right for any seed, equal for the same seed, and wrong where a bug is planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.planted_bugs import ROOT, copy_tree, plant

pytestmark = pytest.mark.guarantee

SEEDS = 100


def simulate(tree: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run histories with the code of a tree; return what it prints: those that are wrong, then the counts."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "tests.support.simulation", *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def first_seed() -> int:
    """Return a seed that the commit chooses, so that each commit tries others, and the same ones each time."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(asked.stdout[:8] or "0", 16)


@pytest.mark.timeout(300)
def test_a_hundred_histories_that_the_commit_chooses_lose_double_and_change_nothing() -> None:
    first = first_seed()
    *wrong, counts = simulate(ROOT, "--seeds", f"{first}-{first + SEEDS - 1}")
    assert not wrong, f"run it again by: python -m tests.support.simulation --seeds {wrong[0]['seed']} --shorten"
    assert counts["histories"] == SEEDS
    assert counts["faults"] > SEEDS


def test_the_same_seed_gives_the_same_history(tmp_path: Path) -> None:
    histories = []
    for name in ("one", "other"):
        (counts,) = simulate(ROOT, "--seeds", "7", "--events", str(tmp_path / name))
        histories.append((counts["steps"], (tmp_path / name).read_text()))
    assert histories[0] == histories[1]
    assert '"event": "batch"' in histories[0][1]


@pytest.mark.timeout(300)
def test_a_planted_bug_is_found_and_its_plan_is_shortened_to_one_that_fails_again(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    plant(ROOT / "tests" / "planted" / "histories" / "fence_not_noticed.patch", tmp_path)
    wrong, _ = simulate(tmp_path, "--seeds", "0-199", "--until-wrong", "--shorten")
    assert wrong["wrong"]
    plan = wrong["plan"]
    # Two writers are needed, so at least one fault is left.
    assert 1 <= len(plan["faults"]) <= 3
    again, _ = simulate(tmp_path, "--plan", json.dumps(plan))
    assert again["wrong"]
    (counts,) = simulate(ROOT, "--plan", json.dumps(plan))
    assert counts["wrong"] == 0
