"""The fixture that runs a test on the fast path and on the plain one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.core.worker import NO_FAST_PATH
from connectors.kafka.client.fast_path import native_reason


@pytest.fixture(params=["native", "plain"])
def both_paths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the test on both paths: CONNECTORS_NO_FAST_PATH selects one for this process and those it starts."""
    monkeypatch.setenv(NO_FAST_PATH, "1" if request.param == "plain" else "")
    native_reason.cache_clear()
    yield
    native_reason.cache_clear()
