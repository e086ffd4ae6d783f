"""The pages on performance say what the record says, and the record is what the public set can measure."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tools.performance import (
    ASKED,
    PAGE,
    PICTURES,
    STAGES_PAGE,
    page,
    read_record,
    stages_page,
)
from tools.performance_plots import pictures

ROOT = PAGE.parent.parent
AGAIN = "run ./dev bench --publish --render"


def test_the_committed_pages_and_pictures_are_those_of_the_committed_record() -> None:
    found = read_record()
    assert PAGE.read_text() == page(found), AGAIN
    assert STAGES_PAGE.read_text() == stages_page(found), AGAIN
    drawn = pictures(found)
    assert {name: (PICTURES / name).read_text() for name in drawn} == drawn, AGAIN


@pytest.fixture
def parts() -> Any:
    sys.path.append(str(ROOT / "bench"))
    from _publish import PARTS  # noqa: PLC0415 - a program of bench/

    return PARTS


def test_each_line_of_what_was_asked_is_measured_by_the_public_set(parts: Any) -> None:
    run = {
        part.benchmark: [case for other in parts if other.benchmark == part.benchmark for case in other.cases]
        for part in parts
    }
    for line in ASKED:
        assert line.benchmark in run
        for case in line.cases:
            assert not run[line.benchmark] or case.removesuffix("-cpu") in run[line.benchmark], case
