"""The count of the demo sees each fault that is planted, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from connectors.cli.demo.count import FAULTS, Attempt, Message, Row, is_right, make_messages, rows_written, tally

RUN = "7f3a"
PUBLISHED = make_messages(100, keys=4)


def row(message: Message, run: str = RUN) -> Row:
    return Row(message.encode(run).decode(), "orders/0", str(message.number))


ROWS = [row(message) for message in PUBLISHED]


def faults(rows: list[Row], *attempts: Attempt) -> dict[str, int]:
    counted = tally("polling", RUN, PUBLISHED, rows, attempts)
    names = ("lost", "doubled", "disordered", "foreign", "replays_differing")
    return {name: getattr(counted, name) for name in names if getattr(counted, name)}


def attempt(batch: int, digest: str, run: int = 1, ended: float = 0.0, rows: int = 10) -> Attempt:
    return Attempt(run, batch, rows, digest, ended)


def test_keys_come_in_turn_and_each_message_has_its_number_in_its_key() -> None:
    assert PUBLISHED[:5] == [
        Message("key-00", 0, 0),
        Message("key-01", 1, 0),
        Message("key-02", 2, 0),
        Message("key-03", 3, 0),
        Message("key-00", 4, 1),
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_is_right_if_something_was_published_and_nothing_is_wrong(fault: str) -> None:
    record = {"published": 100, **dict.fromkeys(FAULTS, 0)}
    assert is_right(record)
    assert not is_right({**record, fault: 1})
    assert not is_right({**record, "published": 0})


def test_nothing_is_counted_where_all_is_right() -> None:
    counted = tally("polling", RUN, PUBLISHED, ROWS)
    assert (counted.delivered, counted.replays, faults(ROWS)) == (100, 0, {})


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        (lambda rows: rows[:50] + rows[51:], {"lost": 1}),
        (lambda rows: rows[:0], {"lost": 100}),
        (lambda rows: [*rows, rows[7]], {"doubled": 1}),
        (lambda rows: [*rows, rows[7], rows[7], rows[9]], {"doubled": 3}),
        # 96 is overtaken by 99, which is of another key, and that is no fault; 92 by 96, which is.
        (lambda rows: [*rows[:96], rows[99], rows[97], rows[98], rows[96]], {}),
        (lambda rows: [*rows[:92], rows[96], *rows[93:96], rows[92], *rows[97:]], {"disordered": 1}),
        (lambda rows: [*rows, row(Message("key-00", 100, 25))], {"foreign": 1}),
        (lambda rows: [*rows, row(Message("key-01", 4, 1))], {"foreign": 1}),
        (lambda rows: [*rows, row(Message("key-00", -1, 0))], {"foreign": 1}),
        (lambda rows: [*rows[1:], row(PUBLISHED[0], "another run")], {"lost": 1}),
        (lambda rows: [*rows, Row("no JSON", "orders/0", "100"), Row("[1]", "orders/0", "101")], {}),
    ],
)
def test_a_planted_fault_is_counted(planted: Callable[[list[Row]], list[Row]], expected: dict[str, int]) -> None:
    assert faults(planted(ROWS)) == expected


def test_a_message_that_was_published_again_may_come_as_often_and_no_more() -> None:
    def doubled(*rows: Row) -> int:
        return tally("polling", RUN, PUBLISHED, [*ROWS, *rows], repeated={3: 1}).doubled

    assert (doubled(ROWS[3]), doubled(ROWS[3], ROWS[3]), doubled(ROWS[4])) == (0, 1, 1)


def test_a_batch_that_was_written_again_is_compared_with_its_first_write() -> None:
    attempts = [
        attempt(0, "a"),
        attempt(1, "b"),
        attempt(1, "b", run=2),
        attempt(1, "c", run=3),
        attempt(2, "d", run=3),
    ]
    counted = tally("polling", RUN, PUBLISHED, ROWS, attempts)
    assert (counted.replays, counted.replays_differing) == (2, 1)


def test_a_batch_that_was_written_again_counts_once_in_the_sink() -> None:
    assert rows_written([attempt(0, "a"), attempt(1, "b", rows=5), attempt(1, "c", rows=7)]) == 17


def test_the_rate_leaves_out_starts_and_the_time_between_two_runs() -> None:
    attempts = [
        attempt(0, "a", run=1, ended=100.0),
        attempt(1, "b", run=1, ended=101.0, rows=50),
        attempt(2, "c", run=2, ended=200.0),
        attempt(3, "d", run=2, ended=201.0, rows=70),
    ]
    assert tally("polling", RUN, PUBLISHED, ROWS, attempts).rows_per_second == 60
    assert tally("polling", RUN, PUBLISHED, ROWS, attempts[:1]).rows_per_second is None
