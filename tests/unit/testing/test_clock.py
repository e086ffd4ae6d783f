"""The clock and the schedule of the servers for tests."""

from __future__ import annotations

import pytest

from connectors.testing.clock import Schedule, ServerClock


def test_runs_speed_times_as_fast_and_jumps_forward() -> None:
    real = 0
    clock = ServerClock(10, lambda: real)
    start = clock.now()
    real = 3
    assert clock.now() == start + 30
    clock.set_speed(100)
    real = 4
    assert clock.now() == start + 130
    clock.jump(2.5)
    assert clock.now() == start + 130 + 2_500_000_000
    assert clock.real_seconds_until(clock.now() + 100) == pytest.approx(1e-9)
    assert clock.real_seconds_until(start) == 0


def test_what_is_due_runs_in_order_of_time_then_of_planning() -> None:
    schedule, done = Schedule(), list[str]()
    for due, name in [(5, "late"), (3, "first"), (3, "second"), (9, "not yet")]:
        schedule.at(due, lambda _, name=name: done.append(name))
    schedule.run_due(5)
    assert done == ["first", "second", "late"]
    assert schedule.next_due() == 9
