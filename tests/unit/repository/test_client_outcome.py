"""The check of ``./dev chaos clients`` finds what it is for."""

from __future__ import annotations

import pytest

from tests.support.clients.outcome import out_of_order, outcome

SENT = [("a", 1), ("b", 1), ("a", 2), ("a", 3)]


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
