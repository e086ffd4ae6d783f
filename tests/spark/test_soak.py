"""Kinesis by fan-out at a steady rate, with a shard split and a process killed. A share of ``./dev chaos soak``."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.rigs.soak_flows import DirectServices
from tests.chaos.rigs.soak_trial import SoakPlan, SoakTrial
from tests.chaos.support.spark import SparkJobs

pytestmark = pytest.mark.guarantee


def test_a_query_at_a_steady_rate_with_a_split_and_a_kill_reads_each_record_once_and_in_order(
    tmp_path: Path, seed: int
) -> None:
    plan = replace(SoakPlan.make(seed, "kinesis_efo", 1), seconds=10.0)
    plan = replace(plan, moments=tuple(replace(moment, second=moment.second / 6) for moment in plan.moments))
    with ExitStack() as stack:
        services = DirectServices(stack, seed)
        outcome = SoakTrial(plan, tmp_path / "flow", services, stack.enter_context(SparkJobs(tmp_path / "jobs"))).run()
    # What a query holds grows while it warms up: only an hour shows that it does not grow for good.
    assert [fault for fault in outcome["faults"] if fault not in outcome["grown"]] == [], outcome
    assert (outcome["counts"]["kills"], outcome["counts"]["splits"]) == (1, 1)
    assert len(outcome["samples"]["second"]) > 0
