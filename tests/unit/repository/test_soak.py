"""The verdict of a soak breaks when something grows, and its faults follow from its seed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.support.footprint import TOLERANCES, Sample, verdict

FLAT = [Sample(float(second), 500, 800, 100, 150, 400, 40, 1.0) for second in range(60)]


@pytest.mark.parametrize("name", TOLERANCES)
def test_growth_of_anything_breaks_the_verdict(name: str) -> None:
    ended = [replace(sample, **{name: getattr(sample, name) * 6}) for sample in FLAT[50:]]
    _, faults = verdict(FLAT[:50] + ended, 60.0)
    assert [fault.partition(" ")[0] for fault in faults] == [name]


def test_a_run_without_latencies_in_its_last_part_does_not_pass() -> None:
    silent = [replace(sample, latency=None) for sample in FLAT[50:]]
    assert verdict(FLAT[:50] + silent, 60.0)[1] == ["latency was not measured in the last part"]
