"""The fault report says what the records say, and hides nothing."""

from __future__ import annotations

from typing import Any

from tests.chaos.report import PICTURE, REPORT, VICTIMS, Report, page, picture, read_records
from tests.chaos.support.record import upper_bound


def record(*trials: dict[str, Any], what: str = "kafka") -> dict[str, Any]:
    fixed = {"what": what, "commit": "0123456789", "ended": "2026-11-24", "versions": {"python": "3.11"}}
    return {**fixed, "trials": [{"trial": "one", "part": "part", **trial} for trial in trials]}


def row(text: str, fault: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {fault} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_committed_report_and_its_picture_are_those_of_the_committed_records() -> None:
    report = Report(read_records())
    assert REPORT.read_text() == page(report), "run ./dev chaos report"
    assert PICTURE.read_text() == picture(report), "run ./dev chaos report"


def test_a_failed_trial_shows_in_the_cells_of_its_faults_and_in_its_record() -> None:
    good = {"ok": True, "killed": ["jvm", "jvm", "worker"], "counts": {"messages": 10, "lost": 0}}
    bad = {"ok": False, "killed": ["jvm"], "counts": {"messages": 10, "lost": 2}}
    text = page(Report({"kafka": record(good, bad)}))
    assert row(text, VICTIMS["jvm"])[0] == "**3, wrong in 1 trial**"
    assert row(text, VICTIMS["worker"])[0] == f"1, none wrong; < {upper_bound(1):.1%}"
    assert "| 2 | 1 | 20 | 2 |" in text
    assert "of 20 messages 2 lost" in text
