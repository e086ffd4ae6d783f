"""Rows as aggregates of the KPL, read by protobuf from the published format."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from connectors.kinesis.shards import HashRange
from connectors.kinesis.sink.aggregating import Packer, Packing, ShardMap
from connectors.kinesis.sink.requests import RequestEntry
from tests.support.kpl_reader import UserRecord, user_records

HASH_KEYS = 1 << 128
LIMIT = 1 << 20


def even(count: int, *, closed: bool = False, prefix: str = "shard") -> list[HashRange]:
    """So many shards that share the hash keys."""
    edges = [HASH_KEYS * number // count for number in range(count + 1)]
    pairs = enumerate(itertools.pairwise(edges))
    return [HashRange(f"{prefix}-{number}", first, after - 1, closed) for number, (first, after) in pairs]


def row(data: bytes, key: str = "key", hash_key: str | None = None) -> RequestEntry:
    return RequestEntry(data, key, msgspec.UNSET if hash_key is None else hash_key)


def user(record: RequestEntry) -> UserRecord:
    hash_key = record.ExplicitHashKey
    return UserRecord(record.PartitionKey, record.Data, hash_key if isinstance(hash_key, str) else None)


def packed(packer: Packer, rows: list[RequestEntry]) -> list[Packing]:
    return [*packer.add(rows), *packer.flush()]


def size(packing: Packing) -> int:
    record = packing.record()
    return len(record.Data) + len(record.PartitionKey.encode())


hash_keys = st.none() | st.integers(0, HASH_KEYS - 1).map(str)
records = st.builds(row, st.binary(max_size=300), st.text(min_size=1, max_size=256), hash_keys)


@given(st.lists(records, max_size=40), st.sampled_from([1, 3, 7]), st.sampled_from([1024, 2000, LIMIT]))
def test_every_row_is_in_one_aggregate_of_its_shard_in_order(rows: list[RequestEntry], shards: int, limit: int) -> None:
    ranges = {one.shard: one for one in even(shards)}
    packings = packed(Packer(ranges.values(), limit), rows)
    read: list[UserRecord] = []
    for packing in packings:
        record = packing.record()
        users = user_records(record.Data) if not packing.alone else [user(record)]
        assert users
        assert users == [user(row) for row in packing.rows]
        assert packing.alone == (len(users) == 1)
        one = ranges[packing.shard or ""]
        assert all(one.first <= written.effective_hash_key <= one.last for written in users)
        if not packing.alone:
            assert int(str(record.ExplicitHashKey)) == users[0].effective_hash_key
            assert packing.size == size(packing) <= limit
        read += users
    for key in {each.key for each in read}:
        for shard in ranges.values():
            mine = [one for one in map(user, rows) if shard.first <= one.effective_hash_key <= shard.last]
            assert [one for one in read if one in mine and one.key == key] == [one for one in mine if one.key == key]
    assert sorted(read, key=str) == sorted(map(user, rows), key=str)


def test_aggregate_is_as_full_as_its_limit_allows() -> None:
    rows = [row(b"x" * 200, f"key-{number % 100}") for number in range(20_000)]
    first, *_, _ = packed(Packer(even(1), LIMIT), rows)
    assert LIMIT - 220 < size(first) <= LIMIT


def test_row_whose_hash_key_no_shard_takes_is_put_as_it_is() -> None:
    ranges = [HashRange("a", 0, 9), HashRange("b", 5, 19, closed=True), HashRange("c", 20, HASH_KEYS - 1)]
    rows = [row(b"1", hash_key="9"), row(b"2", hash_key="10"), row(b"3", hash_key="19"), row(b"4", hash_key="20")]
    packings = packed(Packer(ranges, LIMIT), rows)
    assert [(each.shard, each.alone) for each in packings] == [(None, True), (None, True), ("a", True), ("c", True)]
    assert packings[0].record() == rows[1]


def test_single_row_is_put_as_it_is() -> None:
    (alone,) = packed(Packer(even(1), LIMIT), [row(b"1")])
    assert alone.record() == row(b"1")
    assert not alone.is_misplaced("shard-1")


def test_rows_that_wait_are_bounded_whatever_the_number_of_shards() -> None:
    data = b"x" * (LIMIT // 2)
    packer = Packer(even(200), LIMIT)
    waiting = 0
    for number in range(200):
        waiting += 1 - sum(len(each.rows) for each in packer.add([row(data, hash_key=str(HASH_KEYS * number // 200))]))
        assert waiting * len(data) <= 65 << 20
    assert 0 < waiting < 200
    assert sum(len(each.rows) for each in packer.flush()) == waiting
    assert packer.is_empty


def test_new_ranges_take_the_rows_that_wait() -> None:
    rows = [row(b"%d" % number, f"key-{number % 9}") for number in range(100)]
    packer = Packer(even(1), LIMIT)
    assert list(packer.add(rows)) == []
    waiting = packer.reshard([*even(1, closed=True), *even(2, prefix="child")])
    assert waiting == rows
    assert packer.is_empty
    assert {each.shard for each in packed(packer, waiting)} == {"child-0", "child-1"}


def test_shard_covers_hash_keys_of_its_range_also_when_it_is_closed() -> None:
    shards = ShardMap([HashRange("a", 0, 9, closed=True), HashRange("b", 0, HASH_KEYS - 1)])
    assert shards.covers("a", [0, 9])
    assert not shards.covers("a", [0, 10])
    assert not shards.covers("c", [0])
    assert shards.shard_of(3) == "b"
