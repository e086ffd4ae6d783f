"""The arithmetic of limits and ranges, and the JSON of offsets: pure functions."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from connectors.core.errors import OffsetError
from connectors.core.offsets import SENTINEL, ordered
from connectors.kafka.offsets import TopicPartition, end_offset, parse_assignment, read_offset, resolved_start
from connectors.kafka.source.batch import bounds_of
from connectors.kafka.source.micro_batch import offset_counts, rate_limited
from connectors.kafka.source.planning import OffsetRange, restore_sentinels, split_ranges, tasks_of

A, B, C = (TopicPartition("t", number) for number in range(3))


def part(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


# Limits


def test_06_a_limit_is_shared_by_size_and_a_share_below_one_rounds_up() -> None:
    start = {A: 100, B: 10, C: 1}
    end = {A: 201, B: 21, C: 2}
    assert rate_limited(10, start, end) == {A: 108, B: 11, C: 2}
    assert rate_limited(10, {A: 108, B: 11, C: 2}, end) == {A: 117, B: 12, C: 2}


def test_07_the_largest_limit_does_not_overflow() -> None:
    limit = 2**63 - 1
    assert rate_limited(limit, {A: 5}, {A: 2**62}) == {A: 2**62}


def test_a_new_partition_counts_from_its_first_record_and_a_deleted_one_does_not() -> None:
    assert offset_counts({A: 5, B: 7, C: 4}, {A: 6, C: 9}) == {A: 1, C: 5}
    assert rate_limited(3, {A: 5, B: 7, C: 4}, {A: 6, C: 9}) == {A: 6, C: 6}


def test_a_new_partition_whose_first_record_is_unknown_is_taken_whole() -> None:
    assert rate_limited(3, {A: 5}, {A: 6, C: 9}) == {A: 6, C: 9}


def test_an_end_before_the_start_passes_through_to_be_seen_when_planning() -> None:
    assert rate_limited(3, {A: 5, B: 0}, {A: 2, B: 9}) == {A: 2, B: 3}


# Ranges


def test_up_to_127_ranges_have_a_task_each_and_of_more_small_ones_share_tasks() -> None:
    few = [part(0, 5, number) for number in range(127)]
    assert tasks_of(few, None, None) == [(each,) for each in few]
    many = [part(0, 5, number) for number in range(1000)]
    tasks = tasks_of(many, None, None)
    assert [each for ranges in tasks for each in ranges] == many
    assert len(tasks) == 125
    assert {len(ranges) for ranges in tasks} == {8}


def test_ranges_share_a_task_only_while_it_has_few_records_and_the_options_allow_it() -> None:
    large = [part(0, 9_999 if number % 2 else 2, number) for number in range(200)]
    assert [len(ranges) for ranges in tasks_of(large, None, None)] == [1] * 200
    small = [part(0, 5, number) for number in range(200)]
    assert len(tasks_of(small, 100, None)) == 100
    assert len(tasks_of(small, 150, None)) == 200
    assert max(len(ranges) for ranges in tasks_of(small, None, 12)) == 2


@given(
    st.lists(st.integers(1, 12_000), max_size=300),
    st.none() | st.integers(1, 300),
    st.none() | st.integers(1, 20_000),
)
def test_tasks_have_all_ranges_in_order_and_keep_both_limits(
    sizes: list[int], least: int | None, most: int | None
) -> None:
    ranges = [part(0, min(size, most or size), number) for number, size in enumerate(sizes)]
    tasks = tasks_of(ranges, least, most)
    assert [each for parts in tasks for each in parts] == ranges
    assert len(tasks) >= min(len(ranges), max(least or 0, 64))
    assert all(sum(each.size for each in parts) <= (most or 12_000) for parts in tasks)


def test_split_as_spark_does_it() -> None:
    assert split_ranges([part(0, 100), part(0, 3, 1)], 4, None) == [
        part(0, 33),
        part(33, 66),
        part(66, 100),
        part(0, 3, 1),
    ]
    assert split_ranges([part(0, 10)], None, 4) == [part(0, 3), part(3, 6), part(6, 10)]
    assert split_ranges([part(5, 5), part(1, 2, 1)], None, None) == [part(1, 2, 1)]
    assert split_ranges([part(0, 2)], 5, None) == [part(0, 1), part(1, 2)]


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=6),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 300)),
)
def test_23_a_split_covers_each_offset_once(
    sizes: list[tuple[int, int]], min_partitions: int | None, most: int | None
) -> None:
    whole = [part(start, start + size, number) for number, (start, size) in enumerate(sizes)]
    cut = split_ranges(whole, min_partitions, most)
    for each in whole:
        own = [one for one in cut if one.partition == each.partition]
        assert [offset for one in own for offset in range(one.start, one.end)] == list(range(each.start, each.end))
    assert all(one.size > 0 for one in cut)
    assert most is None or all(one.size <= most for one in cut)
    total = sum(each.size for each in whole)
    if min_partitions is not None and most is None and len(whole) == 1:  # parts of a split are not split evenly again
        assert len(cut) >= min(min_partitions, total)


def test_42_a_split_keeps_earliest_and_latest_at_its_outer_ends() -> None:
    cut = split_ranges([part(0, 3)], 3, None)
    assert restore_sentinels(cut, {A: (-2, -1)}) == [part(-2, 1), part(1, 2), part(2, -1)]
    assert restore_sentinels([part(0, 3)], {A: (-2, -1)}) == [part(-2, -1)]
    assert restore_sentinels([part(0, 3)], {A: (0, 3)}) == [part(0, 3)]


# Offsets as JSON


def test_an_offset_has_the_form_of_sparks_own_source() -> None:
    offset = end_offset({B: 2, A: 1, TopicPartition("s", 10): 3})
    assert json.dumps(ordered(offset)) == '{"s": {"10": 3}, "t": {"0": 1, "1": 2}, "v": 1}'
    assert json.dumps(offset) == json.dumps(ordered(offset))
    assert read_offset(offset) == {B: 2, A: 1, TopicPartition("s", 10): 3}


def test_an_offset_of_sparks_own_source_is_read() -> None:
    assert read_offset('{"t":{"0":5},"v":{"1":6}}') == {A: 5, TopicPartition("v", 1): 6}


def test_a_first_batch_that_sparks_own_source_did_not_finish_is_said_to_be_one() -> None:
    for end in ('{"t":{"0":2}}', {"t": {"0": 2}}):
        with pytest.raises(OffsetError, match=r"\[KAFKA_FIRST_BATCH_UNFINISHED\].*until one batch has finished"):
            resolved_start(end)
    with pytest.raises(OffsetError, match="OFFSET_MALFORMED"):
        resolved_start('{"t":{"0":2},"v":1}')


def test_a_topic_with_a_nul_is_not_assigned() -> None:
    with pytest.raises(ValueError, match=r"Expected e\.g\. \{"):
        parse_assignment('{"orders\\u0000x":[0]}')


def test_an_offset_of_a_topic_with_a_nul_is_none_of_kafka() -> None:
    with pytest.raises(OffsetError, match="OFFSET_MALFORMED"):
        read_offset('{"orders\\u0000x":{"0":5},"v":1}')


names = st.sampled_from(["t", "v", "_start", "initial", "a.b", "_v"])
positions = st.dictionaries(st.builds(TopicPartition, names, st.integers(0, 12)), st.integers(0, 2**63 - 1))


@given(positions, positions)
def test_offsets_of_topics_with_any_name_come_back(
    end: dict[TopicPartition, int], start: dict[TopicPartition, int]
) -> None:
    offset = json.loads(json.dumps(end_offset(end, start)))
    assert read_offset(offset) == end
    assert resolved_start(offset) == start
    assert offset != SENTINEL


@pytest.mark.parametrize("bad", ["[1]", "{", '{"t":{"0":"x"},"v":1}', '{"t":7,"v":1}', '{"v":2}'])
def test_an_offset_that_is_none_is_an_error(bad: str) -> None:
    with pytest.raises(OffsetError):
        read_offset(bad)


# Filters


def test_filters_leave_partitions_and_offsets() -> None:
    bounds = bounds_of([In(("partition",), (0, 2)), EqualTo(("topic",), "t"), GreaterThan(("offset",), 4)])
    assert [bounds.wants(each) for each in (A, B, C, TopicPartition("u", 0))] == [True, False, True, False]
    assert (bounds.first, bounds.end) == (5, 2**63 - 1)
    more = bounds_of([GreaterThanOrEqual(("offset",), 4), LessThan(("offset",), 9), LessThanOrEqual(("offset",), 7)])
    assert (more.first, more.end) == (4, 8)
    assert bounds_of([EqualTo(("offset",), 6)]).end == 7


def test_a_time_before_1970_leaves_everything_as_records_without_a_time_match() -> None:
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert bounds_of([GreaterThanOrEqual(("timestamp",), epoch)]).since == 0
    before = epoch - dt.timedelta(milliseconds=1)
    for filtered in (GreaterThanOrEqual, GreaterThan, EqualTo):
        assert not bounds_of([filtered(("timestamp",), before)]).cut_offsets
    assert bounds_of([GreaterThan(("timestamp",), before), GreaterThan(("timestamp",), epoch)]).since == 0


def test_filters_on_other_columns_or_on_null_leave_everything() -> None:
    bounds = bounds_of([EqualTo(("key",), b"a"), EqualTo(("partition",), None), LessThan(("headers", "key"), "x")])
    assert bounds.wants(A)
    assert not bounds.cut_offsets
