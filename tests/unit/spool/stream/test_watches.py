"""An outage of the service is in the log: when it begins, while it lasts, and when it is over."""

from __future__ import annotations

import pytest

from connectors.core.errors import AccessDeniedError, ConnectorError, ServiceUnavailableError
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.stream.watches import OutageLog

GONE = ServiceUnavailableError("PUBSUB_UNAVAILABLE", "Nobody listens", "localhost:9")
DENIED = AccessDeniedError("PUBSUB_PERMISSION_DENIED", "Pulling is denied", "s")


def standing(*errors: ConnectorError | None) -> list[FetcherStatus]:
    return [FetcherStatus(index=0, healthy=error is None, error=error) for error in errors]


def words(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The codes of the lines since the last call."""
    found = [record.getMessage().partition("]")[0].removeprefix("[SPOOL_FETCHING_") for record in caplog.records]
    caplog.clear()
    return found


def test_an_outage_is_said_while_it_lasts_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    log = OutageLog("/data/spool")
    said = {}
    for second in range(200):
        log.see(1000.0 + second, standing(None, GONE) if second < 150 else standing(None, None))
        if caplog.records:
            assert "/data/spool" in caplog.text
            assert ("Nobody listens" in caplog.text and "1 of 2" in caplog.text) or second >= 150
            [said[second]] = words(caplog)
    assert said == {5: "INTERRUPTED", 65: "INTERRUPTED", 125: "INTERRUPTED", 150: "RESUMED"}


def test_trouble_of_another_kind_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    log = OutageLog("spool")
    for second in range(10):
        log.see(second, standing(GONE))
    log.see(10, standing(DENIED))
    log.see(11, standing(DENIED))
    assert words(caplog) == ["INTERRUPTED", "INTERRUPTED"]
    log.see(12, standing(None))
    assert words(caplog) == ["RESUMED"]


def test_what_passes_within_seconds_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    log = OutageLog("spool")
    for second in range(100):
        log.see(second, standing(GONE if second % 5 else None))
    assert not caplog.records


def test_an_answer_to_some_other_call_ends_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    # No stream can be opened, but what is asked otherwise is answered now and then, which clears the error.
    log = OutageLog("spool")
    for second in range(10):
        log.see(second, standing(GONE) if second % 2 else [FetcherStatus(index=0, streams=1)])
    assert words(caplog) == ["INTERRUPTED"]


def test_fetchers_that_start_or_pause_are_in_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    log = OutageLog("spool")
    for second in range(10):
        log.see(second, [FetcherStatus(index=0)])
        log.see(second, [FetcherStatus(index=0, paused=True)])
    assert not caplog.records
