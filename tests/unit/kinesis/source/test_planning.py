"""Offsets, positions and the rules of shards of the Kinesis source: pure functions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core.errors import OffsetError, OptionError
from connectors.core.offsets import SENTINEL, ordered
from connectors.kinesis.offsets import (
    END,
    LATEST,
    NEW,
    TRIM,
    Position,
    ShardPositions,
    ShardState,
    StreamState,
    after,
    at,
    at_time,
    end_offset,
    read_offset,
    resolved_start,
)
from connectors.kinesis.shards import (
    Listing,
    Seen,
    Shard,
    advanced,
    is_after,
    is_worth_a_batch,
    next_state,
    overdue,
    readable,
    resolve,
    shard_ranges,
    states_of,
    vanished,
    with_unread,
)
from connectors.kinesis.source.latest_record import probe_times
from connectors.kinesis.source.micro_batch import Share, is_within, shares

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
HOUR = 3_600_000
NOW = 1_700_000_000_000


def listing(*shards: Shard, at_ms: int = NOW) -> Listing:
    return Listing("orders", ARN, 1, 24 * HOUR, at_ms, {each.shard_id: each for each in shards})


def state(**shards: ShardState) -> StreamState:
    return StreamState(1, shards)


def read_to(number: int, arrival_ms: int | None = None, clean_ms: int | None = None) -> ShardState:
    return ShardState(after(number), arrival_ms, clean_ms)


ENDED = ShardState(END)

# Offsets


def test_01_numbers_are_compared_as_integers() -> None:
    assert is_after(after(99), 100)
    assert not is_after(after(100), 99)
    assert is_after(at(100), 100)
    assert not is_after(after(10**40), 10**40)


def test_an_offset_says_the_same_after_a_round_trip_and_holds_no_other_numbers() -> None:
    streams = {
        ARN: state(
            a=read_to(10**55, 5, 6),
            b=ENDED,
            c=ShardState(at_time(7)),
            d=NEW,
            e=ShardState(at(3)),
            f=ShardState(TRIM, None, 8),
        )
    }
    text = json.dumps(ordered(end_offset(streams, {ARN: state(a=NEW)})))
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert read_offset(text) == streams
    assert resolved_start(text) == {ARN: state(a=NEW)}


@pytest.mark.parametrize(
    "offset",
    [
        {"v": 1},
        {"v": 1, "streams": {ARN: {"shards": {}}}},
        {"v": 1, "streams": {ARN: {"created": "1", "shards": {}}}},
        {"v": 1, "streams": {ARN: {"created": 1, "shards": {"a": {"p": "AFTER"}}}}},
        {"v": 1, "streams": {ARN: {"created": 1, "shards": {"a": {"p": "AFTER:x"}}}}},
        {"v": 1, "streams": {ARN: {"created": 1, "shards": {"a": {"p": "LATEST"}}}}},
        {"v": 1, "streams": {ARN: {"created": 1, "shards": {"a": {"p": "TRIM", "more": 1}}}}},
        {"v": 2, "streams": {}},
        dict(SENTINEL),
        {"orders": {"0": 1}},
        "no json",
    ],
)
def test_an_offset_of_another_source_or_version_is_refused(offset: object) -> None:
    with pytest.raises(OffsetError):
        read_offset(offset)  # type: ignore[arg-type]


@given(st.integers(0, 10**56))
def test_a_position_is_read_as_it_was_written(number: int) -> None:
    for position in (after(number), at(number), at_time(number % 253_402_300_800_000), TRIM, END):
        assert Position.parse(str(position)) == position


@pytest.mark.parametrize("number", [-1, True, 3.9, "1", 10**15, None])
@pytest.mark.parametrize("key", ["ts", "clean", "created"])
def test_a_time_that_is_none_of_the_service_is_refused(key: str, number: object) -> None:
    shard = {"p": "AFTER:7", "ts": 1, "clean": 2}
    stream = {"created": 1, "shards": {"a": shard}}
    (stream if key == "created" else shard)[key] = number  # type: ignore[index]
    with pytest.raises(OffsetError, match="OFFSET_MALFORMED"):
        read_offset({"v": 1, "streams": {ARN: stream}})


# Starts


def test_latest_is_a_time_and_what_is_closed_counts_as_read() -> None:
    begin = resolve(listing(Shard("a", closed=True), Shard("b", ("a",))), ShardPositions(LATEST))
    assert begin.shards == {"a": ENDED, "b": ShardState(at_time(NOW - 1000))}


def test_11_trim_horizon_begins_with_all_that_is_listed() -> None:
    begin = resolve(listing(Shard("a", closed=True), Shard("b", ("a",))), ShardPositions(TRIM))
    assert begin.shards == {"a": NEW, "b": NEW}
    assert readable(
        states_of(begin, listing(Shard("a", closed=True), Shard("b", ("a",)))),
        listing(Shard("a", closed=True), Shard("b", ("a",))),
    ) == ["a"]


def test_a_starting_time_before_the_retention_is_the_oldest_record_and_one_to_come_is_refused() -> None:
    assert resolve(listing(Shard("a")), ShardPositions(at_time(NOW - 25 * HOUR))).shards == {"a": NEW}
    with pytest.raises(OptionError, match="future"):
        resolve(listing(Shard("a")), ShardPositions(at_time(NOW + HOUR)))


def test_a_starting_time_that_another_clock_puts_a_little_ahead_is_now() -> None:
    """The service refuses to look for what arrived in the future."""
    assert resolve(listing(Shard("a")), ShardPositions(at_time(NOW + 30_000))).shards == {"a": ShardState(at_time(NOW))}


def test_22_a_start_by_shards_leaves_out_what_came_before_and_refuses_what_is_unknown() -> None:
    shards = listing(Shard("a", closed=True), Shard("b", ("a",)), Shard("c"))
    begin = resolve(shards, ShardPositions(named={"": {"b": after(5)}}))
    assert begin.shards == {"a": ENDED, "b": read_to(5), "c": NEW}
    assert resolve(shards, ShardPositions(named={"orders": {"c": LATEST}})).shards["c"] == ShardState(
        at_time(NOW - 1000)
    )
    with pytest.raises(OptionError, match=r"KINESIS_UNKNOWN_SHARD.*shard x"):
        resolve(shards, ShardPositions(named={"": {"x": after(5)}}))


# Resharding


def test_08_a_child_waits_for_the_end_of_its_parent() -> None:
    split = listing(Shard("a", closed=True), Shard("b", ("a",)), Shard("c", ("a",)))
    assert readable(states_of(state(a=read_to(5)), split), split) == ["a"]
    assert readable(states_of(state(a=ENDED), split), split) == ["b", "c"]
    assert readable(states_of(state(a=read_to(5)), split), split, preserve_order=False) == ["a", "b", "c"]


def test_09_a_child_of_a_merge_waits_for_both_parents() -> None:
    merged = listing(Shard("a", closed=True), Shard("b", closed=True), Shard("c", ("a", "b")))
    assert readable(states_of(state(a=ENDED, b=NEW), merged), merged) == ["b"]
    assert readable(states_of(state(a=ENDED, b=ENDED), merged), merged) == ["c"]


def test_10_the_end_of_a_closed_shard_is_all_that_it_has() -> None:
    assert next_state(read_to(5), Seen(ended=True)) == ENDED


def test_12_two_levels_are_walked_in_order() -> None:
    levels = listing(Shard("a", closed=True), Shard("b", ("a",), closed=True), Shard("c", ("b",)))
    begin = state(a=read_to(5))
    order = []
    for _ in range(3):
        shards = readable(states_of(begin, levels), levels)
        order.append(shards)
        begin = advanced(begin, {each: ENDED if each != "c" else read_to(9) for each in shards}, levels)
    assert order == [["a"], ["b"], ["c"]]


def test_a_parent_that_is_not_listed_any_more_holds_nothing_up() -> None:
    alone = listing(Shard("b", ("gone",)))
    assert readable(states_of(state(), alone), alone) == ["b"]


def test_an_ancestor_that_the_offset_forgot_is_not_read_again() -> None:
    shards = listing(Shard("a", closed=True), Shard("b", ("a",), closed=True), Shard("c", ("b",)))
    assert set(states_of(state(c=read_to(5)), shards)) == {"c"}


def test_20_a_shard_that_vanished_is_a_loss_unless_it_was_read_to_its_end() -> None:
    shards = listing(Shard("c", ("a", "b")))
    assert vanished(state(a=ENDED, b=read_to(5), c=NEW), shards) == ["b"]
    ends = {"c": read_to(7)}
    assert set(advanced(state(a=ENDED, b=ENDED, c=NEW), ends, shards).shards) == {"c"}


def test_a_shard_that_was_read_stays_in_the_offset_until_its_children_are_in_it() -> None:
    shards = listing(Shard("b", ("a",)), Shard("c", ("a",)), Shard("d"))
    kept = advanced(state(a=ENDED, d=NEW), {"b": NEW, "d": read_to(1)}, shards)
    assert "a" in kept.shards, "c is not in it yet: without a, nothing would say that a was read"
    assert "a" not in advanced(state(a=ENDED, d=NEW), {"b": NEW, "c": NEW, "d": read_to(1)}, shards).shards


# Moving on


def test_nothing_new_is_no_reason_for_a_batch() -> None:
    shards = listing(Shard("a"))
    begin = state(a=read_to(5, NOW - HOUR))
    assert not is_worth_a_batch(begin, {"a": next_state(begin.shards["a"], Seen(5, NOW - HOUR))}, shards)
    assert not is_worth_a_batch(begin, {"a": next_state(begin.shards["a"], Seen(clean_ms=NOW))}, shards)


def test_what_is_known_of_an_idle_shard_is_written_once_a_quarter_of_the_retention() -> None:
    shards = listing(Shard("a"))
    begin = state(a=read_to(5, NOW))
    for hours, worth in ((5, False), (7, True)):
        seen = Seen(clean_ms=NOW + hours * HOUR)
        end = next_state(begin.shards["a"], seen)
        assert end == read_to(5, NOW, NOW + hours * HOUR)
        assert is_worth_a_batch(begin, {"a": end}, shards) is worth
    written = advanced(begin, {"a": end}, shards)
    assert not is_worth_a_batch(written, {"a": end}, shards)


def test_a_shard_is_clean_only_behind_its_newest_record() -> None:
    assert next_state(read_to(5), Seen(9, 90, clean_ms=95)) == read_to(9, 90, 95)
    assert next_state(read_to(9, 90), Seen(9, 90, clean_ms=95)) == read_to(9, 90, 95)
    assert next_state(read_to(20, 200), Seen(9, 90, clean_ms=95)) == read_to(20, 200)


def test_19_a_child_of_which_nothing_was_read_is_owed_since_ever_once_its_parents_are_not_listed() -> None:
    child, merged = Shard("c", ("a",)), Shard("m", ("a", "b"))
    owed = ShardState(TRIM, clean_ms=0)
    assert overdue(owed, NOW, 24 * HOUR)
    assert with_unread(state(a=ENDED, c=NEW), listing(child)) == state(a=ENDED, c=owed)
    assert with_unread(state(a=ENDED), listing(child)) == state(a=ENDED, c=owed)
    assert with_unread(state(a=ENDED, b=ENDED, m=NEW), listing(merged)).shards["m"] == owed
    for begun, there in (
        (state(a=ENDED, c=NEW), listing(Shard("a", closed=True), child)),  # nothing of it can be gone yet
        (state(a=ENDED, b=ENDED, m=NEW), listing(Shard("b", closed=True), merged)),
        (state(c=NEW), listing(child)),  # the query began there
        (state(a=ENDED, c=read_to(5)), listing(child)),
        (state(a=ENDED, c=ShardState(TRIM, clean_ms=NOW)), listing(child)),
        (state(a=ENDED, c=ENDED), listing(Shard("c", ("a",), closed=True))),
    ):
        assert with_unread(begun, there) == begun


def test_only_a_shard_of_which_nothing_is_known_for_the_retention_is_overdue() -> None:
    day = 24 * HOUR
    assert overdue(read_to(5, NOW - day - 1), NOW, day)
    assert not overdue(read_to(5, NOW - 3 * day, NOW - HOUR), NOW, day)
    assert not overdue(NEW, NOW, day)
    assert overdue(ShardState(at_time(NOW - day - 1)), NOW, day)


# Ranges


def test_ranges_are_what_lies_between_two_offsets() -> None:
    start = state(a=read_to(5, 50, 60), b=ENDED, c=read_to(7), d=read_to(9))
    end = state(a=read_to(8), b=ENDED, c=ENDED, d=read_to(9, 90, 99), e=read_to(3))
    found = shard_ranges(listing(), start, end)
    assert [(each.shard, each.begin, each.end, each.complete_ms) for each in found] == [
        ("a", after(5), after(8), 60),
        ("c", after(7), END, None),
        ("e", TRIM, after(3), None),
    ]
    assert shard_ranges(listing(), None, state(a=read_to(8)))[0].begin == TRIM


@pytest.mark.parametrize(("begin", "end"), [(read_to(9), read_to(8)), (ENDED, read_to(8))])
def test_an_end_before_its_start_is_refused(begin: ShardState, end: ShardState) -> None:
    with pytest.raises(OffsetError, match="KINESIS_OFFSET_REVERSED"):
        shard_ranges(listing(), state(a=begin), state(a=end))


# Limits


def test_a_limit_is_shared_and_shards_furthest_behind_come_first() -> None:
    states = {"a": read_to(1, 300), "b": read_to(1, 100), "c": read_to(1, 200)}
    assert shares(states, 7, None) == dict.fromkeys("abc", Share(2, None))
    assert list(shares(states, 2, 1000)) == ["b", "c"]
    assert shares(states, 2, 1000)["b"] == Share(1, 500)


def test_what_a_shard_can_take_in_a_time_needs_no_counting() -> None:
    share = Share(5000, 10 << 20)
    assert share.span_ms == 5000
    assert is_within(read_to(1, 1000), read_to(2, 5000), share)
    assert not is_within(read_to(1, 1000), read_to(2, 5001), share)
    assert not is_within(read_to(1, 1000), ENDED, share)
    assert not is_within(NEW, read_to(2, 5000), share)


# The search for the newest record


def searched(arrivals: list[int], low: int, now: int, window: int) -> tuple[int | None, int]:
    """The newest arrival that the search has found among sorted ones, and how often it looked."""
    search = probe_times(low, now, window)
    best: int | None = None
    looks = 0
    moment: int | None = next(search)
    while moment is not None:
        looks += 1
        assert moment >= low
        found = next((each for each in arrivals if each >= moment), None)
        best = max((each for each in (best, found) if each is not None), default=None)
        try:
            moment = search.send(found)
        except StopIteration:
            moment = None
    return best, looks


@given(st.lists(st.integers(0, 1_000_000), max_size=40), st.integers(0, 1_000_000), st.integers(1, 5000))
def test_the_search_ends_near_the_newest_record_in_few_looks(times: list[int], low: int, window: int) -> None:
    arrivals = sorted(times)
    best, looks = searched(arrivals, low, 1_000_000, window)
    newest = max((each for each in arrivals if each >= low), default=None)
    assert looks <= 40
    assert (best is None) == (newest is None)
    if best is not None and newest is not None:
        assert newest - best <= window


def test_a_busy_shard_needs_one_look() -> None:
    search = probe_times(0, 100_000, 1000)
    assert next(search) == 99_000
    with pytest.raises(StopIteration):
        search.send(99_010)


def test_a_busy_time_long_ago_is_halved_down_to_the_window() -> None:
    arrivals = list(range(50_000, 60_000, 10))
    best, looks = searched(arrivals, 0, 100_000, 1000)
    assert best is not None
    assert best >= arrivals[-1] - 1000
    assert looks < 12
