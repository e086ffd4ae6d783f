"""Aggregates of the KPL, made by protobuf from the published format and read by our own reader."""

from __future__ import annotations

import hashlib
import itertools
import time
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.kinesis.aggregates import MAGIC, AggregateBuilder
from connectors.kinesis.client.client import Record
from connectors.kinesis.schema import ARROW_SCHEMA
from connectors.kinesis.source.records import (
    MAX_BYTES,
    MAX_ROWS,
    aggregates,
    batches,
)
from tests.support.kinesis_rig import kpl_aggregate
from tests.support.protobuf_generated import varint


def read(records: list[Record], *, deaggregate: bool = True) -> list[pa.RecordBatch]:
    return list(batches(records, aggregates(records) if deaggregate else None, "orders", "shard"))


def rows_of(yielded: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in yielded for row in batch.to_pylist()]


def test_rows_of_aggregates_and_others_stand_in_order() -> None:
    users = [(b"one", "key-a", None), (b"", "key-b", "12345"), (b"\xff" * 300, "key-a", "0")]
    builder = AggregateBuilder(1 << 20)
    assert all(builder.add(*user) for user in users)
    data = builder.data()
    broken = data[:-1] + bytes([data[-1] ^ 1])
    records = [Record("1", b"plain", "k", 1.5), Record("2", data, "a", 1_700_000_000.123), Record("3", broken, "b")]
    table = rows_of(read(records))
    assert [(row["sequenceNumber"], row["subSequenceNumber"]) for row in table] == [
        ("1", 0),
        ("2", 0),
        ("2", 1),
        ("2", 2),
        ("3", 0),
    ]
    assert [(row["data"], row["partitionKey"], row["explicitHashKey"]) for row in table] == [
        (b"plain", "k", None),
        *users,
        (broken, "b", None),
    ]
    assert table[1]["approximateArrivalTimestamp"].timestamp() == pytest.approx(1_700_000_000.123, abs=1e-6)
    assert table[4]["approximateArrivalTimestamp"] is None
    (plain,) = read(records, deaggregate=False)
    assert plain.schema == ARROW_SCHEMA
    assert plain.column("data").to_pylist() == [b"plain", data, broken]


# The size of batches


def assert_bounded(yielded: list[pa.RecordBatch]) -> None:
    for batch in yielded:
        assert 1 <= len(batch) <= MAX_ROWS
        assert batch.nbytes <= MAX_BYTES or len(batch) == 1


def test_an_aggregate_of_very_many_records_becomes_batches_of_bounded_rows() -> None:
    data = [b"%d" % number for number in range(3 * MAX_ROWS + 5)]
    yielded = read([Record("1", b"before", "k"), Record("2", kpl_aggregate(data), "k"), Record("3", b"after", "k")])
    assert_bounded(yielded)
    assert len(yielded) == 4
    rows = rows_of(yielded)
    assert [row["data"] for row in rows] == [b"before", *data, b"after"]
    assert [row["subSequenceNumber"] for row in rows] == [0, *range(len(data)), 0]
    assert [row["sequenceNumber"] for row in rows] == ["1", *["2"] * len(data), "3"]


def field(number: int, data: bytes) -> bytes:
    """A field of bytes, as protobuf writes it."""
    return varint(number << 3 | 2) + varint(len(data)) + data


@pytest.mark.parametrize(
    ("head", "unit", "tail", "rows"),
    [
        (field(1, b"k"), field(3, b"\x08\0\x1a\0"), b"", 174_762),
        (field(1, "\U0001f600".encode() * 256), field(3, b"\x08\0\x1a\0"), b"", 174_591),
        (field(1, b"k") + field(2, b"9" * 38), field(3, b"\x08\0\x10\0\x1a\0"), b"", 131_066),
        (field(1, b"k"), b"\x28\0", field(3, b"\x08\0\x1a\0"), 1),  # unknown fields
        (b"", field(1, b"k"), field(3, b"\x08\0\x1a\0"), 1),  # keys that no record names
        (field(1, b"k"), field(3, b"\x08\0\x1a\0"), field(3, b"\x08\1\x1a\0"), None),  # the last names no key
        (field(1, b"k"), field(3, b"\x08\0\x1a\0"), b"\x1a\x05\x08", None),  # the last is cut off
    ],
)
def test_a_hostile_megabyte_costs_seconds_and_little_memory(
    head: bytes, unit: bytes, tail: bytes, rows: int | None
) -> None:
    """The bound on the security page: 30 bytes of memory for each byte of an aggregate, beside one batch."""
    body = head + unit * (((1 << 20) - len(head) - len(tail)) // len(unit)) + tail
    data = MAGIC + body + hashlib.md5(body).digest()
    began = time.process_time()
    tracemalloc.start()
    try:
        count = largest = 0
        records = [Record("1" * 56, data, "k", 1.0)]
        for batch in batches(records, aggregates(records), "orders", "shard"):
            assert_bounded([batch])
            count, largest = count + len(batch), max(largest, batch.nbytes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == (1 if rows is None else rows)
    assert peak < 30 * len(data) + (8 << 20), peak  # Arrow's own bytes are at most `MAX_BYTES`, and not counted here
    assert time.process_time() - began < 20  # measured without tracemalloc: 0.4 to 1.4


def test_aggregates_within_an_aggregate_are_not_opened() -> None:
    data = kpl_aggregate([b"innermost"])
    for _ in range(100):
        data = kpl_aggregate([data])
    (row,) = rows_of(read([Record("1", data, "k")]))
    assert row["data"].startswith(MAGIC)
    assert row["subSequenceNumber"] == 0


@pytest.mark.parametrize("size", [1, 9_000, 2 * 1024 * 1024, MAX_BYTES + 1])
@pytest.mark.parametrize("aggregated", [True, False])
def test_large_rows_become_batches_of_bounded_bytes(size: int, aggregated: bool) -> None:
    """One that is larger than the bound stands alone."""
    data = [b"x" * size] * (40 << 20 >> (size.bit_length() - 1) if size > 1 else 25_000)
    if aggregated:
        yielded = read([Record("1" * 56, kpl_aggregate(data, "k" * 256), "k")])
    else:
        yielded = read([Record(str(number), value, "k" * 256) for number, value in enumerate(data)])
    assert_bounded(yielded)
    assert [row for batch in yielded for row in batch["data"].to_pylist()] == data
    # They are not cut finer than the bounds ask.
    assert all(
        len(one) + len(two) > MAX_ROWS or one.nbytes + two.nbytes > MAX_BYTES * 0.9
        for one, two in itertools.pairwise(yielded)
    )


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3), max_size=6), st.integers(1, 6))
def test_rows_are_the_same_however_records_are_grouped_into_answers(counts: list[int], cut: int) -> None:
    records = [
        Record(str(number), kpl_aggregate([b"%d" % row for row in range(count * 4000)]) if count else b"plain", "k")
        for number, count in enumerate(counts)
    ]
    whole = pa.Table.from_batches(read(records), ARROW_SCHEMA)
    parts = [batch for part in (records[:cut], records[cut:]) for batch in read(part)]
    assert_bounded(parts)
    assert pa.Table.from_batches(parts, ARROW_SCHEMA).equals(whole)
    assert whole.num_rows == sum(count * 4000 or 1 for count in counts)
