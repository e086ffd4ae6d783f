"""What is shown of the queries in the file of an observer."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from connectors.observe.console import LineViews
from connectors.observe.jsonl import LineFile
from tests.support.observer_files import measurement, of_now, run, started, terminated, write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    write(path, started(), *(measurement(batch, lag=10 * batch).to_json() for batch in range(4)))
    return path


def idle(ago: float) -> dict[str, Any]:
    time_ms = time.time_ns() // 1_000_000 - int(ago * 1000)
    return {"v": 1, "event": "idle", "time_ms": time_ms, "query": "q1", "run": "r"}


def test_idleness_of_a_query_whose_start_is_in_a_rotated_file_is_shown(tmp_path: Path) -> None:
    write(tmp_path / "lines.jsonl", idle(7))
    [view] = LineViews(tmp_path / "lines.jsonl").refresh()
    assert (view.state, view.newest.query, view.newest.batch) == ("idle", "q1", -1)


def test_the_lag_of_a_batch_that_takes_long_grows_on_the_screen(tmp_path: Path) -> None:
    write(tmp_path / "lines.jsonl", of_now(measurement(3, lag=5), 30))
    [view] = LineViews(tmp_path / "lines.jsonl").refresh()
    assert view.newest.sources[0].milliseconds >= 31_000


def test_a_batch_after_idleness_runs_again(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    write(file, of_now(measurement(3), 30), idle(20), of_now(measurement(4), 10))
    assert states(file) == [("running", 4)]
    write(file, of_now(measurement(5), 3) | {"run": "the next"}, idle(2), terminated(None))
    assert states(file) == [("running", 5)], "what is told late of an earlier run"


OF_A_SOURCE = """org.apache.spark.SparkException: [PYTHON_X] Failed: Traceback (most recent call last):
  File "x.py", line 1, in <module>
connectors.core.errors.SourceGoneError: [PUBSUB_SUBSCRIPTION_NOT_FOUND] It is gone (s). Create it.
 SQLSTATE: 38000
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.error(QueryExecutionErrors.scala:1890)
\tat jdk.proxy3/jdk.proxy3.$Proxy42.call(Unknown Source)
\t... 12 more
"""
OF_A_TASK = """Job aborted: task failed
RuntimeError: a

\tat a.b(C.java:1)

Driver stacktrace:
\tat a.b(C.java:1)
Caused by: java.io.IOException: b
\tat a.b(C.java:1)
\t... 1 more
"""


@pytest.mark.parametrize(
    ("exception", "line"),
    [
        ("one\ntwo", "two"),
        ("", ""),
        (OF_A_SOURCE, OF_A_SOURCE.splitlines()[2]),
        (OF_A_TASK, "Caused by: java.io.IOException: b"),
    ],
)
def test_of_an_error_the_last_line_that_says_what_is_wrong_is_shown(exception: str, line: str, tmp_path: Path) -> None:
    write(tmp_path / "lines.jsonl", started(), terminated(exception))
    [view] = LineViews(tmp_path / "lines.jsonl").refresh()
    assert (view.state, view.error) == ("failed", line)


def states(file: Path) -> list[tuple[str, int]]:
    return [(view.state, view.newest.batch) for view in LineViews(file).refresh()]


def test_a_query_that_was_stopped_and_started_at_once_is_shown_as_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    second = measurement(2).to_json() | {"run": "second"}
    write(file, started(), started(run="second"), measurement(1).to_json(), second, terminated(None))
    assert states(file) == [("running", 2)]
    write(file, terminated("why", run="second"), terminated(None))
    assert states(file) == [("failed", 2)]
    write(file, measurement(3).to_json() | {"run": "third, whose start was not heard"})
    assert states(file) == [("running", 3)]


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_torn_line_costs_no_more_than_itself(cut: int, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    write(file, started(), *(measurement(batch).to_json() for batch in range(3)))
    os.truncate(file, file.stat().st_size - cut)
    lines = LineFile(file)
    for batch in range(3, 6):
        lines.write(measurement(batch).to_json())
    lines.close()
    assert states(file) == [("running", 5)]
    assert run("watch", "--once", str(file)).exit_code == 0


@pytest.mark.parametrize("torn", [b"\0" * 4096, b'{"v": 1, "event": "prog{"v": 1}', b"\xff\xfe\x00", b""])
def test_what_a_loss_of_power_leaves_in_the_middle_is_left_out(torn: bytes, file: Path) -> None:
    with file.open("ab") as lines:
        lines.write(torn + b"\n")
    write(file, measurement(9).to_json())
    assert states(file) == [("running", 9)]


def test_a_file_that_was_cut_off_by_its_rotation_is_read_from_its_first_line(file: Path) -> None:
    views = LineViews(file)
    lines = LineFile(file)
    assert [view.newest.batch for view in views.refresh()] == [3]
    os.truncate(file, 0)
    assert [view.newest.batch for view in views.refresh()] == [3]
    for batch in range(100, 110):
        lines.write(measurement(batch).to_json())
        assert [view.newest.batch for view in views.refresh()] == [batch]
    os.truncate(file, 0)
    for batch in range(200, 250):  # longer than it was, before the next look
        lines.write(measurement(batch).to_json())
    lines.close()
    assert [view.newest.batch for view in views.refresh()] == [249]
