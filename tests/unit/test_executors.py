"""When fetchers on executors leave no slot for batches."""

from __future__ import annotations

import pytest

from connectors.executors import executors_wanted

ALLOCATION = {"spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "2"}


@pytest.mark.parametrize(
    ("settings", "fetchers", "wanted"),
    [
        (ALLOCATION, 1, 1),
        (ALLOCATION, 2, 2),
        (ALLOCATION | {"spark.dynamicAllocation.minExecutors": "1"}, 2, 2),
        (ALLOCATION | {"spark.dynamicAllocation.minExecutors": "2"}, 4, 3),
        (ALLOCATION | {"spark.dynamicAllocation.minExecutors": "2", "spark.task.cpus": "2"}, 2, 3),
    ],
)
def test_executors_that_fetchers_fill_are_warned_of(settings: dict[str, str], fetchers: int, wanted: int) -> None:
    assert executors_wanted(settings.get, fetchers) == wanted


@pytest.mark.parametrize(
    ("settings", "fetchers"),
    [
        ({}, 2),
        ({"spark.executor.cores": "2"}, 2),
        ({"spark.dynamicAllocation.enabled": "true"}, 2),  # as many cores as a machine has, which nobody knows here
        (ALLOCATION | {"spark.dynamicAllocation.minExecutors": "1"}, 1),
        (ALLOCATION | {"spark.dynamicAllocation.minExecutors": "2"}, 3),
    ],
)
def test_a_slot_that_is_left_is_no_reason_to_warn(settings: dict[str, str], fetchers: int) -> None:
    assert executors_wanted(settings.get, fetchers) == 0
