"""The fault report says what the records say, and hides nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.report import BROKE_OFF, BY_TESTS, MOVED, PICTURE, REPORT, VICTIMS, Report, page, picture, read_records
from tests.chaos.rigs.peer_trial import PARTS
from tests.chaos.support.record import ROOT, upper_bound
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


def test_a_trial_that_broke_off_without_saying_whom_it_killed_is_shown_as_failed() -> None:
    text = page(Report({"kafka": record({"ok": False, "faults": ["AssertionError"]})}))
    assert row(text, "trials that broke off before their fault")[0] == "**1, wrong in 1 trial**"


def test_a_cell_without_a_trial_says_that_it_was_not_run() -> None:
    text = page(Report({"pubsub": record({"ok": True, "killed": ["jvm"]}, what="pubsub")}))
    assert row(text, VICTIMS["jvm"]) == ["not run", "not run", f"1, none wrong; < {upper_bound(1):.1%}", "not run"]


def test_crashes_at_steps_and_bad_networks_are_counted_without_a_bound() -> None:
    trials: list[dict[str, Any]] = [
        {"ok": True, "part": "efo_crashes", "crashed_at": "offsets_logged", "counts": {"kills": 6}},
        {
            "ok": True,
            "flow": "kinesis_efo",
            "fault": "latency",
            "became": "went on by itself",
            "caught_up_seconds": 1.0,
        },
    ]
    records = {
        "kinesis": record(trials[0], what="kinesis"),
        "network": record(trials[1], what="network"),
    }
    text = page(Report(records))
    assert row(text, "killed at a durable step, before or after it") == [
        "not run",
        "6, none wrong",
        "not run",
        "not run",
    ]
    assert row(text, "network: 500 ms more for each response") == ["not run", "1, none wrong", "not run", "not run"]


@pytest.mark.parametrize("path", [path for _, path in BY_TESTS])
def test_the_tests_that_the_report_names_are_there(path: str) -> None:
    assert (ROOT / path).exists()


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


def test_a_soak_that_grew_shows_what_grew() -> None:
    medians = {"latency": {"first": 1.5, "last": 9.5, "allowed": 5.25}}
    counts = {"messages": 72000, "kills": 60, "splits": 30, "merges": 30, "lost": 0, "doubled": 0}
    faults = ["latency grew from 1.5 to 9.5, 5.25 is allowed"]
    trial = {"ok": False, "flow": "kinesis_efo", "minutes": 60, "medians": medians, "counts": counts, "faults": faults}
    text = page(Report({"soak": record(trial, what="soak")}))
    assert row(text, "latency") == ["1.5 to 9.5"]
    assert row(text, "splits and merges") == ["60"]
    assert row(text, "verdict") == [f"**{faults[0]}**"]


def test_kills_are_shown_for_each_spark_and_moves_by_the_moves() -> None:
    counts = {"kills": 4, "messages": 1000, "replays_compared": 3}
    on_old = {"part": "pubsub-spark-4.0", "flow": "pubsub", "spark": "4.0.5"}
    on_new = {"part": "kafka-exactly-once-spark-4.3", "flow": "kafka-exactly-once", "spark": "4.3.0"}
    moved = {"part": "pubsub-moves", "flow": "pubsub", "moves": ["4.0.5 to 4.3.0", "4.3.0 to 4.0.5"]}
    trials: list[dict[str, Any]] = [
        {"ok": True, **on_old, "killed": ["jvm", "worker"] * 2, "counts": counts},
        {"ok": True, **on_old, "killed": ["jvm", "worker"] * 2, "counts": counts},
        {"ok": False, **on_new, "killed": ["jvm"] * 4, "counts": counts, "faults": ["2 lost"]},
        {"ok": True, **moved, "counts": {**counts, "kills": 2}},
    ]
    text = page(Report({"versions": record(*trials, what="versions")}))
    assert row(text, "4.0.5") == ["8 kills, 2,000 records, 6 batches repeated: 0 wrong", "not run"]
    assert row(text, "4.3.0") == ["not run", "4 kills, 1,000 records, 3 batches repeated: **2 lost**"]
    moves = row(text, "one checkpoint through all of them, up and down again")
    assert moves == ["2 kills, 1,000 records, 3 batches repeated: 0 wrong", "not run"]
    assert row(text, MOVED) == ["not run", "not run", "2, none wrong", "not run"]
    assert row(text, VICTIMS["jvm"])[0] == "**4, wrong in 1 trial**"


def test_a_move_that_broke_off_is_shown_as_wrong() -> None:
    trial = {"ok": False, "part": "kafka-moves", "faults": ["AssertionError: not in 120 s"]}
    text = page(Report({"versions": record(trial, what="versions")}))
    assert row(text, MOVED)[0] == "**1, wrong in 1 trial**"


def test_random_avro_values_are_counted_and_a_difference_is_shown() -> None:
    counts = {"rows": 1000, "schemas": 16, "damaged": 90, "compared": 5000, "wrong": 0, "planted": 9, "planted_seen": 9}
    good = {"ok": True, "faults": [], "counts": counts}
    bad = {"ok": False, "faults": ["schema 3, read, row 4: 1 expected, 2 found"], "counts": {**counts, "wrong": 1}}
    fixed = {"settings": {"java_avro": "1.12.1"}}
    made = record(good, good, what="avro") | fixed
    made["versions"]["fastavro"] = "1.13.1"
    text = page(Report({"avro": made}))
    assert row(text, "messages") == ["2,000"]
    assert row(text, "of which seen") == ["18"]
    assert row(text, "differences") == ["0"]
    assert "fastavro 1.13.1" in text
    failed = page(Report({"avro": {**made, "trials": [*made["trials"], {"trial": "two", "part": "random", **bad}]}}))
    assert row(failed, "differences") == [f"**{bad['faults'][0]}**"]
    assert text.startswith("# What each connector does under each fault\n\n**0 faults")


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
