"""How old an answer about the newest offsets may be: new for a query with a trigger interval, quick for an idle one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from connectors.core.errors import ServiceUnavailableError
from connectors.kafka.offsets import Offsets, TopicPartition
from connectors.kafka.source import latest_offsets as watch
from connectors.kafka.source.latest_offsets import LatestWatch

PATIENCE = 30.0
WHERE = TopicPartition("t", 0)


class Broker:
    """A partition that grows, whose broker takes longer than an idle query waits; it may fail or stall."""

    def __init__(self) -> None:
        self.end = 0
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()

    def ask(self, _look: bool) -> Offsets:
        end, error = self.end, self.error
        time.sleep(5 * watch._PATIENCE_SECONDS)
        assert self.answers.wait(PATIENCE)
        if error is not None:
            raise error
        return {WHERE: end}


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def latest(broker: Broker) -> Iterator[LatestWatch]:
    made = LatestWatch(broker.ask)
    yield made
    broker.answers.set()
    made.stop()


def next_trigger() -> None:
    time.sleep(watch._IDLE_SECONDS + 0.05)


def test_a_query_with_a_trigger_interval_sees_what_came_before_the_trigger(broker: Broker, latest: LatestWatch) -> None:
    for end in (1, 2, 3):
        broker.end = end
        assert latest.remembered() == {WHERE: end}
        next_trigger()


def test_an_idle_query_does_not_wait_for_the_broker(broker: Broker, latest: LatestWatch) -> None:
    assert latest.remembered() == {WHERE: 0}
    broker.end = 1
    broker.answers.clear()
    assert {latest.remembered()[WHERE] for _ in range(10)} == {0}


def test_an_error_of_the_last_interval_does_not_stop_a_trigger_that_gets_its_answer(
    broker: Broker, latest: LatestWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert latest.remembered() == {WHERE: 0}
    _fail_after_the_call(broker, latest, monkeypatch)
    broker.error, broker.end = None, 7
    assert latest.remembered() == {WHERE: 7}


def test_an_error_that_came_late_is_raised_by_a_trigger_that_gets_no_answer_either(
    broker: Broker, latest: LatestWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert latest.remembered() == {WHERE: 0}
    _fail_after_the_call(broker, latest, monkeypatch)
    broker.answers.clear()
    monkeypatch.setattr(watch, "_LONG_PATIENCE_SECONDS", 0.05)
    with pytest.raises(ServiceUnavailableError):
        latest.remembered()


def _fail_after_the_call(broker: Broker, latest: LatestWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trigger whose question is answered later than it waits, and by an error."""
    next_trigger()
    broker.error = ServiceUnavailableError("KAFKA_UNAVAILABLE", "Kafka does not answer")
    broker.answers.clear()
    with monkeypatch.context() as within:
        within.setattr(watch, "_LONG_PATIENCE_SECONDS", 0.05)
        assert latest.remembered() == {WHERE: 0}
    broker.answers.set()
    end = time.monotonic() + PATIENCE
    while latest._error is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    next_trigger()
