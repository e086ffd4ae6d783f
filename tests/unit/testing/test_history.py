"""The checker of histories sees each kind of fault that a stream can have, and nothing in a right one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectors.testing.history import judge, main

Events = list[dict[str, Any]]


def published(*ids: str, key: str = "k") -> Events:
    return [{"event": "publish", "id": name, "key": key} for name in ids]


def batch(number: int, *rows: tuple[int | None, str], commit: bool = True) -> Events:
    done = [{"event": "commit", "batch": number}] if commit else []
    return [{"event": "batch", "batch": number, "rows": [list(row) for row in rows]}, *done]


END: Events = [{"event": "end", "drained": True}]


def test_a_right_history_with_a_replay_and_events_that_it_does_not_know_is_right() -> None:
    events = [
        *published("a", "b", "c"),
        {"event": "ack", "id": "a"},
        *batch(0, (0, "a"), (1, "b"), commit=False),
        *batch(0, (0, "a"), (1, "b")),
        *batch(1, (2, "c")),
        *END,
    ]
    verdict = judge(events, ordered=True)
    assert verdict.wrong == {}
    assert (verdict.published, verdict.delivered, verdict.replays) == (3, 3, 1)
    assert str(verdict).startswith("right: 3 published")


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        ("lost", [*published("a", "b"), *batch(0, (0, "a"))]),
        ("lost", [*published("a"), *batch(0, (0, "a"), commit=False)]),
        ("doubled", [*published("a"), *batch(0, (0, "a")), *batch(1, (1, "a"))]),
        ("doubled", [*published("a"), *batch(0, (0, "a"), (1, "a"))]),
        ("invented", batch(0, (0, "a"))),
        ("differing", [*published("a", "b"), *batch(0, (0, "a"), (1, "b"), commit=False), *batch(0, (0, "a"))]),
        ("differing", [*published("a", "b"), *batch(0, (0, "a"), (1, "b")), *batch(0, (0, "b"), (1, "a"))]),
        ("gaps", [*published("a", "b"), *batch(0, (0, "a")), *batch(1, (2, "b"))]),
        ("gaps", [*published("a", "b"), *batch(0, (1, "a"), (0, "b"))]),
        ("disordered", [*published("a", "b"), *batch(0, (0, "b")), *batch(1, (1, "a"))]),
    ],
)
def test_each_kind_of_fault_is_seen(kind: str, events: Events) -> None:
    assert kind in judge([*events, *END], ordered=True).wrong


def test_what_has_not_come_is_lost_only_if_the_reader_had_all_the_time_it_wanted() -> None:
    assert judge([*published("a"), {"event": "end", "drained": False}]).wrong == {}


def test_the_order_is_that_of_each_key_and_is_judged_only_if_asked_for() -> None:
    across = [*published("a", key="1"), *published("b", key="2"), *batch(0, (0, "b"), (1, "a")), *END]
    assert judge(across, ordered=True).wrong == {}
    within = [*published("a", "b"), *batch(0, (0, "b"), (1, "a")), *END]
    assert judge(within).wrong == {}


def test_rows_of_a_source_without_positions_are_counted_by_their_ids() -> None:
    assert judge([*published("a", "b"), *batch(0, (None, "b"), (None, "a")), *END]).wrong == {}


def test_an_event_that_lacks_a_field_is_named() -> None:
    with pytest.raises(ValueError, match="event 1 is malformed"):
        judge([*published("a"), {"event": "batch", "batch": 0}])


def test_the_command_judges_files_and_says_by_its_code_whether_one_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for path, events in ((right, batch(0, (0, "a"))), (wrong, batch(0, (0, "b")))):
        path.write_text("".join(json.dumps(event) + "\n" for event in [*published("a"), *events, *END]))
    assert main([str(right)]) == 0
    assert main(["--ordered", str(right), str(wrong)]) == 1
    assert "1 lost (a)" in capsys.readouterr().out
