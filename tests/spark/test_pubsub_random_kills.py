"""SIGKILL at a random moment, through Spark: nothing lost, nothing doubled, replays equal bit for bit.

A few of the kills of ``./dev chaos pubsub``, with other seeds each time. The seed is printed, and CHAOS_SEED gives it
again. The JVM is killed by the demonstration in test_demo.py.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing.pubsub import PubSubServer
from tests.chaos.rigs.pubsub_kills import KillPlan, KillTrial
from tests.chaos.support.spark import SparkJobs


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkJobs]:
    """One Spark process for all tests."""
    with SparkJobs(tmp_path_factory.mktemp("spark")) as running:
        yield running


@pytest.mark.parametrize("victim", ["source_runner", "fetcher"])
def test_a_process_killed_at_a_random_moment_loses_and_doubles_nothing(
    victim: str, jobs: SparkJobs, tmp_path: Path
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or secrets.randbits(32))
    sys.stdout.write(f"CHAOS_SEED={seed}\n")
    plan = KillPlan.make(seed, [victim], messages=2000)
    with PubSubServer() as server:
        outcome = KillTrial(plan, tmp_path / "trial", server, server.endpoint, jobs).run()
    assert outcome["faults"] == [], outcome
