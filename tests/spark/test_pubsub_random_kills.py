"""SIGKILL at a random moment, through Spark: nothing lost, nothing doubled, replays equal bit for bit.

A few of the kills of ``./dev chaos pubsub``. The JVM is killed by the demonstration in test_demo.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing.pubsub import PubSubServer
from tests.chaos.rigs.pubsub_kills import KillPlan, KillTrial
from tests.chaos.support.spark import SparkJobs

pytestmark = pytest.mark.guarantee


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkJobs]:
    """One Spark process for all tests."""
    with SparkJobs(tmp_path_factory.mktemp("spark")) as running:
        yield running


@pytest.mark.parametrize("victim", ["source_runner", "fetcher"])
def test_a_process_killed_at_a_random_moment_loses_and_doubles_nothing(
    victim: str, jobs: SparkJobs, tmp_path: Path, seed: int
) -> None:
    plan = KillPlan.make(seed, [victim], messages=2000)
    with PubSubServer() as server:
        outcome = KillTrial(plan, tmp_path / "trial", server, server.endpoint, jobs).run()
    assert outcome["faults"] == [], outcome
