"""Columns that the Kafka source makes have the types that Spark wants."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.schema import SCHEMA_WITH_HEADERS, header_column, time_column
from connectors.kafka.source.consumer_pool import CONSUMERS
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import read_range
from connectors.kafka.source.records import PlainRecords
from connectors.testing.kafka.mock import MockKafka

LARGEST_MS = (2**63 - 1) // 1000
NANOSECONDS = 1_700_000_000_123_456_789


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with MockKafka() as made:
        made.create_topic("clocks", 3)
        yield made
        CONSUMERS.close()


def send(mock: MockKafka, *times: int) -> None:
    """Write records with these times to partition 2."""
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for time in times:
        producer.produce("clocks", b"v", partition=2, timestamp=time)
    assert producer.flush(10) == 0


def read(mock: MockKafka, start: int, end: int, *, headers: bool = False) -> pa.Table:
    """Read offsets of partition 2, as a task does."""
    client = ClientSettings((("bootstrap.servers", mock.endpoint), ("isolation.level", "read_uncommitted")))
    settings = KafkaReadOptions(client=client, group="check", include_headers=headers, poll_timeout_ms=10_000)
    return pa.Table.from_batches(read_range(OffsetRange("clocks", 2, start, end), settings))


def test_no_records_are_an_empty_batch() -> None:
    assert PlainRecords.batch([PlainRecords([])], TopicPartition("t", 0), headers=True).schema == SCHEMA_WITH_HEADERS


def test_27_headers_keep_order_and_duplicates_and_are_null_where_there_are_none() -> None:
    rows = [None, [("b", b"1"), ("a", None), ("b", b"")], []]
    assert header_column(rows).to_pylist() == [
        None,
        [{"key": "b", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b""}],
        None,
    ]


def test_times_are_microseconds_and_none_passes_through_as_minus_one_millisecond() -> None:
    column = time_column(np.array([-1, 0, 1_700_000_000_123]))
    assert column.cast(pa.int64()).to_pylist() == [-1000, 0, 1_700_000_000_123_000]


def test_25_a_time_that_is_no_number_of_milliseconds_is_null() -> None:
    column = time_column(np.array([5, 2**62, -(2**62), LARGEST_MS, LARGEST_MS + 1, -LARGEST_MS - 1]))
    assert column.cast(pa.int64()).to_pylist() == [5000, None, None, LARGEST_MS * 1000, None, None]


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.usefixtures("native")
def test_25_records_whose_times_are_nanoseconds_are_rows_without_a_time_and_one_warning_counts_them(
    mock: MockKafka, headers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    send(mock, 1_700_000_000_123, NANOSECONDS, 1_700_000_000_124, NANOSECONDS)
    for _ in range(2):  # a batch that is repeated has the same rows
        rows = read(mock, 0, 4, headers=headers)
        assert rows["offset"].to_pylist() == [0, 1, 2, 3]
        assert rows["timestamp"].cast(pa.int64()).to_pylist() == [
            1_700_000_000_123_000,
            None,
            1_700_000_000_124_000,
            None,
        ]
    said = [record.getMessage() for record in caplog.records]
    codes = [text for text in said if "KAFKA_MALFORMED_RECORD_TIMESTAMP" in text]
    assert len(codes) == 2, "one a range"
    assert re.search(r"\] 2 records of .*clocks-2.* NULL .*first is at offset 1\..*nanoseconds", codes[0])


@pytest.mark.usefixtures("native")
def test_25_the_largest_time_that_fits_is_read(mock: MockKafka) -> None:
    send(mock, LARGEST_MS, LARGEST_MS + 1)
    assert read(mock, 0, 2)["timestamp"].cast(pa.int64()).to_pylist() == [LARGEST_MS * 1000, None]
