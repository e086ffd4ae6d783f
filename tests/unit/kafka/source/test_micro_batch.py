"""Where a stream's batches end, and how old an answer about the newest offsets may be.

Batches: when brokers answer with offsets that are too low, on a lookup that follows a script. Answers: new for a query
with a trigger interval, quick for an idle one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.kafka.client.admin import RetryingLookup
from connectors.kafka.offsets import Offsets, TopicPartition, end_offset, read_offset
from connectors.kafka.options.source import parse_read_options
from connectors.kafka.source.micro_batch import KafkaStream, LatestWatch
from connectors.kafka.source.planning import OffsetRange
from tests.support.waiting import wait_for

PATIENCE = 30.0
WHERE = TopicPartition("t", 0)
START = end_offset({WHERE: 100})


class Script:
    """Answers about the latest offsets, one after the other; the last one stays."""

    def __init__(self, latest: Sequence[Offsets]) -> None:
        self.left = list(latest)
        self.asked = 0
        self.topic_id = "first"

    def ask(self, question: Callable[[Any], Any]) -> Any:
        return question(self)

    def partitions(self, _strategy: object) -> frozenset[TopicPartition]:
        return frozenset(self.left[0])

    def latest(self, partitions: frozenset[TopicPartition]) -> Offsets:
        self.asked += 1
        found = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return {each: offset for each, offset in found.items() if each in partitions}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return dict.fromkeys(topics, self.topic_id)

    def pause(self) -> None:
        """Nothing to wait for."""

    def stop(self) -> None:
        """Nothing to end."""


def stream_of(
    latest: Sequence[int | None],
    *,
    available_now: bool = False,
    clock: Callable[[], float] = time.monotonic,
    **options: str,
) -> tuple[KafkaStream, Script]:
    """A stream, and the script of its answers; None is a topic that is gone."""
    raw = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribePattern": "t.*", **options}
    script = Script([{} if each is None else {WHERE: each} for each in latest])
    stream = KafkaStream(parse_read_options(raw, {}, streaming=True), clock, cast("RetryingLookup", script))
    if available_now:
        stream.prepare_for_available_now()
    return stream, script


@pytest.mark.parametrize(("second", "is_reported"), [(110, True), (109, True), (90, False), (100, False)])
def test_a_topic_that_was_recreated_begins_another_run_and_is_a_loss_where_offsets_do_not_show_it(
    caplog: pytest.LogCaptureFixture, second: int, is_reported: bool
) -> None:
    stream, script = stream_of([109], failOnDataLoss="false")
    first_run = stream.run
    assert read_offset(stream.latest_offset(START, everything=True)) == {WHERE: 109}
    assert stream.run == first_run
    script.topic_id, script.left = "second", [{WHERE: second}]
    start = end_offset({WHERE: 109 if second > 109 else 100})
    stream.latest_offset(start, everything=True)
    assert ("TOPIC_RECREATED" in caplog.text) == is_reported
    assert (stream.run == first_run) == (second == 100), "what has nothing new is not read"


both_triggers = pytest.mark.parametrize("available_now", [False, True])


@both_triggers
@pytest.mark.parametrize("fail", ["true", "false"])
def test_an_end_that_lies_before_the_start_is_asked_for_again(
    available_now: bool, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream, _ = stream_of([90, 120], available_now=available_now, failOnDataLoss=fail)
    end = stream.latest_offset(START, everything=False)
    assert end == end_offset({WHERE: 120})
    assert stream.partitions(START, end) == [OffsetRange("t", 0, 100, 120)]
    assert "KAFKA_OFFSETS_RETRIED" in caplog.text
    stream.stop()


@both_triggers
@pytest.mark.parametrize(("retries", "asked"), [({}, 3), ({"fetchOffset.numRetries": "5"}, 5)])
def test_an_end_that_stays_before_the_start_is_believed_after_so_many_answers(
    available_now: bool, retries: dict[str, str], asked: int
) -> None:
    stream, script = stream_of([90], available_now=available_now, **retries)
    end = stream.latest_offset(START, everything=False)
    assert (end, script.asked) == (end_offset({WHERE: 90}), asked)
    with pytest.raises(ConnectorError, match=r"PARTITION_OFFSET_CHANGED.*from 100 to 90"):
        stream.partitions(START, end)
    stream.stop()


def test_the_check_of_a_bounded_run_asks_again_before_it_believes_that_offsets_are_gone() -> None:
    stream, _ = stream_of([120, 90, 90, 120], available_now=True)
    end = stream.latest_offset(START, everything=False)
    assert stream.partitions(START, end) == [OffsetRange("t", 0, 100, 120)]
    stream.stop()


def test_the_check_of_a_bounded_run_fails_when_offsets_stay_gone() -> None:
    stream, script = stream_of([120, 90], available_now=True)
    end = stream.latest_offset(START, everything=False)
    with pytest.raises(ConnectorError, match="THAN_LATEST_WITH_TRIGGER_AVAILABLENOW"):
        stream.partitions(START, end)
    assert script.asked == 1 + 3
    stream.stop()


@both_triggers
def test_17_no_empty_offset_is_logged_when_the_last_topic_goes_while_its_end_is_asked_for_again(
    available_now: bool,
) -> None:
    stream, _ = stream_of([90, None], available_now=available_now)
    assert stream.latest_offset(START, everything=False) == START
    stream.stop()


def test_08_a_batch_waits_for_the_minimum_or_for_the_delay() -> None:
    now = 0.0
    limits = {"minOffsetsPerTrigger": "15", "maxTriggerDelay": "5s"}
    stream, script = stream_of([], clock=lambda: now, **limits)

    def next_end(time: float, start: int, latest: int) -> int:
        nonlocal now
        now, script.left = time, [{WHERE: latest}]  # so long after the last call that it waits for its own answer
        end = stream.latest_offset(end_offset({WHERE: start}), everything=False)
        return read_offset(end)[WHERE]

    assert next_end(0, 100, 101) == 101, "the first never waits"
    assert next_end(4.5, 101, 115) == 101
    assert next_end(4.9, 101, 116) == 116
    assert next_end(9.5, 116, 117) == 116, "the delay counts from the last batch"
    assert next_end(9.9, 116, 117) == 117
    stream.stop()


class Broker:
    """A partition that grows, whose broker may fail or stall; by its clock a query is idle until `next_trigger`."""

    def __init__(self) -> None:
        self.end = 0
        self.error: Exception | None = None
        self.now = 0.0
        self.asked = 0
        self.stalls = False
        self.answers = threading.Semaphore(0)
        """One for each question that is answered while it stalls."""

    def ask(self, _look: bool) -> Offsets:
        end, error = self.end, self.error
        self.asked += 1
        assert not self.stalls or self.answers.acquire(timeout=PATIENCE)
        if error is not None:
            raise error
        return {WHERE: end}

    def next_trigger(self) -> None:
        self.now += 1.0

    @contextlib.contextmanager
    def watched(self, long_patience: float = PATIENCE, quiet_pause: float = 0.0) -> Iterator[LatestWatch]:
        watch = LatestWatch(self.ask, lambda: self.now, long_patience=long_patience, quiet_pause=quiet_pause)
        try:
            yield watch
        finally:
            self.answers.release(10)
            watch.stop()


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_a_query_with_a_trigger_interval_sees_what_came_before_the_trigger(broker: Broker) -> None:
    with broker.watched() as latest:
        for end in (1, 2, 3):
            broker.end = end
            assert latest.remembered() == {WHERE: end}
            broker.next_trigger()


def test_an_idle_query_does_not_wait_for_the_broker(broker: Broker) -> None:
    with broker.watched() as latest:
        assert latest.remembered() == {WHERE: 0}
        broker.end = 1
        broker.stalls = True
        assert {latest.remembered()[WHERE] for _ in range(10)} == {0}


def test_a_call_pauses_only_when_nothing_was_new_for_a_second(broker: Broker) -> None:
    with broker.watched(quiet_pause=PATIENCE) as latest, ThreadPoolExecutor(1) as pool:
        for second in range(3):
            broker.end += 1
            wait_for(lambda: latest.remembered() == {WHERE: broker.end})
            for tenth in range(1, 11, 2):
                broker.now = second + tenth / 10
                latest.remembered()
            broker.now = second + 1.0
        broker.now = 3.1
        paused = pool.submit(latest.remembered)
        with pytest.raises(TimeoutError):
            paused.result(0.1)
        latest.stop()
        assert paused.result(PATIENCE) == {WHERE: 3}


def fail_after_the_call(broker: Broker, latest: LatestWatch) -> None:
    """Have a question answered by an error after its call has ended; the question of the next call is pending."""
    broker.stalls, broker.error = True, ServiceUnavailableError("KAFKA_UNAVAILABLE", "Kafka does not respond")
    assert latest.remembered() == {WHERE: 0}
    wait_for(lambda: broker.asked == 2)
    broker.error, broker.end = None, 7
    assert latest.remembered() == {WHERE: 0}
    broker.answers.release()
    wait_for(lambda: broker.asked == 3)  # so the error has come
    broker.next_trigger()


def test_an_error_of_the_last_interval_does_not_stop_a_trigger_that_gets_its_answer(broker: Broker) -> None:
    with broker.watched() as latest:
        assert latest.remembered() == {WHERE: 0}
        fail_after_the_call(broker, latest)
        broker.answers.release(2)
        assert latest.remembered() == {WHERE: 7}


def test_an_error_that_came_late_is_raised_by_a_trigger_that_gets_no_answer_either(broker: Broker) -> None:
    with broker.watched(long_patience=0.05) as latest:
        assert latest.fresh() == {WHERE: 0}
        fail_after_the_call(broker, latest)
        with pytest.raises(ServiceUnavailableError):
            latest.remembered()
