"""The fast way to read gives what the plain one gives: on memory of our own, and on records of a mock cluster."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from connectors.kafka.consume import ReadSettings, close_readers, read_range
from connectors.kafka.native import _addresses, _binary, native_reason
from connectors.kafka.ranges import OffsetRange
from connectors.kafka.settings import ClientSettings
from connectors.testing.kafka import MockKafka

VALUES = st.lists(
    st.one_of(st.none(), st.binary(max_size=14), st.binary(min_size=11, max_size=60)), min_size=1, max_size=40
)


def test_the_fast_way_can_be_had_here() -> None:
    assert native_reason() == ""


@given(VALUES)
def test_bytes_are_gathered_from_anywhere(values: list[bytes | None]) -> None:
    assert _binary(*_addresses(values)).to_pylist() == values


def test_bytes_far_apart_are_gathered() -> None:
    # Two mappings with more than 4 GB between them, most of which is never touched.
    block = np.zeros(5 << 30, np.uint8)
    data = b"0123456789abcdef"
    places = [0, 3 << 29, len(block) - len(data)]
    for place in places:
        block[place : place + len(data)] = np.frombuffer(data, np.uint8)
    addresses = np.array([block.ctypes.data + place for place in places], np.uint64)
    assert _binary(addresses, np.full(3, len(data), np.int64)).to_pylist() == [data] * 3


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with MockKafka() as made:
        made.create_topic("t", 1)
        yield made
        close_readers()


def rows(mock: MockKafka, part: OffsetRange, *, native: bool) -> list[dict[str, Any]]:
    settings = ReadSettings(
        client=ClientSettings((("bootstrap.servers", mock.endpoint), ("isolation.level", "read_uncommitted"))),
        group="check",
        headers=False,
        fail_on_data_loss=True,
        poll_timeout=10.0,
        native=native,
    )
    return [row for batch in read_range(part, settings) for row in batch.to_pylist()]


def test_both_ways_give_the_same_rows(mock: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    values = [None, b"", b"short", b"x" * 12, b"y" * 13, bytes(range(256)) * 4]
    for number in range(3000):
        value, key = values[number % 6], values[number // 6 % 6]
        producer.produce("t", value, key, 0, timestamp=1_000_000 + number)
    assert producer.flush(10) == 0
    for part in (OffsetRange("t", 0, 0, 3000), OffsetRange("t", 0, 7, 1234), OffsetRange("t", 0, -2, -1)):
        assert rows(mock, part, native=True) == rows(mock, part, native=False)


def test_ranges_one_after_the_other_go_on_where_the_last_ended(mock: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for number in range(1000):
        producer.produce("t", b"%d" % number, partition=0)
    producer.flush(10)
    found = [
        row for start in range(0, 1000, 100) for row in rows(mock, OffsetRange("t", 0, start, start + 100), native=True)
    ]
    assert [row["value"] for row in found] == [b"%d" % number for number in range(1000)]


def test_an_abandoned_read_gives_its_records_back(mock: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for number in range(25_000):
        producer.produce("t", b"%d" % number, partition=0)
    producer.flush(10)
    settings = ReadSettings(ClientSettings((("bootstrap.servers", mock.endpoint),)), "check", False, True, 10.0, True)
    reading = read_range(OffsetRange("t", 0, 0, 25_000), settings)
    assert next(reading).num_rows > 0
    reading.close()  # hangs if the client still misses records
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    assert len(rows(mock, OffsetRange("t", 0, 24_000, 25_000), native=True)) == 1000
