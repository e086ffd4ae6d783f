from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    OptionError,
    ServiceUnavailableError,
    SpoolFullError,
)
from connectors.core.retry import Backoff, Outage, OutageRule, WaitLog, wait_out


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def failing(times: int) -> Callable[[], str]:
    """Fails so many times with a transient error, then answers."""
    left = times

    def attempt() -> str:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ServiceUnavailableError("GONE_FOR_NOW", f"{left} failures left")
        return "answer"

    return attempt


def test_the_longest_delay_doubles_up_to_the_cap() -> None:
    backoff = Backoff(initial_seconds=1.0, cap_seconds=10.0, uniform=lambda: 1.0)
    assert [backoff.next_delay_seconds() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_the_longest_delay_after_two_thousand_failures_is_the_cap() -> None:
    backoff = Backoff(cap_seconds=30.0, uniform=lambda: 1.0)
    assert [backoff.next_delay_seconds() for _ in range(2_000)][-1] == 30.0


@given(st.integers(1, 200), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_between_zero_and_the_longest(failures: int, drawn: float) -> None:
    backoff = Backoff(initial_seconds=0.1, cap_seconds=7.0, uniform=lambda: drawn)
    longest = Backoff(initial_seconds=0.1, cap_seconds=7.0, uniform=lambda: 1.0)
    for _ in range(failures):
        assert 0 <= backoff.next_delay_seconds() <= longest.next_delay_seconds() <= 7.0


def test_success_starts_the_delays_anew() -> None:
    backoff = Backoff(initial_seconds=1.0, cap_seconds=100.0, uniform=lambda: 0.5)
    assert [backoff.next_delay_seconds() for _ in range(3)] == [0.5, 1.0, 2.0]
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next_delay_seconds() == 0.5


def test_failures_that_pass_are_retried_until_the_answer() -> None:
    time = Time()
    rule = OutageRule(600.0, cap_seconds=0.4)
    assert wait_out(failing(5), rule, clock=time.clock, sleep=time.sleep, uniform=lambda: 0.5) == "answer"
    assert time.slept == [0.05, 0.1, 0.2, 0.2, 0.2]


def test_retries_that_go_on_for_seconds_are_logged_and_then_every_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = Time()
    logged_at: list[float] = []

    def sleep(seconds: float) -> None:
        if len(caplog.messages) > len(logged_at):
            logged_at.append(time.now - 100)
        time.sleep(seconds)

    rule = OutageRule(600.0, cap_seconds=0.5)
    assert wait_out(failing(200), rule, clock=time.clock, sleep=sleep, uniform=lambda: 1.0) == "answer"
    assert logged_at == pytest.approx([4.7, 64.2])
    assert caplog.messages[0].startswith(
        "[RETRYING] A call has failed 12 times in 5 s: [GONE_FOR_NOW] 188 failures left"
    )


def test_retries_that_soon_help_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    for _ in range(5):
        wait_out(failing(4), OutageRule(600.0), clock=time.clock, sleep=time.sleep, uniform=lambda: 1.0)
    assert caplog.messages == []


def test_a_long_attempt_or_a_long_wait_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    backoff = Backoff(6.0, 6.0, lambda: 1.0, time.clock)
    backoff.next_delay_seconds(ServiceUnavailableError("GONE_FOR_NOW", "no answer"))
    assert len(caplog.messages) == 1
    backoff.reset()
    time.now += 100
    backoff.next_delay_seconds()
    assert len(caplog.messages) == 1, "there is nothing to say"


RULE = OutageRule(600.0, "retryTimeout")


def service_of(time: Time, away_seconds: float, call_seconds: float = 0.0) -> Callable[[], str]:
    """A service that is away for so long; a call to it takes some seconds then."""
    back_at = time.now + away_seconds

    def call() -> str:
        if time.now >= back_at:
            return "answer"
        time.now += call_seconds
        raise ServiceUnavailableError("GONE_FOR_NOW", "No answer", "here", "Check the network")

    return call


@pytest.mark.parametrize("call_seconds", [0.0, 25.0])
@pytest.mark.parametrize("drawn", [0.0, 0.3, 0.999])
def test_an_outage_shorter_than_the_rule_is_waited_out(call_seconds: float, drawn: float) -> None:
    time = Time()
    call = service_of(time, 570.0, call_seconds)
    slept = lambda seconds: time.sleep(max(seconds, 0.001))  # noqa: E731 - a clock that stands still ends no outage
    assert wait_out(call, RULE, clock=time.clock, sleep=slept, uniform=lambda: drawn) == "answer"


@pytest.mark.parametrize("call_seconds", [0.0, 25.0])
def test_a_longer_outage_ends_with_its_error_which_names_the_option(call_seconds: float) -> None:
    time = Time()
    said = (
        r"\[GONE_FOR_NOW\] No answer \(here\)\. Check the network\. It was retried for 600 s: raise the option "
        r"retryTimeout for longer outages\."
    )
    with pytest.raises(ServiceUnavailableError, match=said):
        wait_out(service_of(time, 1e9, call_seconds), RULE, clock=time.clock, sleep=time.sleep, uniform=lambda: 0.5)
    assert 700.0 <= time.now <= 700.0 + call_seconds


def test_an_outage_is_warned_of_after_some_seconds_and_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    with pytest.raises(ServiceUnavailableError):
        wait_out(service_of(time, 1e9), RULE, clock=time.clock, sleep=time.sleep, uniform=lambda: 0.5)
    assert 10 <= len(caplog.messages) <= 11
    assert all(line.startswith("[RETRYING] ") for line in caplog.messages)


@pytest.mark.parametrize(
    "error", [OptionError("X", "x"), SpoolFullError("X", "x"), AccessDeniedError("X", "x")], ids=str
)
def test_what_is_no_outage_of_a_service_is_raised_as_it_is(error: ConnectorError) -> None:
    with pytest.raises(type(error)) as caught:
        Outage(RULE).next_delay_seconds(error)
    assert caught.value is error


def test_a_wait_for_a_service_ends_at_once_when_it_is_stopped() -> None:
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(ServiceUnavailableError) as caught:
        wait_out(service_of(Time(), 1e9), RULE, sleep=stopped.wait)
    assert caught.value.action == "Check the network", "it was not given up"


def test_where_attempts_are_counted_time_does_not_matter_and_progress_begins_again() -> None:
    time, error = Time(), ServiceUnavailableError("GONE_FOR_NOW", "No answer")
    outage = Outage(OutageRule(600.0, "numRetries", attempts=2), lambda: 0.5, time.clock)
    for progress in (False, False, True, False, False):
        time.sleep(10_000)
        outage.next_delay_seconds(error, progress=progress)
    with pytest.raises(ServiceUnavailableError, match="retried 2 times: raise the option numRetries"):
        outage.next_delay_seconds(error)


def test_a_wait_says_what_it_waits_for_after_some_seconds_and_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    now, said = 0.0, []
    log = WaitLog(lambda: "a stream to open", lambda: now)
    for second in range(200):
        now = float(second)
        log.tick()
        said += [second] * len(caplog.messages)
        caplog.clear()
    assert said == [15, 75, 135, 195]
    log.restart()
    assert log.seconds == 0
    now += 15
    log.tick()
    assert caplog.messages == ["[WAITING] A call has waited 15 s for a stream to open."]
