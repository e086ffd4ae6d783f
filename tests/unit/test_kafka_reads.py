"""The reads of tasks on a mock cluster, in both ways: what they make of answers that are errors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer

from connectors.core.errors import SourceGoneError
from connectors.kafka.consume import ReadSettings, close_readers, read_range
from connectors.kafka.fetched import Event
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.ranges import OffsetRange
from connectors.kafka.read_settings import open_source
from connectors.kafka.settings import ClientSettings
from connectors.kafka.watermarks import watermarks
from connectors.testing.kafka import MockKafka

UNKNOWN_PARTITION, NOT_LEADER = 3, 6


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with MockKafka() as made:
        made.create_topic("t", 1)
        yield made
        close_readers()


def how(mock: MockKafka, *, native: bool, headers: bool = False, poll_timeout: float = 10.0) -> ReadSettings:
    client = ClientSettings((("bootstrap.servers", mock.endpoint), ("isolation.level", "read_uncommitted")))
    return ReadSettings(client, "check", headers, True, poll_timeout, native)


def send(mock: MockKafka, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for value in values:
        producer.produce("t", value, partition=0)
    assert producer.flush(10) == 0


def rows(start: int, end: int, settings: ReadSettings) -> list[dict[str, Any]]:
    return [row for batch in read_range(OffsetRange("t", 0, start, end), settings) for row in batch.to_pylist()]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    "answers",
    [[NOT_LEADER], [0, NOT_LEADER], [NOT_LEADER] * 2, [UNKNOWN_PARTITION], [0, UNKNOWN_PARTITION]],
)
def test_a_lookup_of_which_an_answer_is_an_error_finds_all_rows(
    mock: MockKafka, answers: list[int], native: bool
) -> None:
    send(mock, [b"v"] * 3)
    mock.fail("ListOffsets", answers)
    assert len(rows(-2, -1, how(mock, native=native))) == 3


@pytest.mark.parametrize("native", [True, False])
def test_a_partition_whose_leader_goes_on_to_say_that_there_is_none_is_gone(mock: MockKafka, native: bool) -> None:
    source = open_source(how(mock, native=native))
    mock.fail("ListOffsets", [UNKNOWN_PARTITION] * 5000)
    with pytest.raises(SourceGoneError):
        watermarks(source, TopicPartition("t", 0), 0.3)
    source.close()


@pytest.mark.parametrize("native", [True, False])
def test_a_range_that_ends_in_control_records_ends_though_the_end_was_told_in_the_range_before(
    mock: MockKafka, native: bool
) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint, "transactional.id": "x", "linger.ms": 0})
    producer.init_transactions(10)
    for number in range(10):  # two offsets each: the record, and the end of its transaction
        producer.begin_transaction()
        producer.produce("t", b"%d" % number, partition=0)
        producer.commit_transaction(10)
    settings = how(mock, native=native, poll_timeout=5)
    found = []
    for part in ((0, 6), (6, 16), (16, 20)):
        time.sleep(0.2)  # the kept consumer goes on fetching: the end of the partition comes with an earlier range
        found.append([row["offset"] for row in rows(*part, settings)])
    assert found == [[0, 2, 4], [6, 8, 10, 12, 14], [16, 18]]


@pytest.mark.parametrize("native", [True, False])
def test_an_event_names_its_partition(mock: MockKafka, native: bool) -> None:
    mock.create_topic("other", 3)
    source, where = open_source(how(mock, native=native)), TopicPartition("other", 2)
    source.assign(where, 0)
    events: list[Event] = []
    for _ in range(1000):
        events += source.fetch(10, 0.01).events
        if events:
            break
    source.close()
    assert [(each.name, each.where, each.offset) for each in events] == [("_PARTITION_EOF", where, 0)]
