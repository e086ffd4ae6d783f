"""SIGKILL at random moments of a Kinesis query under load: each record once. A few of ``./dev chaos kinesis``."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.testing.kinesis import start_server_process
from tests.chaos.rigs.kinesis_kills import MODES, KillPlan, KillTrial
from tests.chaos.support.spark import SparkJobs

pytestmark = pytest.mark.guarantee


@pytest.mark.long
@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_query_killed_at_random_under_load_and_resharding_reads_each_record_once(
    mode: str, tmp_path: Path, seed: int
) -> None:
    with start_server_process(call_limit=0) as server, SparkJobs(tmp_path / "jobs") as jobs:
        plan = KillPlan.make(seed, mode, number=0, kills=3)
        outcome = KillTrial(plan, tmp_path / f"trial-{mode}", server.endpoint, jobs).run()
    assert outcome["faults"] == [], outcome
