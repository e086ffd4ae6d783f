"""Where a stream's batches end when brokers answer with offsets that are too low: on a lookup that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from connectors.core.errors import ConnectorError
from connectors.kafka.client.admin import RetryingLookup
from connectors.kafka.offsets import Offsets, TopicPartition, end_offset
from connectors.kafka.options.source import parse_read_options
from connectors.kafka.source.micro_batch import KafkaStream
from connectors.kafka.source.splits import OffsetRange

WHERE = TopicPartition("t", 0)
START = end_offset({WHERE: 100})


class Script:
    """Answers about the latest offsets, one after the other; the last one stays."""

    def __init__(self, latest: Sequence[Offsets]) -> None:
        self.left = list(latest)
        self.asked = 0

    def ask(self, question: Callable[[Any], Any]) -> Any:
        return question(self)

    def partitions(self, _strategy: object) -> frozenset[TopicPartition]:
        return frozenset(self.left[0])

    def latest(self, partitions: frozenset[TopicPartition]) -> Offsets:
        self.asked += 1
        found = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return {each: offset for each, offset in found.items() if each in partitions}

    def pause(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to close."""


def stream_of(latest: Sequence[int | None], *, available_now: bool, **options: str) -> tuple[KafkaStream, Script]:
    """A stream, and the script of its answers; None is a topic that is gone."""
    raw = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribePattern": "t.*", **options}
    stream = KafkaStream(parse_read_options(raw, {}, streaming=True))
    script = Script([{} if each is None else {WHERE: each} for each in latest])
    stream._lookup = cast("RetryingLookup", script)
    if available_now:
        stream.prepare_for_available_now()
    return stream, script


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
