"""The recent past of a query: its rate and lag over time, and when a backlog is gone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from connectors.cli.observe import sparkline
from connectors.observe.history import History, Sample


def history(lags: Sequence[float], *, every: float = 1.0, rows: int = 100, counts: bool = True) -> History:
    """Batches without a pause, with the lag after each."""
    made = History()
    for number, lag in enumerate(lags):
        begin = 1000 * every * number
        made.add(Sample(begin, begin + 1000 * every, rows, int(lag) if counts else None, lag))
    return made


def test_a_sparkline_has_a_bar_for_each_value_and_only_nothing_is_the_lowest() -> None:
    assert sparkline([0, 1, 50, 99, 100]) == "▁▂▅██"
    assert (sparkline([]), sparkline([0, 0]), sparkline([0.1])) == ("", "▁▁", "█")
    assert sparkline([0.1 + 0.2, 0.3]) == "██", "no rounding reaches beyond the highest bar"


def test_the_rate_is_spread_over_the_time_that_a_batch_took() -> None:
    made = History()
    made.add(Sample(0, 4000, 400, 0, 0))
    made.add(Sample(8000, 8000, 0, 0, 0))  # idle
    assert made.seconds == 8
    assert made.rates(4) == pytest.approx([100, 100, 0, 0])
    assert made.rates(8) == pytest.approx([100] * 4 + [0] * 4)


def test_the_rates_add_up_to_the_rows() -> None:
    made = History()
    for begin, end, rows in ((0, 700, 30), (900, 2500, 41), (2400, 3100, 7)):
        made.add(Sample(begin, end, rows, 0, 0))
    for columns in (1, 3, 7, 40):
        assert sum(made.rates(columns)) * 3.1 / columns == pytest.approx(78)


def test_the_lag_of_a_part_of_the_time_is_that_at_its_end() -> None:
    assert history([5, 10, 20, 40]).lags(4) == [5, 10, 20, 40]
    assert history([5, 10, 20, 40]).lags(2) == [10, 40]
    assert history([5, 40], every=4).lags(8) == [0, 0, 0, 5, 5, 5, 5, 40]
    assert history([1.5, 2.5], counts=False).lags(2) == [1.5, 2.5]


def test_a_backlog_that_shrinks_evenly_is_gone_when_it_would_be() -> None:
    assert history(range(1000, 500, -10)).seconds_left() == pytest.approx(51)
    assert history(range(60, 10, -1), counts=False).seconds_left() == pytest.approx(11)


@pytest.mark.parametrize(
    "lags",
    [[], [100], [100, 90], [0, 0, 0, 0], range(100), [100, 101] * 20, [500] * 40],
    ids=lambda lags: str(lags)[:20],
)
def test_a_backlog_of_which_too_little_is_known_or_that_does_not_shrink_has_no_end(lags: Sequence[float]) -> None:
    assert history(lags).seconds_left() is None


def test_a_lag_grows_is_steady_or_not_known() -> None:
    assert history(range(0, 1000, 10)).change() == pytest.approx(10)
    assert history([500, 501, 499] * 10).change() == 0
    assert history([0] * 10).change() == 0
    assert history([5, 10]).change() is None


def test_a_trend_is_that_of_the_last_half_minute_and_of_slow_batches_that_of_the_last_eight() -> None:
    assert history([*range(0, 6000, 100), *range(6000, 0, -100)]).change() == pytest.approx(-100)
    assert history([*range(0, 60, 10), *range(80, 0, -10)], every=60).change() == pytest.approx(-10 / 60)


def test_a_backlog_after_a_burst_is_gone_by_what_follows_the_burst() -> None:
    burst = [0] * 10 + list(range(9000, 6000, -200))
    assert history(burst).change() == pytest.approx(-200)
    assert history(burst).seconds_left() == pytest.approx(31)
    assert history([*range(3000, 0, -200), *range(0, 700, 100)]).change() == pytest.approx(100)
    assert history([0] * 10 + [9000, 8800, 8600]).seconds_left() is None, "too soon to say"


def test_what_is_older_than_ten_minutes_is_forgotten_unless_batches_are_slow() -> None:
    assert history([1] * 5000).seconds == pytest.approx(601)
    assert history([1] * 50, every=300).seconds == 30 * 300


def test_a_clock_that_is_set_back_does_no_harm() -> None:
    made = history([1, 2, 3])
    made.add(Sample(-5000, -4000, 10, 4, 4))
    assert len(made.rates(4)) == len(made.lags(4)) == 4
    assert made.change() is not None or made.seconds == 0
