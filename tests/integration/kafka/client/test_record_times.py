"""When the first unread records were written, on a real broker; numbered as in docs/explanation/kafka.md."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import pytest

from connectors.kafka.client.record_times import RecordTimes, TimeReader
from connectors.kafka.lag import source_lag
from connectors.kafka.offsets import Offsets, TopicPartition
from connectors.kafka.options.source import parse_read_options
from connectors.kafka.source.micro_batch import KafkaStream
from tests.support.kafka_busy import busy_stream
from tests.support.kafka_rig import PATIENCE, KafkaRig


def test_29_the_latest_offset_says_when_the_first_unread_record_of_each_partition_was_written(kafka: KafkaRig) -> None:
    """The lag in time began near zero with every start of the query: 1.7 s at 13,600 unread records."""
    topic = kafka.topic(3)
    for number in range(6):
        kafka.send(topic, [number], timestamp=1_000_000 + number)
    kafka.send(topic, ["x" * 300_000] * 6, partition=1, timestamp=2_000_000)
    options = kafka.options(topic, maxOffsetsPerTrigger="4", startingOffsets="earliest")
    with kafka.query(options) as query:
        for _ in range(2):
            batch = query.run_batch()
            reported = json.loads(str(query.reader.report_latest_offset()))
            lag = source_lag(batch.end, reported)
            assert lag is not None
            end = batch.end[topic]["0"]
            assert lag[f"{topic}-0"] == (end, 6, 1_000_000 + end)
            assert lag[f"{topic}-1"][2] == 2_000_000
            assert lag[f"{topic}-2"] == (0, 0, None), "nothing is unread"
            query.restart()
        assert "/times" not in json.dumps(batch.end), "the checkpoint has positions alone"


def test_29_unread_records_whose_times_do_not_come_hold_up_no_batch(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(6))
    raw = kafka.options(topic, maxOffsetsPerTrigger="2", startingOffsets="earliest")
    let_go = threading.Event()

    def hang(_: Offsets) -> Offsets:
        let_go.wait(PATIENCE)
        return {}

    stream = KafkaStream(parse_read_options(raw, {}, streaming=True), times=RecordTimes(hang))
    end = stream.latest_offset({"initial": True, "v": 1}, everything=False)
    assert end[topic] == {"0": 2}
    for _ in range(3):
        assert stream.report_latest_offset() == {topic: {"0": 6}, "v": 1}
    let_go.set()
    stream.stop()


def test_29_of_a_backlog_only_the_first_record_of_each_partition_is_polled(kafka: KafkaRig) -> None:
    """A client with a backlog of one partition gives all of a record batch before it gives those of another one."""
    topic = kafka.topic(2)
    for partition in range(2):
        kafka.send(topic, [b"x" * 100] * 30_000, partition=partition, timestamp=1_000_000 + partition)
    reader = TimeReader(parse_read_options(kafka.options(topic), {}, streaming=True).client)
    polls = 0

    def count(_: Any, event: str, called: Any) -> None:
        nonlocal polls
        polls += event == "c_call" and called.__name__ == "poll"

    sys.setprofile(count)
    try:
        times = reader({TopicPartition(topic, partition): 5 for partition in range(2)})
    finally:
        sys.setprofile(None)
        reader.close()
    assert times == {TopicPartition(topic, partition): 1_000_000 + partition for partition in range(2)}
    assert 2 <= polls <= 20


@pytest.mark.parametrize("available_now", [False, True])
def test_29_without_a_limit_there_is_no_lag_however_busy_the_topic_is(kafka: KafkaRig, available_now: bool) -> None:
    topic = kafka.topic(1)
    stream = busy_stream(kafka, topic, startingOffsets="earliest")
    if available_now:
        stream.prepare_for_available_now()
    start: dict[str, Any] = {"initial": True, "v": 1}
    for _ in range(3):
        end = stream.latest_offset(start, everything=False)
        stream.partitions(start, end)
        assert (stream.report_latest_offset() or {})[topic] == end[topic]
        start = end
    stream.stop()
