"""Columns that the Kafka source makes have the types that Spark wants."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from connectors.core.arrow import arrow_schema
from connectors.core.errors import ConnectorError
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.schema import source_schema
from connectors.kafka.source.consumer_pool import CONSUMERS
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import ReadSettings, read_range
from connectors.kafka.source.records import SCHEMA, SCHEMA_WITH_HEADERS, PlainRecords, header_column, time_column
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
    settings = ReadSettings(client, "check", headers, True, 10.0)
    return pa.Table.from_batches(read_range(OffsetRange("clocks", 2, start, end), settings))


def test_27_columns_have_the_types_of_the_schema() -> None:
    assert arrow_schema(source_schema(headers=False)) == SCHEMA
    assert arrow_schema(source_schema(headers=True)) == SCHEMA_WITH_HEADERS


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
    column = time_column(np.array([-1, 0, 1_700_000_000_123]), np.arange(3), TopicPartition("t", 0))
    assert column.cast(pa.int64()).to_pylist() == [-1000, 0, 1_700_000_000_123_000]


def test_25_a_time_in_nanoseconds_is_an_error_that_names_the_record() -> None:
    with pytest.raises(ConnectorError, match=r"\[KAFKA_MALFORMED_RECORD_TIMESTAMP\].*offset 8 .*\(t-3\).*nanoseconds"):
        time_column(np.array([5, 2**62]), np.array([7, 8]), TopicPartition("t", 3))


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.usefixtures("native")
def test_25_a_read_of_a_record_whose_time_is_nanoseconds_fails_and_names_the_record(
    mock: MockKafka, headers: bool
) -> None:
    send(mock, 1_700_000_000_123, 1_700_000_000_124, NANOSECONDS, 1_700_000_000_125)
    with pytest.raises(ConnectorError) as caught:
        read(mock, 0, 4, headers=headers)
    assert caught.value.code == "KAFKA_MALFORMED_RECORD_TIMESTAMP"
    told = rf"offset 2 has the timestamp {NANOSECONDS}, .*\(clocks-2\)\..*microseconds or nanoseconds"
    assert re.search(told, str(caught.value))


@pytest.mark.usefixtures("native")
def test_25_the_largest_time_that_fits_is_read_and_the_next_one_is_an_error(mock: MockKafka) -> None:
    send(mock, LARGEST_MS, LARGEST_MS + 1)
    assert read(mock, 0, 1)["timestamp"].cast(pa.int64()).to_pylist() == [LARGEST_MS * 1000]
    with pytest.raises(ConnectorError, match=rf"KAFKA_MALFORMED_RECORD_TIMESTAMP.*offset 1 .* {LARGEST_MS + 1},"):
        read(mock, 1, 2)
