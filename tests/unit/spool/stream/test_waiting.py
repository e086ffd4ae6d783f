"""What the threads of a stream wait for and warn of: the end of a bounded run, and outages of the service."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from connectors.core.errors import AccessDeniedError, ConnectorError, ServiceUnavailableError
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.stream.waiting import Freshness, OutageLog, Reason

SECOND = 1_000_000
LONGEST = 10.0
START = 1_700_000_000 * SECOND


def arrivals(bound_time: int = START) -> Freshness:
    seen = Freshness(quiet=10.0, longest=300.0)
    seen.begin(100.0, bound_time)
    return seen


def test_a_run_ends_when_healthy_streams_were_quiet_long_enough() -> None:
    seen = arrivals()
    seen.round_ended(101.0, healthy=True, settled=101.0)
    seen.round_ended(110.9, healthy=True, settled=110.9)
    assert not seen.all_came(110.9)
    seen.round_ended(111.0, healthy=True, settled=111.0)
    assert seen.all_came(111.0)


def test_rows_that_a_fetcher_holds_may_be_old_so_the_run_goes_on() -> None:
    seen = arrivals()
    seen.round_ended(101.0, healthy=True, settled=101.0)
    seen.round_ended(130.0, healthy=True, settled=105.0)
    assert not seen.all_came(130.0)
    seen.admitted(131.0, (START - SECOND, START - SECOND), 1)
    seen.round_ended(131.0, healthy=True, settled=131.0)
    assert not seen.all_came(140.9)
    seen.round_ended(141.0, healthy=True, settled=141.0)
    assert seen.all_came(141.0)


def test_new_rows_do_not_keep_a_run_going() -> None:
    seen = arrivals()
    seen.round_ended(101.0, healthy=True, settled=101.0)
    seen.admitted(111.0, (START + 5 * SECOND, START + 10 * SECOND), 1)
    seen.round_ended(111.0, healthy=True, settled=111.0)
    assert seen.all_came(111.0)


def test_publish_times_show_that_the_clock_here_is_slow() -> None:
    hour = 3600 * SECOND
    seen = arrivals(bound_time=START - hour)
    seen.round_ended(101.0, healthy=True, settled=101.0)
    # Published 3 s and 1 s before the run began, by the service's clock; the clock here was an hour behind.
    seen.admitted(105.0, (START - 3 * SECOND, START + 5 * SECOND), 2)
    assert seen.bound_time == START
    seen.admitted(106.0, (START - SECOND, START - SECOND), 1)
    seen.round_ended(111.0, healthy=True, settled=111.0)
    assert not seen.all_came(111.0)


def test_an_unhealthy_run_ends_when_nothing_old_came_for_the_longest_time() -> None:
    seen = arrivals()
    seen.round_ended(399.0, healthy=False, settled=399.0)
    assert not seen.all_came(399.0)
    assert seen.all_came(400.0)


def test_a_wait_ends_with_its_reason_or_at_its_deadline() -> None:
    seen, arrived, checks = Freshness(10.0, 300.0), threading.Event(), []

    def reason() -> Reason | None:
        return Reason.NEW_ROWS if arrived.is_set() else None

    def arrive() -> None:
        with seen.changing():
            arrived.set()

    assert seen.wait(reason, lambda: checks.append(1), deadline=time.monotonic() - 1) is Reason.TIMEOUT
    threading.Timer(0.05, arrive).start()
    assert seen.wait(reason, lambda: checks.append(1)) is Reason.NEW_ROWS
    assert len(checks) >= 2


def test_what_comes_in_is_noted_while_a_call_finds_its_reason() -> None:
    seen, looks, released, noted = Freshness(10.0, 300.0), threading.Event(), threading.Event(), threading.Event()

    def reason() -> Reason | None:
        looks.set()
        released.wait()
        return Reason.NEW_ROWS if noted.is_set() else None

    def note() -> None:
        with seen.changing():
            seen.round_ended(101.0, healthy=True, settled=101.0)
        noted.set()

    with ThreadPoolExecutor(2) as threads:
        call = threads.submit(seen.wait, reason, lambda: None)
        assert looks.wait(LONGEST)
        threads.submit(note)
        try:
            assert noted.wait(LONGEST), "admission waits for a call of Spark"
        finally:
            released.set()
        assert call.result(LONGEST) is Reason.NEW_ROWS


# -- outages ------------------------------------------------------------------------------------------------------

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
