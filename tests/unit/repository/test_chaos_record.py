"""The record of a fault run goes on where it stopped, and its count of a sink sees every fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.rigs.kinesis_load import keys_out_of_order
from tests.chaos.support.record import Record, RecordMismatchError, upper_bound
from tests.chaos.support.sink import Findings, attempts, examine
from tests.chaos.support.spark_job import LOG_NAME

SETTINGS = {"messages": 10}


def record(path: Path, settings: dict[str, int] = SETTINGS, **arguments: Any) -> Record:
    return Record(path, "thing", settings, ["pyarrow"], **arguments)


def test_a_record_goes_on_with_its_seed_and_its_trials(tmp_path: Path) -> None:
    first = record(tmp_path / "faults" / "thing.json")
    first.add("kill-1", "kills", {"ok": True, "killed": ["jvm"], "counts": {"lost": 0, "messages": 10}})
    second = record(tmp_path / "faults" / "thing.json")
    assert second.done("kill-1")
    assert not second.done("kill-2")
    assert (second.seed, second.trial_seed("kill-2")) == (first.seed, first.trial_seed("kill-2"))
    second.add("kill-2", "kills", {"ok": False, "killed": ["jvm"], "counts": {"lost": 2, "messages": 10}})
    third = record(tmp_path / "faults" / "thing.json")
    assert third.failed == ["kill-2"]
    summary = third.summary["kills"]
    assert (summary["trials"], summary["failed"], summary["lost"], summary["messages"]) == (2, 1, 2, 20)
    assert summary["victims"] == {"jvm": 2}
    assert summary["failure_rate_upper_bound_95"] is None


def test_a_run_of_a_batch_counts_when_its_line_is_whole(tmp_path: Path) -> None:
    assert attempts(tmp_path) == []
    runs = [{"batch": number, "rows": 3, "digest": "d"} for number in range(2)]
    text = "".join(json.dumps(run) + "\n" for run in runs)
    for cut in range(len(text) + 1):
        (tmp_path / LOG_NAME).write_text(text[:cut])
        assert attempts(tmp_path) == runs[: text[:cut].count("\n")]


def test_each_kind_of_victim_has_the_bound_that_its_own_kills_support(tmp_path: Path) -> None:
    kept = record(tmp_path / "thing.json")
    for number in range(60):
        kept.add(f"jvm-{number}", "kills", {"ok": True, "killed": ["jvm"]})
    kept.add("fetcher-0", "kills", {"ok": False, "killed": ["fetcher"]})
    kept.add("worker-0", "kills", {"ok": True, "killed": ["worker"]})
    bounds = kept.summary["kills"]["failure_rate_upper_bound_95_by_victim"]
    assert bounds == {"fetcher": None, "jvm": upper_bound(60), "worker": 0.95}


def test_a_record_of_other_settings_is_not_gone_on_from_unless_begun_anew(tmp_path: Path) -> None:
    record(tmp_path / "r.json").add("a", "part", {"ok": True})
    with pytest.raises(RecordMismatchError, match="another settings"):
        record(tmp_path / "r.json", {"messages": 11})
    with pytest.raises(RecordMismatchError, match="another seed"):
        record(tmp_path / "r.json", seed=record(tmp_path / "r.json").seed + 1)
    content = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps({**content, "code": "0"}))
    with pytest.raises(RecordMismatchError, match="another code"):
        record(tmp_path / "r.json")
    assert record(tmp_path / "r.json", fresh=True).trials == []


def of_other_code(path: Path) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "code": "0", "commit": "0" * 40}))


def test_a_run_across_commits_says_which_trial_is_of_which_and_keeps_what_failed_before_a_fix(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    first = record(path)
    first.add("right", "part", {"ok": True})
    first.add("wrong", "part", {"ok": False})
    of_other_code(path)
    with pytest.raises(RecordMismatchError, match="--across goes on"):
        record(path)
    second = record(path, across=True)
    assert [second.done(name) for name in ("right", "wrong", "new")] == [True, False, False]
    second.add("wrong", "part", {"ok": True})
    content = json.loads(path.read_text())
    assert [(each["trial"], each["ok"], "commit" in each) for each in content["trials"]] == [
        ("right", True, False),
        ("wrong", True, True),
    ]
    assert [(each["trial"], each["ok"]) for each in content["before"]] == [("wrong", False)]
    second.add("new", "part", {"ok": False})
    assert second.done("new"), "what failed with this code does not run until it passes"


def row(identity: str, offset: int, payload: bytes = b"x") -> dict[str, Any]:
    return {"id": identity, "offset": offset, "payload": payload}


PUBLISHED = {identity: {"payload": b"x"} for identity in "abc"}
RIGHT = [row("a", 0), row("b", 1), row("c", 2)]
RUNS = [{"batch": 0, "digest": "1"}, {"batch": 1, "digest": "2"}, {"batch": 1, "digest": "2"}]


def count(rows: list[dict[str, Any]], runs: list[dict[str, Any]] = RUNS) -> Findings:
    return examine(rows, runs, PUBLISHED, key="id", position="offset")


@pytest.mark.parametrize(
    ("rows", "runs", "fault"),
    [
        (RIGHT, RUNS, {}),
        ([row("a", 0), row("b", 1)], RUNS, {"lost": 1}),
        ([*RIGHT, row("b", 3)], RUNS, {"doubled": 1}),
        ([*RIGHT, row("d", 3)], RUNS, {"phantom": 1}),
        ([row("a", 0), row("b", 1, b"y"), row("c", 2)], RUNS, {"altered": 1}),
        ([row("a", 0), row("b", 2), row("c", 1)], RUNS, {"misplaced": 2}),
        (RIGHT, [*RUNS, {"batch": 0, "digest": "3"}], {"replays_differing": 1}),
    ],
)
def test_each_fault_of_a_sink_is_counted_as_what_it_is(
    rows: list[dict[str, Any]], runs: list[dict[str, Any]], fault: dict[str, int]
) -> None:
    assert count(rows, runs).faults == fault


def test_rows_of_a_key_that_stand_in_another_order_are_seen() -> None:
    published = [b"1", b"2", b"3", b"4"]
    rows = [{"partitionKey": key, "data": data} for key, data in (("a", b"1"), ("b", b"3"), ("a", b"4"), ("b", b"2"))]
    assert keys_out_of_order(rows, published) == ["b"]
    assert keys_out_of_order(rows[:3], published) == []
