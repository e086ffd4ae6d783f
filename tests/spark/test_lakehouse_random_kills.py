"""SIGKILL right after a commit to a Delta table: each record once. A share of ``./dev chaos lakehouse``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.rigs.lakehouse_kills import KillPlan, KillTrial
from tests.chaos.rigs.lakehouse_sources import source
from tests.chaos.support.spark import SparkJobs

pytestmark = pytest.mark.guarantee


def test_a_query_into_a_delta_table_killed_at_random_writes_each_record_once(tmp_path: Path, seed: int) -> None:
    with source("kinesis", tmp_path) as kinesis, SparkJobs(tmp_path / "jobs") as jobs:
        plan = replace(KillPlan.make(seed, "delta_rs", (), kills=1, records=500), pause=0.5)
        outcome = KillTrial(plan, tmp_path / "trial", kinesis, jobs).run()
    assert outcome["faults"] == [], outcome
