"""The fixture that runs a test on the fast path and on the plain one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka_paths import path_taken


@pytest.fixture(params=["native", "plain"])
def both_paths(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test on both paths."""
    with path_taken(native=request.param == "native"):
        yield
