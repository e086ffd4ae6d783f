"""Questions for partitions, on a mock cluster: which topics a pattern means, and how an error is waited out."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import ServiceUnavailableError, SourceGoneError
from connectors.kafka.client import KafkaLookup
from connectors.kafka.client_errors import gone
from connectors.kafka.lookup import PatientLookup
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options import parse_read_options
from connectors.kafka.strategy import Subscribe, SubscribePattern
from connectors.testing.kafka import MockKafka

LEADER_NOT_AVAILABLE = 5


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with MockKafka() as made:
        for topic in ("t", "__consumer_offsets", "__transaction_state"):
            made.create_topic(topic, 1)
        yield made


def lookup(mock: MockKafka, seconds: float = 30.0) -> KafkaLookup:
    options = parse_read_options({"kafka.bootstrap.servers": mock.endpoint, "subscribe": "t"}, {}, streaming=True)
    return KafkaLookup(options.client, call_seconds=seconds)


def test_a_pattern_leaves_internal_topics_out_and_their_names_mean_them(mock: MockKafka) -> None:
    with lookup(mock) as asked:
        assert {each.topic for each in asked.partitions(SubscribePattern(".*"))} == {"t"}
        named = asked.partitions(Subscribe(("__consumer_offsets",)))
        assert {each.topic for each in named} == {"__consumer_offsets"}


def test_an_error_that_may_pass_is_asked_about_again_with_pauses(
    mock: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lookup(mock, seconds=1.0) as asked:
        asked.partitions(Subscribe(("t",)))
        calls = []
        ask = asked._list_topics
        monkeypatch.setattr(asked, "_list_topics", lambda name: calls.append(name) or ask(name))
        mock.fail("Metadata", [LEADER_NOT_AVAILABLE] * 5000)
        with pytest.raises(ServiceUnavailableError):
            asked.partitions(Subscribe(("t",)))
        assert 2 <= len(calls) <= 12


@pytest.mark.parametrize(("answers", "found"), [(1, True), (20, False)])
def test_an_unknown_topic_is_asked_for_as_often_as_the_option_says(mock: MockKafka, answers: int, found: bool) -> None:
    given = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "10"}
    raw = {"kafka.bootstrap.servers": mock.endpoint, "subscribe": "t", **given}
    patient = PatientLookup(parse_read_options(raw, {}, streaming=True))
    attempts = []

    def question(asked: KafkaLookup) -> int:
        attempts.append(asked)
        if len(attempts) <= answers:
            raise gone("t")
        return len(asked.partitions(Subscribe(("t",))))

    if found:
        assert patient.ask(question) == 1
    else:
        with pytest.raises(SourceGoneError):
            patient.ask(question)
    assert len(attempts) == 2
    patient.close()


def threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


@pytest.fixture
def without_collection() -> Iterator[None]:
    """What the garbage collector would find stays: a source process that asks little is not collected for hours."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
def test_a_closed_lookup_leaves_no_thread_and_no_connection(mock: MockKafka) -> None:
    before = threads()
    with lookup(mock) as asked:
        asked.latest([TopicPartition("t", 0)])
        assert threads() > before
    assert threads() == before
