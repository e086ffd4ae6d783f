"""Fetching on the executors of a real cluster of Spark, two processes of one machine: one of them is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = Path(__file__).parents[1] / "support" / "executors_job.py"


def run(tmp_path: Path, case: str) -> str:
    """Run a case in a process of its own, since a process has one session; what it printed."""
    done = subprocess.run(
        [sys.executable, str(CLUSTER), case, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout


@pytest.mark.guarantee
@pytest.mark.long
def test_executors_fetch_and_one_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, "kill")
    assert "killed an executor" in said
    assert "each once" in said
    assert "ended with the query" in said


@pytest.mark.guarantee
@pytest.mark.parametrize("case", ["few", pytest.param("fair", marks=pytest.mark.long)])
def test_as_many_fetchers_as_slots_leave_batches_theirs_also_after_an_executor_is_lost(
    tmp_path: Path, case: str
) -> None:
    said = run(tmp_path, case)
    assert "read the first" in said
    assert "one beside each executor" in said
    assert "each once" in said
    assert "nothing left" in said


@pytest.mark.long
def test_an_executor_that_cannot_see_the_spool_says_so(tmp_path: Path) -> None:
    said = run(tmp_path, "unseen")
    assert "fetchers: SPOOL_NOT_VISIBLE" in said
    assert "query: SPOOL_NOT_VISIBLE" in said
