"""The fixtures that select the fast path or the plain one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka_paths import path_taken


@pytest.fixture(params=[True, False], ids=["native", "plain"])
def native(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run the test on both paths."""
    with path_taken(native=request.param):
        yield request.param


@pytest.fixture
def plain_path() -> Iterator[None]:
    with path_taken(native=False):
        yield
