"""Fetchers on executors: which settings let Spark release them, and how they spread."""

from __future__ import annotations

import pytest

from connectors.spool.executors import FetcherSpread, executors_wanted

ALLOCATION = {"spark.dynamicAllocation.enabled": "true"}
LEAST = "spark.dynamicAllocation.minExecutors"


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [(ALLOCATION, 3), (ALLOCATION | {LEAST: "0"}, 3), (ALLOCATION | {LEAST: "1"}, 0), ({}, 0), ({LEAST: "0"}, 0)],
)
def test_executors_that_may_all_be_released_are_warned_of(settings: dict[str, str], wanted: int) -> None:
    assert executors_wanted(settings.get, 3) == wanted


@pytest.mark.parametrize(
    ("executors", "hosts", "limits"),
    [(2, 1, (3, 5)), (4, 2, (2, 3)), (5, 5, (1, 1)), (9, 9, (1, 1))],
)
def test_fetchers_spread_evenly_over_hosts_and_executors(executors: int, hosts: int, limits: tuple[int, int]) -> None:
    spread = FetcherSpread(5)
    assert spread.limits(executors, hosts) == dict(zip(("at_executor", "on_machine"), limits, strict=True))


def test_a_place_takes_more_when_no_other_one_takes_any() -> None:
    spread = FetcherSpread(2)
    spread.see(["started", "declined"])
    assert spread.limits(2, 2)["at_executor"] == 1
    spread.see(["declined"])
    assert spread.limits(2, 2)["at_executor"] == 2
    spread.see(["started"])
    assert spread.limits(2, 2)["at_executor"] == 1


def test_where_the_number_of_executors_is_not_known_any_place_will_do() -> None:
    assert min(FetcherSpread(2).limits(0, 0).values()) > 1000
