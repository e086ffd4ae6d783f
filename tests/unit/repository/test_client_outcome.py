"""The check of ``./dev chaos clients`` finds what it is for."""

from __future__ import annotations

import pytest

from tests.support.clients.outcome import out_of_order, outcome

SENT = [("a", 1), ("b", 1), ("a", 2), ("a", 3)]


def test_what_was_read_as_it_was_sent_is_ok() -> None:
    found = [("b", 1), ("a", 1), ("a", 2), ("a", 3)]
    assert out_of_order(SENT, found, lambda record: record[0]) == []
    counts = {"messages": 4, "lost": 0, "doubled": 0, "out_of_order": 0, "kills": 2}
    assert outcome(SENT, found, kills=2) == {"ok": True, "faults": [], "counts": counts}


@pytest.mark.parametrize(
    ("found", "lost", "doubled", "late"),
    [
        (SENT[1:], 1, 0, 0),
        ([*SENT, ("a", 1)], 0, 1, 1),
        ([*SENT[:3], ("a", 4)], 1, 1, 0),
        ([SENT[2], SENT[0], SENT[1], SENT[3]], 0, 0, 1),
    ],
)
def test_lost_doubled_altered_and_late_records_are_found(
    found: list[tuple[str, int]], lost: int, doubled: int, late: int
) -> None:
    seen = outcome(SENT, found, out_of_order(SENT, found, lambda record: record[0]))
    assert not seen["ok"]
    assert len(seen["faults"]) == sum(map(bool, (lost, doubled, late)))
    assert seen["counts"] == {"messages": 4, "lost": lost, "doubled": doubled, "out_of_order": late}


def test_records_that_are_alike_are_refused() -> None:
    with pytest.raises(AssertionError, match="alike"):
        outcome([1, 1], [1, 1])
