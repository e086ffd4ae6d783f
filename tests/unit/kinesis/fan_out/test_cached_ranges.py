"""Which parts of a range segments cover: chains of extents, and pieces of ranges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kinesis.fan_out.cached_ranges import CachedRange, CachedRanges
from connectors.kinesis.offsets import END, TRIM, Position, after, at, at_time
from connectors.kinesis.shards import Piece
from tests.support.alterations import alterations, json_text

KEY = ("arn:aws:kinesis:us-east-1:123456789012:stream/orders", "shardId-000000000000")


def extent(begin: Position, first: int, last: int, *, ended: bool = False) -> CachedRange:
    records = last - first + 1
    return CachedRange(
        KEY, 1, begin, first, last, min(last, 10**12), ended, records, records, records, deaggregate=True
    )


def extents(*found: CachedRange) -> CachedRanges:
    made = CachedRanges()
    for each in found:
        made.add(each)
    return made


def chain(made: CachedRanges, begin: Position) -> list[int]:
    return [each.last for each in made.chain(begin)]


def spans(pieces: tuple[Piece, ...]) -> list[tuple[Position, int]]:
    return [(each.begin, each.last) for each in pieces]


def test_an_extent_is_the_same_from_its_footer() -> None:
    made = [extent(TRIM, 10**56 - 3, 10**56), extent(at_time(5), 3, 7, ended=True), extent(after(7), 8, 9)]
    read = CachedRange.of_segment([each.note() for each in made], "inbox/a/0.arrow", "digest")
    assert [(each.segment, each.digest) for each in read] == [("inbox/a/0.arrow", "digest")] * 3
    assert [each.row for each in read] == [0, 4, 9]
    assert [each.note() for each in read] == [each.note() for each in made]


@pytest.mark.parametrize("change", [{"after": "NOWHERE"}, {"first": "x"}, {"shard": None, "last": None}, {"rows": []}])
def test_a_footer_of_something_else_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        CachedRange.of_segment([extent(TRIM, 1, 2).note() | change], "name", "digest")


def test_an_altered_note_is_the_same_or_refused() -> None:
    right = [extent(after(7), 8, 9).note()]
    refused = 0
    for done, altered in alterations(right):
        if done.endswith(
            ("= {}", "= []", "= 9223372036854775807", "ended = True")
        ):  # nothing, or another count: its rows are compared
            continue
        try:
            (read,) = CachedRange.of_segment(json.loads(json_text(altered)), "name", "digest")
        except (KeyError, TypeError, ValueError, AttributeError):
            refused += 1
            continue
        alike = {**read.note(), **({} if "stream" not in done and "shard" not in done else right[0])}
        assert alike == right[0], done
    assert refused > 50


def test_a_chain_ends_at_the_first_gap() -> None:
    made = extents(extent(TRIM, 1, 3), extent(after(3), 5, 6), extent(after(7), 9, 9))
    assert chain(made, TRIM) == [3, 6]
    assert chain(made, after(3)) == [6]
    assert chain(made, after(7)) == [9]
    assert chain(made, after(6)) == [], "7 may be missing"


def test_a_position_inside_of_an_extent_is_gone_on_from() -> None:
    made = extents(extent(TRIM, 1, 5), extent(after(5), 7, 9))
    assert chain(made, after(3)) == [5, 9]
    assert chain(made, after(0)) == [], "what comes first behind the oldest is not known to follow 0"


def test_what_was_read_from_another_start_is_no_chain() -> None:
    made = extents(extent(at_time(100), 4, 5))
    assert chain(made, TRIM) == []
    assert chain(made, at_time(99)) == []
    assert chain(made, at_time(100)) == [5]


def test_the_same_fetched_twice_is_taken_once() -> None:
    made = extents(extent(TRIM, 1, 3), extent(TRIM, 1, 5), extent(after(3), 4, 8), extent(after(5), 6, 7))
    assert chain(made, TRIM) == [3, 5, 7, 8]
    pieces = made.pieces(TRIM, after(8))
    assert spans(pieces) == [(TRIM, 3), (after(3), 5), (after(5), 7), (after(7), 8)]


def test_nothing_follows_the_end_of_a_shard() -> None:
    made = extents(extent(TRIM, 1, 3), extent(after(3), 4, 6, ended=True))
    assert chain(made, TRIM) == [3, 6]
    assert made.pieces(TRIM, END)[-1].ended
    assert not made.pieces(TRIM, after(5))[-1].ended


def test_a_range_that_ends_with_the_last_record_of_a_closed_shard_is_not_its_end() -> None:
    """A task polls on from where the pieces lead, unless that is where the range ends."""
    made = extents(extent(TRIM, 1, 6, ended=True))
    (piece,) = made.pieces(TRIM, after(6))
    assert (piece.last, piece.ended) == (6, False)


def test_a_range_may_end_inside_of_an_extent() -> None:
    made = extents(extent(TRIM, 1, 5), extent(after(5), 6, 9))
    assert spans(made.pieces(after(2), after(7))) == [(after(2), 5), (after(5), 7)]
    assert spans(made.pieces(after(2), after(4))) == [(after(2), 4)]
    assert made.pieces(after(9), after(12)) == ()


def test_pieces_behind_a_gap_are_used_as_well() -> None:
    made = extents(extent(TRIM, 1, 3), extent(after(6), 8, 9))
    assert spans(made.pieces(TRIM, after(9))) == [(TRIM, 3), (after(6), 9)]


@pytest.mark.parametrize("begin", [at_time(100), TRIM, at(7)])
def test_what_an_earlier_query_left_is_no_part_of_a_range_from_another_start(begin: Position) -> None:
    """6 to 8 may have come before the time, or be trimmed."""
    assert extents(extent(after(5), 6, 8)).pieces(begin, after(20)) == ()


def test_pieces_behind_the_record_that_a_range_begins_with_are_used() -> None:
    assert spans(extents(extent(after(7), 8, 9)).pieces(at(7), after(9))) == [(after(7), 9)]


def test_what_was_read_is_dropped() -> None:
    made = extents(extent(TRIM, 1, 3), extent(after(3), 4, 6), extent(after(6), 7, 9))
    assert made.drop_up_to(TRIM) == []
    assert [each.last for each in made.drop_up_to(after(6))] == [3, 6]
    assert made.newest() == 9
    assert [each.last for each in made.drop_up_to(END)] == [9]
    assert made.newest() is None


@given(st.data())
def test_pieces_and_what_lies_between_them_are_the_range_once(data: st.DataObject) -> None:
    """Whatever was fetched, and however often: pieces hold just their records, in order, none twice."""
    numbers = sorted(data.draw(st.sets(st.integers(1, 60), min_size=1, max_size=30)))
    made = CachedRanges()
    for _ in range(data.draw(st.integers(0, 8))):
        low = data.draw(st.integers(0, len(numbers) - 1))
        high = data.draw(st.integers(low, len(numbers) - 1))
        begin = TRIM if low == 0 and data.draw(st.booleans()) else after(numbers[low - 1] if low else 0)
        made.add(extent(begin, numbers[low], numbers[high], ended=high == len(numbers) - 1))
    start = data.draw(st.sampled_from([TRIM, *map(after, numbers)]))
    floor = 0 if start == TRIM else start.number
    ends = [each for each in numbers if each > floor]
    if not ends:
        return
    end = data.draw(st.sampled_from([END, *map(after, ends)]))
    wanted = [each for each in ends if end == END or each <= end.number]
    found, position = [], floor
    for piece in made.pieces(start, end):
        begin = 0 if piece.begin.kind is not after(0).kind else piece.begin.number
        assert piece.begin == start or begin >= position, "no record is in two pieces"
        found += [each for each in wanted if position < each <= begin]  # polled
        found += [each for each in numbers if max(begin, position) < each <= piece.last]
        position = piece.last
    found += [each for each in wanted if each > position]
    assert found == wanted
