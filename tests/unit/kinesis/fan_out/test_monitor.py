"""Fetchers that tell nothing."""

from __future__ import annotations

import pytest

from connectors.kinesis.fan_out.monitor import StallDetector
from connectors.spool.fetching.group import FetcherStatus


def statuses(at: float, fetcher: str | None = "a") -> list[FetcherStatus]:
    return [FetcherStatus(0, pid=7, fetcher=fetcher, settled_at=at)]


def test_a_fetcher_that_tells_nothing_is_silent_until_it_does_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent = StallDetector(patience=5.0, period=1.0)
    for _ in range(5):
        silent.check(statuses(1.0))
    assert 0 not in silent
    for _ in range(9):
        silent.check(statuses(1.0))
        assert 0 in silent
    assert caplog.text.count("[KINESIS_FETCHER_SILENT]") == 1
    silent.check(statuses(2.0))
    assert 0 not in silent


def test_a_fetcher_that_is_not_there_yet_is_not_silent() -> None:
    silent = StallDetector(patience=5.0, period=1.0)
    for _ in range(20):
        silent.check(statuses(1.0, fetcher=None))
    assert 0 not in silent
