"""``connectors watch`` on the file of an observer."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from connectors.observe.lag import PartitionLag, SourceMeasurement
from tests.support.observer_files import measurement, of_now, run, started, terminated, write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    write(path, started(), *(measurement(batch, lag=10 * batch).to_json() for batch in range(4)))
    return path


def lines_of(output: str) -> list[list[str]]:
    """What is shown, without the clock; parts stand two blanks or more from each other."""
    return [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()[1:]]


SPOOL_HEADS = ["source", "behind", "behind s", "unread bytes", "oldest s", "duplicates"]


def test_watch_shows_the_newest_batch_of_each_query_and_how_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    write(file, started(), *(of_now(measurement(batch, lag=10 * batch), 600 * (3 - batch) + 300) for batch in range(4)))
    broken = of_now(measurement(9, query="q2", name="broken"), 300)
    write(file, started("q2", "broken"), broken, terminated("why", "q2") | {"time_ms": broken["time_ms"]})
    with file.open("a") as lines:
        lines.write('{"half a li')  # as it is while it is being written
    shown = lines_of(run("watch", "--once", str(file)).stdout)
    assert shown[0] == ["orders", "running", "batch 3", "0.25 s", "800 rows/s", "reported 5 min ago"]
    kafka, spool = shown[2:4]
    assert 301 < float(kafka.pop(2)) < float(spool.pop(2)) < 360, "what is unread is five minutes older by now"
    assert shown[1:4] == [SPOOL_HEADS, ["0 kafka_py", "30"], ["1 spool", "30", "4,096", "2.5", "17"]]
    assert shown[4:6] == [["broken", "failed", "batch 9", "0.25 s", "800 rows/s", "reported 5 min ago"], ["why"]]


def test_a_query_that_has_read_all_and_ended_is_not_behind(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    write(file, started(), of_now(measurement(3, lag=0), 1), terminated(None))
    shown = lines_of(run("watch", "--once", str(file)).stdout)
    assert (shown[0][1], [row[:3] for row in shown[-2:]]) == (
        "ended",
        [["0 kafka_py", "0", "0.0"], ["1 spool", "0", "0.0"]],
    )


def kafka_alone(*lags: int) -> dict[str, Any]:
    partitions = {f"orders-{number}": PartitionLag(lag, 100 * lag) for number, lag in enumerate(lags)}
    source = SourceMeasurement("kafka_py", 10, sum(lags), 100 * max(lags), partitions)
    return of_now(replace(measurement(3), sources=(source,)), 1)


@pytest.mark.parametrize(
    ("lags", "cells"),
    [((3, 1200, 7), ["3", "1,210", "12", "orders-1 by 1,200"]), ((0, 0), ["2", "0", "0.", "none"])],
)
def test_kafka_has_columns_of_its_own_and_none_without_a_figure(
    lags: tuple[int, ...], cells: list[str], tmp_path: Path
) -> None:
    write(tmp_path / "lines.jsonl", started(), kafka_alone(*lags))
    shown = lines_of(run("watch", "--once", str(tmp_path / "lines.jsonl")).stdout)
    assert shown[-1][3].startswith(cells[2])
    shown[-1][3] = cells[2]
    assert shown[-2:] == [["source", "partitions", "behind", "behind s", "furthest"], ["0 kafka_py", *cells]]


def test_the_name_of_the_furthest_partition_is_shown_in_one_piece(tmp_path: Path) -> None:
    topic = "a-topic-with-a-long-name" * 5
    partitions = {f"{topic}-{number}": PartitionLag(number, 0) for number in range(2)}
    source = SourceMeasurement("kafka_py", 10, 1, 0, partitions)
    write(tmp_path / "lines.jsonl", of_now(replace(measurement(3), sources=(source,)), 1))
    assert f"{topic}-1 by 1" in run("watch", "--once", str(tmp_path / "lines.jsonl")).stdout


def test_a_source_that_counts_no_records_says_so(tmp_path: Path) -> None:
    source = SourceMeasurement("kinesis", 10, None, 4000, {"orders/shardId-0": PartitionLag(None, 4000)})
    write(tmp_path / "lines.jsonl", of_now(replace(measurement(3), sources=(source,)), 1))
    shown = lines_of(run("watch", "--once", str(tmp_path / "lines.jsonl")).stdout)
    assert shown[-1] == ["0 kinesis", "not counted", "4.0"]


def idle(ago: float) -> dict[str, Any]:
    time_ms = time.time_ns() // 1_000_000 - int(ago * 1000)
    return {"v": 1, "event": "idle", "time_ms": time_ms, "query": "q1", "run": "r"}


def test_an_idle_query_is_shown_with_the_age_of_its_figures_and_no_rate(tmp_path: Path) -> None:
    """It said `20 rows/s` for as long as nothing came."""
    file = tmp_path / "lines.jsonl"
    now_ms = time.time_ns() // 1_000_000
    batch = replace(measurement(3, lag=0), time_ms=now_ms - 300_000)
    write(file, batch.to_json(), idle(250), idle(180))
    shown = lines_of(run("watch", "--once", str(file)).stdout)
    assert shown[0] == ["orders", "idle for 5 min", "batch 3", "0.25 s", "0 rows/s", "reported 3 min ago"]
    assert [cells[1:3] for cells in shown[-2:]] == [["0", "0.0"], ["0", "0.0"]]


def test_a_query_that_is_idle_since_its_start_is_shown_as_such(tmp_path: Path) -> None:
    """The file said `no batch yet, reported 72 s ago` beside an idleness of 7 s ago, and the metrics said nothing."""
    file = tmp_path / "lines.jsonl"
    now_ms = time.time_ns() // 1_000_000
    write(file, started() | {"time_ms": now_ms - 72_000}, idle(17), idle(7))
    shown = lines_of(run("watch", "--once", str(file)).stdout)
    after = time.time_ns() // 1_000_000 - now_ms  # the command takes its time to start
    ages = [int(number) for number in re.findall(r" (\d+) s", " ".join(shown[0]))]
    assert shown[0] == ["orders", f"idle for {ages[0]} s", "no batch yet", "0 rows/s", f"reported {ages[1]} s ago"]
    for age, least in zip(ages, (72, 7), strict=True):
        assert least <= age <= least + after / 1000


class Terminal:
    """A command of the pack in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "connectors.cli", *arguments]
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "300"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def wait_for(self, text: str) -> None:
        """Read until a text is shown, after what was waited for before."""
        while text not in self.shown:
            assert select.select([self._ours], [], [], 60)[0], self.shown
            self.shown += os.read(self._ours, 65536).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]

    def end(self) -> int:
        """Press Ctrl-C, and give the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


def test_watch_waits_for_a_file_that_is_not_there_yet_and_when_it_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    with Terminal("watch", "--every", "0.1", str(file)) as terminal:
        terminal.wait_for(f"waiting: [OBSERVE_FILE_MISSING] There is no such file ({file})")
        file.touch()
        terminal.wait_for("no query has reported yet")
        write(file, of_now(measurement(3), 1))
        terminal.wait_for("batch 3")
        file.unlink()
        terminal.wait_for("waiting: ")
        write(file, of_now(measurement(4), 1))
        terminal.wait_for("batch 4")
        write(file.with_name("next"), of_now(measurement(5), 1))
        file.with_name("next").rename(file)
        terminal.wait_for("batch 5")
        assert terminal.end() == 0


@pytest.mark.parametrize("text", ["hello\n", '{"event": 1}\n'])
def test_watch_does_not_wait_for_what_is_no_file_of_an_observer_to_become_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text(text)
    with Terminal("watch", str(tmp_path / "lines.jsonl")) as terminal:
        assert terminal.process.wait(60) == 2


def test_watching_what_is_not_there_is_a_named_error() -> None:
    done = run("watch", "--once", "/nowhere/lines.jsonl")
    assert (done.exit_code, "[OBSERVE_FILE_MISSING]" in done.output) == (2, True)


def test_a_file_that_is_no_observers_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("hello\n")
    done = run("watch", "--once", str(tmp_path / "other.log"))
    assert (done.exit_code, "[OBSERVE_FILE]" in done.output) == (2, True)


NO_OBSERVER = {
    "a list": "[1]",
    "a number": "1",
    "no event": "{}",
    "a query alone": '{"query": "q"}',
    "an event without what it says": '{"event": "progress", "query": "q"}',
    "no exception": '{"event": "terminated", "query": "q", "time_ms": 1}',
    "partitions that are none": json.dumps(
        measurement(1).to_json()
        | {"sources": [{"kind": "x", "records": 1, "milliseconds": 1, "spool": None, "partitions": [1]}]}
    ),
    "no idleness": '{"event": "idle", "query": "q", "run": "r"}',
    "a source that is none": json.dumps(measurement(1).to_json() | {"sources": [{}]}),
    "a time that is a text": json.dumps(measurement(1).to_json() | {"time_ms": "now"}),
    "very deep": "[" * 100_000,
    "a time without end": json.dumps(measurement(1).to_json() | {"time_ms": 1e300}),
    "a time that is not a number": json.dumps(measurement(1).to_json() | {"time_ms": float("nan")}),
    "a time before 1970": json.dumps(measurement(1).to_json() | {"time_ms": -1e18}),
    "a rate without end": json.dumps(measurement(1).to_json() | {"rows_per_second": float("inf")}),
    "more rows than fit": json.dumps(measurement(1).to_json() | {"rows": 10**400}),
}


@pytest.mark.parametrize("text", NO_OBSERVER.values(), ids=NO_OBSERVER)
def test_json_that_is_no_observers_is_a_named_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    write(path, started())
    with path.open("a") as lines:
        lines.write(text + "\n")
    done = run("watch", "--once", str(path))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("[OBSERVE_FILE] ")


def test_a_path_in_an_error_is_not_broken_at_the_edge_of_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "lines.jsonl"
    assert f"({path})" in run("watch", "--once", str(path)).stderr
