"""The pages on performance say what the record says, and the record is what the public set can measure."""

from __future__ import annotations

from tools.performance import (
    PAGE,
    PICTURES,
    STAGES_PAGE,
    page,
    read_record,
    reason,
    stages_page,
)
from tools.performance_plots import pictures

AGAIN = "run ./dev bench --publish --render"


def test_the_committed_pages_and_pictures_are_those_of_the_committed_record() -> None:
    found = read_record()
    assert PAGE.read_text() == page(found), AGAIN
    assert STAGES_PAGE.read_text() == stages_page(found), AGAIN
    drawn = pictures(found)
    assert {name: (PICTURES / name).read_text() for name in drawn} == drawn, AGAIN


def test_each_ratio_below_1_has_its_reason_beside_it() -> None:
    behind = [one for one in read_record().ratios() if one.value < 1]
    assert behind
    assert [one.case for one in behind if not reason(one)] == []
