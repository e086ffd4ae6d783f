"""Where a bounded run ends: pure decisions over what was seen, without a clock."""

from __future__ import annotations

from connectors.spool.stream.freshness import Arrivals, QuietWatch

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
WATCH = QuietWatch(began=100.0, quiet=10.0, longest=300.0)


def arrivals(bound_time: int = START) -> Arrivals:
    seen = Arrivals()
    seen.begin(100.0, bound_time)
    return seen


def test_a_run_ends_when_healthy_streams_were_quiet_long_enough() -> None:
    seen = arrivals()
    seen.round_ended(101.0, healthy=True, settled=101.0)
    seen.round_ended(110.9, healthy=True, settled=110.9)
    assert not WATCH.over(110.9, seen)
    seen.round_ended(111.0, healthy=True, settled=111.0)
    assert WATCH.over(111.0, seen)


def test_rows_that_a_fetcher_holds_may_be_old_so_the_run_goes_on() -> None:
    seen = arrivals()
    seen.round_ended(101.0, healthy=True, settled=101.0)
    seen.round_ended(130.0, healthy=True, settled=105.0)
    assert not WATCH.over(130.0, seen)
    seen.admitted(131.0, (START - SECOND, START - SECOND), 1)
    seen.round_ended(131.0, healthy=True, settled=131.0)
    assert not WATCH.over(140.9, seen)
    seen.round_ended(141.0, healthy=True, settled=141.0)
    assert WATCH.over(141.0, seen)


def test_new_rows_do_not_keep_a_run_going() -> None:
    seen = arrivals()
    seen.round_ended(101.0, healthy=True, settled=101.0)
    seen.admitted(111.0, (START + 5 * SECOND, START + 10 * SECOND), 1)
    seen.round_ended(111.0, healthy=True, settled=111.0)
    assert WATCH.over(111.0, seen)


def test_publish_times_show_that_the_clock_here_is_slow() -> None:
    hour = 3600 * SECOND
    seen = arrivals(bound_time=START - hour)
    seen.round_ended(101.0, healthy=True, settled=101.0)
    # Published 3 s and 1 s before the run began, by the service's clock; the clock here was an hour behind.
    seen.admitted(105.0, (START - 3 * SECOND, START + 5 * SECOND), 2)
    assert seen.bound_time == START
    seen.admitted(106.0, (START - SECOND, START - SECOND), 1)
    seen.round_ended(111.0, healthy=True, settled=111.0)
    assert not WATCH.over(111.0, seen)


def test_an_unhealthy_run_ends_when_nothing_old_came_for_the_longest_time() -> None:
    seen = arrivals()
    seen.round_ended(399.0, healthy=False, settled=399.0)
    assert not WATCH.over(399.0, seen)
    assert WATCH.over(400.0, seen)
