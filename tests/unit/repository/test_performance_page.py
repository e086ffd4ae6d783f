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
    Record,
    page,
    read_record,
    stages_page,
)
from tools.performance_plots import pictures

ROOT = PAGE.parent.parent
MACHINE = {"processors": "2 cores"}
AGAIN = "run ./dev bench --publish --render"


def unit(benchmark: str, **found: Any) -> dict[str, Any]:
    fixed = {"commit": "0123456789", "date": "2026-11-24", "load": "0.1, 0.1, 0.1", "seconds": 60}
    return {**fixed, "benchmark": benchmark, "found": found}


def ratio(case: str, value: float, *rounds: float) -> dict[str, Any]:
    return {"case": case, "ratio": value, "rounds": list(rounds), "ours": "kafka_py", "theirs": "kafka"}


def side(case: str, name: str, *values: float) -> dict[str, Any]:
    return {"case": case, "side": name, "unit": "ms", "values": list(values)}


def record(*units: dict[str, Any]) -> Record:
    return Record({"machine": MACHINE, "units": {str(number): one for number, one in enumerate(units)}})


def cells(text: str, work: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {work} (`")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_committed_pages_and_pictures_are_those_of_the_committed_record() -> None:
    found = read_record()
    assert PAGE.read_text() == page(found), AGAIN
    assert STAGES_PAGE.read_text() == stages_page(found), AGAIN
    drawn = pictures(found)
    assert {name: (PICTURES / name).read_text() for name in drawn} == drawn, AGAIN


def test_what_was_asked_stands_beside_what_was_measured_and_its_ceiling() -> None:
    ratios = [ratio("stream-100", 1.6, 1.5, 1.7), ratio("ceiling-100", 2.0), ratio("stream-200", 1.8)]
    line = cells(page(record(unit("kafka_read", ratios=ratios))), "Kafka stream read, the same sizes")
    assert line[1:] == [
        ">= 0.92 of the ceiling",
        "1.60 / 1.80 / not measured",
        "0.80 / not measured / not measured of 2.00 / not measured / not measured",
    ]


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
