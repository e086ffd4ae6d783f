"""The rules of shards: where a stream begins, what may be read, and what is a loss; pure functions."""

from __future__ import annotations

import pytest

from connectors.core.errors import OffsetError, OptionError
from connectors.kinesis.offsets import (
    END,
    LATEST,
    NEW,
    TRIM,
    ShardPositions,
    ShardState,
    StreamState,
    after,
    at_time,
)
from connectors.kinesis.shards import (
    Listing,
    Seen,
    Shard,
    advanced,
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
