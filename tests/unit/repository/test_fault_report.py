"""The fault report says what the records say, and hides nothing."""

from __future__ import annotations

from typing import Any

from tests.chaos.report import BROKE_OFF, PICTURE, REPORT, VICTIMS, Report, page, picture, read_records
from tests.chaos.rigs.peer_trial import PARTS
from tests.chaos.support.record import upper_bound
from tests.chaos.support.report_sections import PEER_PARTS


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


def test_a_cell_without_a_trial_says_that_it_was_not_run() -> None:
    text = page(Report({"pubsub": record({"ok": True, "killed": ["jvm"]}, what="pubsub")}))
    assert row(text, VICTIMS["jvm"]) == ["not run", "not run", f"1, none wrong; < {upper_bound(1):.1%}", "not run"]


def test_a_cell_of_the_network_says_what_became_of_the_query_and_what_was_wrong() -> None:
    held = {"memory_mb": 100, "connections": 2, "spool_files": 3}
    measured = {"flow": "kafka", "caught_up_seconds": 1.5, "before": held, "after": {**held, "connections": 7}}
    trials: list[dict[str, Any]] = [
        {"ok": True, **measured, "fault": "latency", "became": "went on by itself"},
        {"ok": True, **measured, "fault": "outage_60_s", "became": "stopped with KAFKA_UNAVAILABLE"},
        {"ok": False, **measured, "fault": "resets", "became": "went on by itself", "faults": ["1 message is lost"]},
    ]
    text = page(Report({"network": record(*trials, what="network")}))
    assert row(text, "latency") == ["went on, 1.5 s"]
    assert row(text, "outage 60 s") == ["KAFKA_UNAVAILABLE, 1.5 s"]
    assert row(text, "resets") == ["**wrong**: 1 message is lost"]
    assert "0 MB of memory, 5 connections and 0 files" in text


def test_a_peer_stands_beside_ours_and_is_in_no_sum() -> None:
    counts = {"messages": 800, "lost": 0, "doubled": 0, "replays_compared": 1, "replays_differing": 0, "kills": 1}
    theirs = {"counts": {**counts, "lost": 207, "replays_differing": 1}}
    good = {"ok": True, "killed": ["jvm"], "counts": counts, "theirs": theirs}
    both = record({**good, "part": "kills"}, {"ok": False, "part": "kills", "faults": ["broke off"]}, what="peers")
    text = page(Report({"peers": {**both, "settings": {"peer": "0123456789", "spark": "4.1"}}}))
    assert f"| {PEER_PARTS['kills']} | ours | 1 | 800 | 0 | 0 | 1 | 0 |" in text
    assert f"| {PEER_PARTS['kills']} | theirs | 1 | 800 | 207 | 0 | 1 | 1 |" in text
    assert "its commit `0123456`, on Spark 4.1" in text
    assert "of 800 messages 0 lost" in text
    assert row(text, VICTIMS["jvm"])[1] == f"1, none wrong; < {upper_bound(1):.1%}"
    assert row(text, BROKE_OFF)[1] == "**1, wrong in 1 trial**"
    assert PEER_PARTS.keys() == PARTS.keys()
