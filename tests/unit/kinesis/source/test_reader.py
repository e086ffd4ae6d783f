"""The order in which one task gives the rows of several ranges."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kinesis.source.reader import interleaved

PATIENCE = 30.0
Row = tuple[str, bytes]

SIZES = st.lists(st.sampled_from([0, 10, 400_000, 600_000, 1_500_000]), max_size=12)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def rows_of(name: str, sizes: Sequence[int]) -> list[Row]:
    return [(f"{name}-{number}", bytes(size)) for number, size in enumerate(sizes)]


def batches(rows: Sequence[Row], cuts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The rows in batches of these lengths, over and over."""
    place = number = 0
    while place < len(rows):
        count = cuts[number % len(cuts)]
        part = rows[place : place + count]
        yield pa.RecordBatch.from_pydict(
            {"partitionKey": [key for key, _ in part], "data": pa.array([data for _, data in part], pa.binary())}
        )
        place, number = place + count, number + 1


def read(ranges: Sequence[Callable[[], Iterator[pa.RecordBatch]]]) -> list[str]:
    return [key for batch in interleaved(ranges, threading.Event()) for key in batch.column("partitionKey").to_pylist()]


@given(st.lists(SIZES, min_size=1, max_size=20), CUTS, CUTS)
def test_2_the_order_follows_from_the_rows_and_not_from_the_pages(
    sizes: list[list[int]], cuts: list[int], other: list[int]
) -> None:
    all_rows = [rows_of(str(number), each) for number, each in enumerate(sizes)]
    one, two = (read([partial(batches, rows, lengths) for rows in all_rows]) for lengths in (cuts, other))
    assert one == two
    assert sorted(one) == sorted(key for rows in all_rows for key, _ in rows)
    for number, rows in enumerate(all_rows):
        assert [key for key in one if key.startswith(f"{number}-")] == [key for key, _ in rows]


def test_ranges_take_turns_of_a_megabyte_or_ten_thousand_rows() -> None:
    small, large = rows_of("s", [0] * 25_000), rows_of("l", [300_000] * 9)
    order = read([lambda: batches(small, [7000]), lambda: batches(large, [5])])
    turns = [order[0]]
    turns += [key for before, key in pairwise(order) if key[0] != before[0]]
    assert turns == ["s-0", "l-0", "s-10000", "l-4", "s-20000", "l-8"]


def test_ranges_wait_at_the_same_time() -> None:
    together = threading.Barrier(16, timeout=PATIENCE)

    def waiting(name: str) -> Iterator[pa.RecordBatch]:
        together.wait()
        yield from batches(rows_of(name, [1]), [1])

    assert len(read([lambda n=str(number): waiting(n) for number in range(16)])) == 16  # type: ignore[misc]


def test_at_most_sixteen_ranges_are_read_at_a_time() -> None:
    begun: list[int] = []

    def noted(number: int) -> Iterator[pa.RecordBatch]:
        begun.append(number)
        yield from batches(rows_of(str(number), [1]), [1])

    rows = interleaved([lambda n=number: noted(n) for number in range(40)], threading.Event())  # type: ignore[misc]
    next(rows)
    assert set(begun) <= set(range(17))
    assert len([*rows]) == 39
    assert sorted(begun) == list(range(40))


def test_an_error_of_a_range_is_raised_and_the_others_end() -> None:
    closed = threading.Event()

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(rows_of("f", [2_000_000]), [1])
        raise ValueError("broken")

    def waiting() -> Iterator[pa.RecordBatch]:
        yield from batches(rows_of("w", [2_000_000]), [1])
        assert closed.wait(PATIENCE)

    with pytest.raises(ValueError, match="broken"):
        for _ in interleaved([failing, waiting], closed):
            pass
    assert closed.is_set()


def test_a_task_that_ends_early_ends_what_waits() -> None:
    closed = threading.Event()

    def waiting(name: str) -> Iterator[pa.RecordBatch]:
        yield from batches(rows_of(name, [2_000_000]), [1])
        assert closed.wait(PATIENCE)

    rows = interleaved([lambda: waiting("a"), lambda: waiting("b")], closed)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert closed.is_set()
