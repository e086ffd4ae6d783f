"""Aggregates of the KPL, held against protobuf and the published format."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kinesis.aggregates import MAGIC, AggregateBuilder, open_aggregate
from tests.support.kpl_reader import UserRecord, aggregated_record

ROWS = [UserRecord("key-a", b"one"), UserRecord("key-b", b"", "12345"), UserRecord("key-a", b"\xff" * 300, "0")]
USERS = st.lists(
    st.builds(
        UserRecord,
        st.text(min_size=1, max_size=10),
        st.binary(max_size=300),
        st.none() | st.integers(0, 2**128 - 1).map(str),
    ),
    max_size=200,
)


def user_records(data: bytes) -> list[UserRecord] | None:
    """Return the records of an aggregate; None when it is none."""
    opened = open_aggregate(data)
    if opened is None:
        return None
    return [UserRecord(key, data, hash_key) for data, key, hash_key in zip(*opened.rows(0, len(opened)), strict=True)]


def aggregate(records: list[UserRecord]) -> bytes:
    """Build an aggregate as the KPL does."""
    keys = list(dict.fromkeys(user.key for user in records))
    hash_keys = list(dict.fromkeys(user.hash_key for user in records if user.hash_key is not None))
    message = aggregated_record()(partition_key_table=keys, explicit_hash_key_table=hash_keys)
    for user in records:
        record = message.records.add(partition_key_index=keys.index(user.key), data=user.data)
        if user.hash_key is not None:
            record.explicit_hash_key_index = hash_keys.index(user.hash_key)
        record.tags.add(key="ignored", value="tag")
    body = message.SerializeToString()
    return MAGIC + body + hashlib.md5(body).digest()


def test_28_an_aggregate_gives_its_records_in_order() -> None:
    assert user_records(aggregate(ROWS)) == ROWS


@given(USERS)
def test_whatever_protobuf_writes_is_read(records: list[UserRecord]) -> None:
    data = aggregate(records)
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
    key: str, hash_key: str | None, is_aggregate: bool
) -> None:
    """A key stands there once for all records that name it, and a sink would refuse the rows: 90 kB made 300 MB."""
    records = [UserRecord(key, b"row", hash_key)] * 3
    assert user_records(aggregate(records)) == (records if is_aggregate else None)


@pytest.mark.parametrize("at", [0, 4, 10, -1])
def test_28_one_wrong_byte_makes_it_a_record_like_any_other(at: int) -> None:
    data = bytearray(aggregate(ROWS))
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
        b"\x0a\x02\xff\xfe",  # a key that is not text
    ],
)
def test_what_has_a_right_checksum_and_cannot_be_read_is_a_record_like_any_other(body: bytes) -> None:
    assert user_records(MAGIC + body + hashlib.md5(body).digest()) is None


@given(USERS)
def test_what_is_written_is_read(users: list[UserRecord]) -> None:
    builder = AggregateBuilder(1 << 20)
    assert all(builder.add(user.data, user.key, user.hash_key) for user in users)
    data = builder.data()
    assert len(data) == builder.size
    assert user_records(data) == (users or None)


@given(USERS, st.integers(20, 5000))
def test_a_record_that_does_not_fit_changes_nothing(users: list[UserRecord], limit: int) -> None:
    builder = AggregateBuilder(limit)
    fitting = [user for user in users if builder.add(user.data, user.key, user.hash_key)]
    data = builder.data()
    assert len(data) <= limit
    assert user_records(data) == (fitting or None)
