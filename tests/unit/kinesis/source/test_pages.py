"""When a shard may be asked again, held against the limits that the server of `connectors.testing` enforces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kinesis.source.pages import Pace
from connectors.testing.clock import SECOND
from connectors.testing.kinesis.model.limits import Limits
from connectors.testing.kinesis.model.streams import HASH_KEYS, Stream


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def paced(period: float = 0.4, rate: float = 2e6, calls: int = 1, *, rested: bool = False) -> tuple[Pace, Clock]:
    clock = Clock()
    return Pace(period, rate, calls, rested=rested, clock=clock), clock


def test_18_calls_are_spaced_from_their_starts() -> None:
    pace, clock = paced()
    assert pace.wait_seconds() <= 0
    pace.begin()
    clock.now += 0.3  # what the call takes
    pace.add_bytes(1000)
    assert pace.wait_seconds() == pytest.approx(0.1)


def test_18_a_large_response_counts_from_the_start_of_its_call() -> None:
    pace, clock = paced()
    pace.begin()
    clock.now += 1.5
    pace.add_bytes(10_000_000)
    assert pace.wait_seconds() == pytest.approx(3.5)


def test_a_late_call_is_made_up_for_by_one_of_the_next_and_no_more() -> None:
    pace, clock = paced(calls=2)
    pace.begin()
    assert pace.wait_seconds() == pytest.approx(0.4)
    clock.now += 10
    for wait in (0.0, 0.4, 0.4):
        assert pace.wait_seconds() <= 0
        pace.begin()
        assert max(0.0, pace.wait_seconds()) == pytest.approx(wait)
        clock.now += wait


def test_calls_that_counted_for_several_are_forgiven_but_for_what_the_service_counts() -> None:
    pace, clock = paced(calls=3, rested=True)
    pace.begin(4)
    pace.begin(4)
    assert pace.wait_seconds() == pytest.approx(2.4)
    clock.now += 0.1
    pace.forgive()
    assert pace.wait_seconds(2) == pytest.approx(1.5 + 0.4 - 0.8), "two bursts of two periods, from those calls on"
    clock.now += 10
    pace.begin(4)
    pace.begin(4)
    clock.now += 2
    pace.forgive()
    assert pace.wait_seconds(2) == pytest.approx(0.4), "and no burst at once"


def test_calls_are_spread_where_others_make_most_of_them() -> None:
    pace, _ = paced(calls=3, rested=True)
    assert pace.wait_seconds(spread=True) <= 0
    pace.begin(4)
    assert pace.wait_seconds(spread=True) == pytest.approx(1.6)


@given(
    st.floats(0.25, 2.0),
    st.integers(1, 10 << 20),
    st.lists(st.floats(0, 3), max_size=60),
)
def test_17_18_a_service_that_counts_calls_and_bytes_refuses_none(period: float, size: int, late: list[float]) -> None:
    pace, clock = paced(period, calls=2)
    limits, stream = Limits(), Stream("orders", "arn", 1, 1, False, 1024)
    stream.add_shard(0, 0, HASH_KEYS - 1)
    (shard,) = stream.shards.values()
    for more in [*late, *[0.0] * 20]:
        clock.now += max(0.0, pace.wait_seconds()) + 1e-6 + more
        limits.check_shard_call("GetRecords", stream, shard, round(clock.now * SECOND))
        pace.begin()
        limits.spend_read(shard, size, round(clock.now * SECOND))
        pace.add_bytes(size)


@given(st.floats(0.4, 2.0), st.lists(st.tuples(st.integers(1, 2), st.floats(0, 3)), max_size=60))
def test_17_a_search_makes_at_most_five_calls_in_a_second(period: float, steps: list[tuple[int, float]]) -> None:
    pace, clock = paced(period, calls=3, rested=True)
    times: list[float] = []
    for calls, pause in steps:
        clock.now += max(0.0, pace.wait_seconds(2)) + pause
        for _ in range(calls):
            pace.begin()
            times.append(clock.now)
    assert all(later - first >= 1 for first, later in zip(times, times[5:], strict=False))
