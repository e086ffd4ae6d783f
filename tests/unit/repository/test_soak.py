"""The verdict of a soak breaks when something grows, and its faults follow from its seed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.rigs.soak_flows import SOAKS, without_marks
from tests.chaos.rigs.soak_trial import RESHARDS, SoakPlan
from tests.chaos.support.footprint import TOLERANCES, Sample, verdict

FLAT = [Sample(float(second), 500, 800, 100, 150, 400, 40, 1.0) for second in range(60)]


def test_a_flat_run_passes_and_its_medians_are_reported() -> None:
    measured, faults = verdict(FLAT, 60.0)
    assert faults == []
    assert measured["python_mb"] == {"first": 500, "last": 500, "allowed": 675}


@pytest.mark.parametrize("name", TOLERANCES)
def test_growth_of_anything_breaks_the_verdict(name: str) -> None:
    ended = [replace(sample, **{name: getattr(sample, name) * 6}) for sample in FLAT[50:]]
    _, faults = verdict(FLAT[:50] + ended, 60.0)
    assert [fault.partition(" ")[0] for fault in faults] == [name]


def test_a_run_without_latencies_in_its_last_part_does_not_pass() -> None:
    silent = [replace(sample, latency=None) for sample in FLAT[50:]]
    assert verdict(FLAT[:50] + silent, 60.0)[1] == ["latency was not measured in the last part"]


@pytest.mark.parametrize("flow", SOAKS)
def test_the_faults_follow_from_the_seed_and_come_each_minute(flow: str) -> None:
    plan = SoakPlan.make(7, flow, 10)
    assert plan == SoakPlan.make(7, flow, 10) != SoakPlan.make(8, flow, 10)
    kills = [moment for moment in plan.moments if moment.kind not in RESHARDS]
    assert [int(moment.second // 60) for moment in kills] == list(range(10))
    assert {moment.kind for moment in kills} == {*SOAKS[flow].victims, "driver"}
    reshards = [moment.kind for moment in plan.moments if moment.kind in RESHARDS]
    assert reshards == (["split", "merge"] * 5 if SOAKS[flow].reshards else [])


def test_what_each_start_leaves_for_ever_is_no_growth_and_anything_beside_it_is() -> None:
    live = ["spool.json", "lease", "ledger/3/0", "ledger/3/1", "folders/inbox/new", "inbox/new/0.arrow"]
    marks = ["epochs/1", "epochs/2", "epochs/3", "ledger/1/43", "ledger/2/79", "inbox/old/114.arrow"]
    assert without_marks(live + marks) == len(live)
    left = ["ledger/1/42", "inbox/old/113.arrow"]
    assert without_marks(live + marks + left) == len(live) + 2 * len(left)
    assert without_marks(["ledger/1/0", "inbox/dead/0.arrow"]) == 2  # a folder of a disk has no closed names
