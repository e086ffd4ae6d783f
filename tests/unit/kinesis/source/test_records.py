"""Aggregates of the KPL, made by protobuf from the published format and read by our own reader."""

from __future__ import annotations

import hashlib
import itertools
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.core.arrow import arrow_schema
from connectors.kinesis.client.responses import Record
from connectors.kinesis.schema import ARROW_SCHEMA, source_schema
from connectors.kinesis.source.records import (
    MAGIC,
    MAX_BYTES,
    MAX_ROWS,
    aggregates,
    batches,
    open_aggregate,
)
from tests.support.kinesis_rig import kpl_aggregate
from tests.support.protobuf_generated import varint
from tools.protos import compile_set

ROOT = Path(__file__).parents[4]
Maker = Callable[..., bytes]


class UserRecord(NamedTuple):
    """A record as its producer gave it to the KPL."""

    data: bytes
    partition_key: str
    explicit_hash_key: str | None


def user_records(data: bytes) -> list[UserRecord] | None:
    """The records of an aggregate; None when it is none."""
    found = open_aggregate(data)
    if found is None:
        return None
    return [UserRecord(*row) for row in zip(*found.rows(0, len(found)), strict=True)]


def read(records: list[Record], *, deaggregate: bool = True) -> list[pa.RecordBatch]:
    return list(batches(records, aggregates(records) if deaggregate else None, "orders", "shard"))


def rows_of(found: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in found for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def message(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The class AggregatedRecord of the published .proto file."""
    target = tmp_path_factory.mktemp("kpl") / "messages.desc"
    compile_set(ROOT / "proto" / "kpl" / "messages.proto", target)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kpl.AggregatedRecord"))


def aggregate(message: Any, records: list[UserRecord]) -> bytes:
    """An aggregate as the KPL makes it."""
    keys = list(dict.fromkeys(each.partition_key for each in records))
    hash_keys = list(dict.fromkeys(each.explicit_hash_key for each in records if each.explicit_hash_key is not None))
    made = message(partition_key_table=keys, explicit_hash_key_table=hash_keys)
    for each in records:
        one = made.records.add(partition_key_index=keys.index(each.partition_key), data=each.data)
        if each.explicit_hash_key is not None:
            one.explicit_hash_key_index = hash_keys.index(each.explicit_hash_key)
        one.tags.add(key="ignored", value="tag")
    body = made.SerializeToString()
    return MAGIC + body + hashlib.md5(body).digest()


ROWS = [UserRecord(b"one", "key-a", None), UserRecord(b"", "key-b", "12345"), UserRecord(b"\xff" * 300, "key-a", "0")]


def test_28_an_aggregate_gives_its_records_in_order(message: Any) -> None:
    assert user_records(aggregate(message, ROWS)) == ROWS


@given(
    st.lists(
        st.builds(
            UserRecord,
            st.binary(max_size=300),
            st.text(min_size=1, max_size=10),
            st.none() | st.integers(0, 2**128 - 1).map(str),
        ),
        max_size=200,
    )
)
def test_whatever_protobuf_writes_is_read(message: Any, records: list[UserRecord]) -> None:
    data = aggregate(message, records)
    assert user_records(data) == (records if len(data) > 20 else None)


@pytest.mark.parametrize(
    ("key", "hash_key", "is_aggregate"),
    [
        ("k" * 256, str(2**128 - 1), True),
        ("\U0001f600" * 256, "0", True),
        ("k" * 257, None, False),
        ("", None, False),
        *(("k", each, False) for each in ("1" * 40, str(2**128), "", "-1", "01", "1 ", "0x1", "\u0661", "9" * 100_000)),
    ],
)
def test_an_aggregate_with_a_key_that_the_service_refuses_is_a_record_like_any_other(
    message: Any, key: str, hash_key: str | None, is_aggregate: bool
) -> None:
    """A key stands there once for all records that name it, and a sink would refuse the rows: 90 kB made 300 MB."""
    records = [UserRecord(b"row", key, hash_key)] * 3
    assert user_records(aggregate(message, records)) == (records if is_aggregate else None)


@pytest.mark.parametrize("at", [0, 4, 10, -1])
def test_28_one_wrong_byte_makes_it_a_record_like_any_other(message: Any, at: int) -> None:
    data = bytearray(aggregate(message, ROWS))
    data[at] ^= 1
    assert user_records(bytes(data)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"\x1a\x05\x08\x00\x1a\x01",  # cut short
        b"\x1a\x04\x08\x07\x1a\x00",  # a key that is not there
        b"\x1a\x02\x08\x00",  # without data
        b"\x08\x01",  # a number for the table of keys
        b"\x0b",  # a group
        b"\x1a" + b"\xff" * 11,  # a length without end
        b"\x0a\x02\xff\xfe",  # a key that is no text
    ],
)
def test_what_has_a_right_checksum_and_cannot_be_read_is_a_record_like_any_other(body: bytes) -> None:
    assert user_records(MAGIC + body + hashlib.md5(body).digest()) is None


def test_columns_have_the_declared_types() -> None:
    assert source_schema().simpleString() == (
        "struct<partitionKey:string,data:binary,stream:string,shardId:string,sequenceNumber:string,"
        "approximateArrivalTimestamp:timestamp,subSequenceNumber:bigint,explicitHashKey:string>"
    )
    assert arrow_schema(source_schema()).equals(ARROW_SCHEMA)


def test_rows_of_aggregates_and_others_stand_in_order(message: Any) -> None:
    data = aggregate(message, ROWS)
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
        *[tuple(each) for each in ROWS],
        (broken, "b", None),
    ]
    assert table[1]["approximateArrivalTimestamp"].timestamp() == pytest.approx(1_700_000_000.123, abs=1e-6)
    assert table[4]["approximateArrivalTimestamp"] is None
    (plain,) = read(records, deaggregate=False)
    assert plain.schema == ARROW_SCHEMA
    assert plain.column("data").to_pylist() == [b"plain", data, broken]


# The size of batches


def assert_bounded(found: list[pa.RecordBatch]) -> None:
    for batch in found:
        assert 1 <= len(batch) <= MAX_ROWS
        assert batch.nbytes <= MAX_BYTES or len(batch) == 1


def test_an_aggregate_of_very_many_records_becomes_batches_of_bounded_rows() -> None:
    data = [b"%d" % number for number in range(3 * MAX_ROWS + 5)]
    found = read([Record("1", b"before", "k"), Record("2", kpl_aggregate(data), "k"), Record("3", b"after", "k")])
    assert_bounded(found)
    assert len(found) == 4
    rows = rows_of(found)
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
        found = read([Record("1" * 56, kpl_aggregate(data, "k" * 256), "k")])
    else:
        found = read([Record(str(number), each, "k" * 256) for number, each in enumerate(data)])
    assert_bounded(found)
    assert [row for batch in found for row in batch["data"].to_pylist()] == data
    # They are not cut finer than the bounds ask.
    assert all(
        len(one) + len(two) > MAX_ROWS or one.nbytes + two.nbytes > MAX_BYTES * 0.9
        for one, two in itertools.pairwise(found)
    )


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3), max_size=6), st.integers(1, 6))
def test_rows_are_the_same_however_records_are_grouped_into_answers(counts: list[int], cut: int) -> None:
    records = [
        Record(str(number), kpl_aggregate([b"%d" % each for each in range(count * 4000)]) if count else b"plain", "k")
        for number, count in enumerate(counts)
    ]
    whole = pa.Table.from_batches(read(records), ARROW_SCHEMA)
    parts = [batch for part in (records[:cut], records[cut:]) for batch in read(part)]
    assert_bounded(parts)
    assert pa.Table.from_batches(parts, ARROW_SCHEMA).equals(whole)
    assert whole.num_rows == sum(count * 4000 or 1 for count in counts)
