"""``connectors watch`` and ``connectors report``, on the file and the metrics of an observer."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Self

import pytest
from typer.testing import CliRunner, Result

from connectors.cli.main import app
from connectors.cli.observe import _fetch, _screen
from connectors.core.errors import ConnectorError
from connectors.observe.console import Event, LineViews, MetricViews, parse_event, read_lines
from connectors.observe.jsonl import LineFile
from connectors.observe.lag import Measurement, PartitionLag, SourceMeasurement, SpoolMeasurement
from connectors.observe.prometheus import Exporter
from connectors.observe.report import _thinned, page
from tests.servers.java import free_port
from tests.support.hostile_answers import answering, damaged_metrics, dripping
from tests.unit.core.test_formats import WITHOUT

START = 1_700_000_000_000


def measurement(batch: int, *, rows: int = 100, lag: int = 5, query: str = "q1", name: str = "orders") -> Measurement:
    spool = SpoolMeasurement("s1", ("projects/p/subscriptions/s",), 300, 17, 250, 200, 4096, 2500)
    sources = (
        SourceMeasurement("kafka_py", rows, lag, 1500, {"orders-0": PartitionLag(lag, 1500 if lag else 0)}),
        SourceMeasurement("spool", rows, lag, 2500, {"s1": PartitionLag(lag, 2500 if lag else 0)}, spool),
    )
    return Measurement(START + batch * 1000, query, "r", name, batch, 2 * rows, 250, 8.0 * rows, sources)


def started(query: str = "q1", name: str = "orders", run: str = "r") -> dict[str, Any]:
    return {"v": 1, "event": "started", "time_ms": START, "query": query, "run": run, "name": name}


def terminated(exception: str | None, query: str = "q1", run: str = "r") -> dict[str, Any]:
    return {"v": 1, "event": "terminated", "time_ms": START, "query": query, "run": run, "exception": exception}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    write(path, started(), *(measurement(batch, lag=10 * batch).to_json() for batch in range(4)))
    return path


def write(path: Path, *events: Mapping[str, Any]) -> None:
    with path.open("a") as lines:
        lines.writelines(json.dumps(event) + "\n" for event in events)


def parsed(*events: Mapping[str, Any]) -> list[Event]:
    return [event for each in events if (event := parse_event(each)) is not None]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def lines_of(output: str) -> list[list[str]]:
    """What is shown, without the clock; parts stand two blanks or more from each other."""
    return [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()[1:]]


SPOOL_HEADS = ["source", "behind", "behind s", "unread bytes", "oldest s", "duplicates"]


def of_now(measured: Measurement, ago: float) -> dict[str, Any]:
    """The line of a batch that ended so many seconds ago."""
    return measured.to_json() | {"time_ms": time.time_ns() // 1_000_000 - int(ago * 1000)}


def test_watch_shows_the_newest_batch_of_each_query_and_how_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    write(file, started(), *(of_now(measurement(batch, lag=10 * batch), 600 * (3 - batch) + 300) for batch in range(4)))
    broken = of_now(measurement(9, query="q2", name="broken"), 300)
    write(file, started("q2", "broken"), broken, terminated("why", "q2") | {"time_ms": broken["time_ms"]})
    with file.open("a") as lines:
        lines.write('{"half a li')  # as it is while it is being written
    shown = lines_of(run("watch", "--once", str(file)).stdout)
    assert shown[0] == ["orders", "running", "batch 3", "0.25 s", "800 rows/s", "reported 5 min ago"]
    assert (shown[1][0], shown[1][2]) == ("rows/s", "up to 3.3, over 30 min")
    assert (shown[2][0], shown[2][2]) == ("behind", "60 records, grows by 0.033 records/s")
    kafka, spool = shown[4:6]
    assert 301 < float(kafka.pop(2)) < float(spool.pop(2)) < 360, "what is unread is five minutes older by now"
    assert shown[3:6] == [SPOOL_HEADS, ["0 kafka_py", "30"], ["1 spool", "30", "4,096", "2.5", "17"]]
    assert shown[6:8] == [["broken", "failed", "batch 9", "0.25 s", "800 rows/s", "reported 5 min ago"], ["why"]]


def test_a_query_that_has_read_all_and_ended_is_not_behind(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    write(file, started(), of_now(measurement(3, lag=0), 1), terminated(None))
    shown = lines_of(run("watch", "--once", str(file)).stdout)
    assert (shown[0][1], [row[:3] for row in shown[-2:]]) == (
        "ended",
        [["0 kafka_py", "0", "0.0"], ["1 spool", "0", "0.0"]],
    )


def test_watch_shows_the_same_from_metrics_as_from_the_file(tmp_path: Path) -> None:
    measured = replace(measurement(3, lag=30), time_ms=time.time_ns() // 1_000_000 - 300_000)
    write(tmp_path / "lines.jsonl", started(), measured.to_json())
    exporter = Exporter(0)
    exporter.update(measured)
    exporter.refresh(measured.at(time.time_ns() // 1_000_000, {}))
    from_metrics = lines_of(run("watch", "--once", exporter.url).stdout)
    exporter.close()
    [head, *_, heads, kafka, spool] = lines_of(run("watch", "--once", str(tmp_path / "lines.jsonl")).stdout)
    for ours, of_file in ((from_metrics[2], kafka), (from_metrics[3], spool)):
        assert float(ours.pop(2)) == pytest.approx(float(of_file.pop(2)), abs=30)
    assert from_metrics == [head, heads, kafka, spool]


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
    assert shown[2][2] == "4.0 s"


def idle(ago: float) -> dict[str, Any]:
    time_ms = time.time_ns() // 1_000_000 - int(ago * 1000)
    return {"v": 1, "event": "idle", "time_ms": time_ms, "query": "q1", "run": "r"}


@pytest.mark.parametrize("way", ["file", "metrics"])
def test_an_idle_query_is_shown_with_the_age_of_its_figures_and_no_rate(way: str, tmp_path: Path) -> None:
    """It said `20 rows/s` for as long as nothing came."""
    file = tmp_path / "lines.jsonl"
    now_ms = time.time_ns() // 1_000_000
    batch = replace(measurement(3, lag=0), time_ms=now_ms - 300_000)
    write(file, batch.to_json(), idle(250), idle(180))
    exporter = Exporter(0)
    exporter.update(batch)
    exporter.refresh(batch.idle(now_ms - 180_000))
    shown = lines_of(run("watch", "--once", str(file) if way == "file" else exporter.url).stdout)
    exporter.close()
    assert shown[0] == ["orders", "idle for 5 min", "batch 3", "0.25 s", "0 rows/s", "reported 3 min ago"]
    assert [cells[1:3] for cells in shown[-2:]] == [["0", "0.0"], ["0", "0.0"]]


@pytest.mark.parametrize("way", ["file", "metrics"])
def test_a_query_that_is_idle_since_its_start_is_shown_as_such(way: str, tmp_path: Path) -> None:
    """The file said `no batch yet, reported 72 s ago` beside an idleness of 7 s ago, and the metrics said nothing."""
    file = tmp_path / "lines.jsonl"
    now_ms = time.time_ns() // 1_000_000
    write(file, started() | {"time_ms": now_ms - 72_000}, idle(17), idle(7))
    exporter = Exporter(0)
    query = Measurement.started(now_ms - 72_000, "q1", "r", "orders")
    exporter.start(query)
    exporter.refresh(query.idle(now_ms - 7_000))
    shown = lines_of(run("watch", "--once", str(file) if way == "file" else exporter.url).stdout)
    exporter.close()
    after = time.time_ns() // 1_000_000 - now_ms  # the command takes its time to start
    ages = [int(number) for number in re.findall(r" (\d+) s", " ".join(shown[0]))]
    assert shown[0] == ["orders", f"idle for {ages[0]} s", "no batch yet", "0 rows/s", f"reported {ages[1]} s ago"]
    for age, least in zip(ages, (72, 7), strict=True):
        assert least <= age <= least + after / 1000


def test_idleness_of_a_query_whose_start_is_in_a_rotated_file_is_shown(tmp_path: Path) -> None:
    write(tmp_path / "lines.jsonl", idle(7))
    [view] = LineViews(tmp_path / "lines.jsonl").look()
    assert (view.state, view.newest.query, view.newest.batch) == ("idle", "q1", -1)


@pytest.mark.parametrize(("failed", "state"), [(True, "failed"), (False, "ended")])
def test_metrics_show_how_a_query_has_ended(failed: bool, state: str) -> None:
    """It was gone from the screen."""
    exporter = Exporter(0)
    exporter.update(measurement(3))
    exporter.end("q1", failed=failed)
    shown = lines_of(run("watch", "--once", exporter.url).stdout)
    exporter.close()
    assert shown[0][:2] == ["orders", state]


def test_the_lag_of_a_batch_that_takes_long_grows_on_the_screen(tmp_path: Path) -> None:
    write(tmp_path / "lines.jsonl", of_now(measurement(3, lag=5), 30))
    [view] = LineViews(tmp_path / "lines.jsonl").look()
    assert view.newest.sources[0].milliseconds >= 31_000


def test_a_batch_after_idleness_runs_again(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    write(file, of_now(measurement(3), 30), idle(20), of_now(measurement(4), 10))
    assert states(file) == [("running", 4)]
    write(file, of_now(measurement(5), 3) | {"run": "the next"}, idle(2), terminated(None))
    assert states(file) == [("running", 5)], "what is told late of an earlier run"


def test_the_rate_and_the_lag_of_metrics_are_seen_from_look_to_look() -> None:
    exporter = Exporter(0)
    views = MetricViews()
    now_ms = time.time_ns() // 1_000_000
    for batch in range(10):
        exporter.update(replace(measurement(batch, rows=500, lag=5 * (20 - batch)), time_ms=now_ms + 1000 * batch))
        with urllib.request.urlopen(
            urllib.request.Request(exporter.url, headers={"Accept": "application/openmetrics-text"})
        ) as answer:
            text = answer.read().decode()
        for _ in range(2):  # a look without news
            [view] = views.look(text)
    exporter.close()
    assert view.history.rates(3) == pytest.approx([1000, 1000, 1000])
    assert view.history.lags(3) == [170, 140, 110]
    assert view.history.seconds_left() == pytest.approx(11)


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
    [view] = LineViews(tmp_path / "lines.jsonl").look()
    assert (view.state, view.error) == ("failed", line)


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


def test_watch_waits_for_a_driver_that_starts_later_and_starts_again() -> None:
    port = free_port()
    with Terminal("watch", "--every", "0.1", f"http://127.0.0.1:{port}/metrics") as terminal:
        for batch in (3, 4):
            terminal.wait_for("waiting: [OBSERVE_URL] No metrics came")
            exporter = Exporter(port)
            exporter.update(measurement(batch))
            terminal.wait_for(f"batch {batch}")
            exporter.close()
        assert terminal.end() == 0


@pytest.mark.parametrize("text", ["hello\n", '{"event": 1}\n'])
def test_watch_does_not_wait_for_what_is_no_file_of_an_observer_to_become_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text(text)
    with Terminal("watch", str(tmp_path / "lines.jsonl")) as terminal:
        assert terminal.process.wait(60) == 2


def states(file: Path) -> list[tuple[str, int]]:
    return [(view.state, view.newest.batch) for view in LineViews(file).look()]


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
    events, end = read_lines(file)
    assert [getattr(event, "batch", None) for event in events] == [None, 0, 1, *([2] if cut == 1 else []), 3, 4, 5]
    assert end == file.stat().st_size
    assert run("report", str(file)).exit_code == 0


@pytest.mark.parametrize("torn", [b"\0" * 4096, b'{"v": 1, "event": "prog{"v": 1}', b"\xff\xfe\x00", b""])
def test_what_a_loss_of_power_leaves_in_the_middle_is_left_out(torn: bytes, file: Path) -> None:
    with file.open("ab") as lines:
        lines.write(torn + b"\n")
    write(file, measurement(9).to_json())
    assert states(file) == [("running", 9)]


def test_a_file_that_was_cut_off_by_its_rotation_is_read_from_its_first_line(file: Path) -> None:
    views = LineViews(file)
    lines = LineFile(file)
    assert [view.newest.batch for view in views.look()] == [3]
    os.truncate(file, 0)
    assert [view.newest.batch for view in views.look()] == [3]
    for batch in range(100, 110):
        lines.write(measurement(batch).to_json())
        assert [view.newest.batch for view in views.look()] == [batch]
    os.truncate(file, 0)
    for batch in range(200, 250):  # longer than it was, before the next look
        lines.write(measurement(batch).to_json())
    lines.close()
    assert [view.newest.batch for view in views.look()] == [249]


@pytest.mark.parametrize("kind", ["file", "url"])
def test_watching_what_is_not_there_is_a_named_error(kind: str) -> None:
    source = "/nowhere/lines.jsonl" if kind == "file" else f"http://127.0.0.1:{free_port()}/metrics"
    done = run("watch", "--once", source)
    assert done.exit_code == 2
    assert "[OBSERVE_" in done.output


def test_a_file_that_is_no_observers_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("hello\n")
    for command in (["watch", "--once"], ["report"]):
        done = run(*command, str(tmp_path / "other.log"))
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
    "a time that is no number": json.dumps(measurement(1).to_json() | {"time_ms": float("nan")}),
    "a time before 1970": json.dumps(measurement(1).to_json() | {"time_ms": -1e18}),
    "a rate without end": json.dumps(measurement(1).to_json() | {"rows_per_second": float("inf")}),
    "more rows than fit": json.dumps(measurement(1).to_json() | {"rows": 10**400}),
}


@pytest.mark.parametrize("text", NO_OBSERVER.values(), ids=NO_OBSERVER)
@pytest.mark.parametrize("command", [["watch", "--once"], ["report"]], ids=["watch", "report"])
def test_json_that_is_no_observers_is_a_named_error(command: list[str], text: str, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    write(path, started())
    with path.open("a") as lines:
        lines.write(text + "\n")
    done = run(*command, str(path))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("[OBSERVE_FILE] ")
    assert list(tmp_path.iterdir()) == [path], "no page"


@pytest.mark.parametrize("text", ["", '{"half', '{"v": 1, "event": "subscription_kept", "time_ms": 1}\n'])
def test_a_report_of_a_file_without_a_query_is_a_named_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(text)
    done = run("report", str(path))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("[OBSERVE_FILE_EMPTY] ")
    assert list(tmp_path.iterdir()) == [path], "no page"


@pytest.mark.parametrize("way", ["name", "link", "default"])
def test_a_report_never_overwrites_the_file_that_it_is_made_of(way: str, file: Path) -> None:
    if way == "default":
        file = file.rename(file.with_suffix(".html"))
    before = file.read_bytes()
    target = file
    if way == "link":
        target = file.with_name("link")
        target.symlink_to(file)
    done = run("report", str(file), *([] if way == "default" else ["-o", str(target)]))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("[OBSERVE_OUTPUT] ")
    assert "--output" in done.stderr
    assert file.read_bytes() == before


@pytest.mark.parametrize("target", ["nope/page.html", ".", "lines.jsonl/page.html", "x" * 300])
def test_a_page_that_cannot_be_written_is_a_named_error(target: str, file: Path) -> None:
    done = run("report", str(file), "-o", str(file.parent / target))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("[OBSERVE_OUTPUT] ")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:abc/", "http://", "http://[::1/", "http://a b/", "http://127.0.0.1:99999/"]
)
def test_watching_what_is_no_url_is_a_named_error(url: str) -> None:
    done = run("watch", "--once", url)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("[OBSERVE_URL] ")


def test_a_password_in_a_url_is_not_shown() -> None:
    done = run("watch", "--once", f"http://me:hunter2@127.0.0.1:{free_port()}/metrics")
    assert (done.exit_code, done.stderr.startswith("[OBSERVE_URL] ")) == (2, True)
    assert "hunter2" not in done.output


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
def test_watching_a_port_that_speaks_no_http_is_a_named_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        done = run("watch", "--once", f"http://127.0.0.1:{server.getsockname()[1]}/")
        serving.join()
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("[OBSERVE_URL] ")


def serve_metrics() -> str:
    """What an observer serves of one query with two sources."""
    exporter = Exporter(0)
    exporter.update(measurement(3))
    text = _fetch(exporter.url)
    exporter.close()
    return text


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Slow: "], ids=["body", "header"])
def test_an_answer_that_drips_for_ever_ends_in_a_named_error(head: bytes) -> None:
    with answering(dripping(head)) as url, pytest.raises(ConnectorError, match="OBSERVE_URL"):
        _fetch(url, 1.0)


def test_an_answer_without_end_is_not_read_whole() -> None:
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        for _ in range(3 << 10):
            yield b"#" * (1 << 20)
            sent += 1

    with answering(parts) as url:
        done = run("watch", "--once", url)
    assert (done.exit_code, done.stderr.partition("]")[0]) == (2, "[OBSERVE_METRICS")
    assert sent < 64


@pytest.mark.parametrize("label", ["2000000000", "-1", "²", "1_0", "", "x"])
def test_a_number_of_a_source_without_sense_is_a_named_error(label: str) -> None:
    text = serve_metrics().replace('source="0"', f'source="{label}"')
    with pytest.raises(ConnectorError, match="OBSERVE_METRICS"):
        MetricViews().look(text)


def test_damaged_metrics_are_views_or_a_named_error() -> None:
    right = serve_metrics()
    assert MetricViews().look(right)
    refused = 0
    for _ in range(400):
        try:
            _screen(MetricViews().look(damaged_metrics(right)))
        except ConnectorError as error:
            assert error.code == "OBSERVE_METRICS"  # noqa: PT017 - or it is shown
            refused += 1
    assert refused > 40


@pytest.mark.parametrize("before", [None, 0o644])
def test_a_page_is_for_its_owner_alone_as_it_holds_whole_errors(before: int | None, file: Path) -> None:
    target = file.with_name("page.html")
    if before is not None:
        target.write_text("an older page" * 10_000)
        target.chmod(before)
    assert run("report", str(file), "-o", str(target)).exit_code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert target.read_text().endswith("</html>\n")


def test_a_page_can_be_written_to_what_is_no_file(file: Path) -> None:
    assert run("report", str(file), "-o", "/dev/null").exit_code == 0
    assert stat.S_IMODE(Path("/dev/null").stat().st_mode) & 0o066 == 0o066


def test_a_path_in_an_error_is_not_broken_at_the_edge_of_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "lines.jsonl"
    for command in (["watch", "--once"], ["report"]):
        assert f"({path})" in run(*command, str(path)).stderr


class Page(HTMLParser):
    """Counts tags, and keeps every address and all text that is no script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.shown = ""
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "data", "action"}]
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""

    def handle_data(self, data: str) -> None:
        self.shown += "" if self.tags and self.tags[-1] == "script" else data


def charts(text: str) -> list[tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]]:
    """The data, the layout and the settings of each of Plotly's figures in a page."""
    found = []
    for call in re.finditer(r'Plotly\.newPlot\(\s*"query-\d+",\s*', text):
        end, parts = call.end(), []
        for _ in range(3):
            part, end = json.JSONDecoder().raw_decode(text, end)
            parts.append(part)
            end = re.compile(r"[,\s]*").match(text, end).end()  # type: ignore[union-attr]
        found.append((parts[0], parts[1], parts[2]))
    return found


def titles(text: str) -> list[str]:
    return [each["text"] for _, layout, _ in charts(text) for each in layout["annotations"]]


def plotted(text: str, title: str) -> list[list[float]]:
    """The values of each line of a chart of the first query."""
    data, layout, _ = charts(text)[0]
    row = [each["text"] for each in layout["annotations"]].index(title) + 1
    return [line["y"] for line in data if line["yaxis"] == ("y" if row == 1 else f"y{row}")]


def test_the_report_is_one_page_with_its_charts_that_loads_and_sends_nothing(file: Path) -> None:
    done = run("report", str(file))
    assert done.exit_code == 0
    text = file.with_suffix(".html").read_text()
    found = Page(text)
    assert not {"link", "img", "iframe", "form", "a"} & set(found.tags)
    assert found.addresses == []
    assert found.policy.startswith("default-src 'none'; ")
    assert "http" not in found.policy
    assert "form-action 'none'" in found.policy
    assert titles(text) == [
        "Throughput (rows/s)",
        "Batch duration (ms)",
        "Lag (records)",
        "Lag in time (ms)",
        "Duplicates dropped, since the spool was created (messages)",
        "Spool, not committed (bytes)",
    ]
    assert "batch duration, p95" in found.shown
    assert re.search(r"rows\s*800\s", found.shown.replace("batch", " "))
    assert re.search(r"duplicates dropped\s*17\s", found.shown)


def test_charts_are_hovered_and_zoomed_together_and_have_no_button_that_sends_them_away(file: Path) -> None:
    [(_, layout, config)] = charts(page(read_lines(file)[0], "x"))
    axes = [axis for name, axis in layout.items() if name.startswith("xaxis")]
    assert len(axes) == 6
    assert len([axis for axis in axes if "matches" not in axis]) == 1, "all others follow the one"
    assert layout["hovermode"] == "x unified"
    # plotly.js 4 sends a chart to its maker's server by a button that is there by default.
    assert (config["showSendToCloud"], config["displaylogo"]) == (False, False)
    assert not [button for group in config["modeBarButtons"] for button in group if "loud" in button]


def test_a_line_of_a_chart_goes_through_every_batch(file: Path) -> None:
    text = page(read_lines(file)[0], "x")
    assert plotted(text, "Lag (records)") == [[0, 10, 20, 30]] * 2
    assert plotted(text, "Throughput (rows/s)") == [[800.0] * 4]


def test_a_chart_shows_when_a_query_was_idle() -> None:
    events = [measurement(0, lag=0).to_json(), measurement(1, lag=0).to_json(), idle(0) | {"time_ms": START + 60_000}]
    text = page(parsed(started(), *events, idle(0) | {"run": "of no batch"}), "x")
    assert plotted(text, "Throughput (rows/s)") == [[800.0, 800.0, 0.0]]
    assert plotted(text, "Batch duration (ms)") == [[250, 250]]
    assert plotted(text, "Lag in time (ms)") == [[1500, 1500, 0], [2500, 2500, 0]]
    assert charts(text)[0][0][0]["line"]["shape"] == "vh", "the rate falls when the last batch ended"


def test_names_and_errors_are_text_and_neither_html_nor_a_script() -> None:
    evil = "</script><script>alert(1)</script><b onclick=x>"

    def with_names(name: str) -> str:
        source = SourceMeasurement(name, 1, 2, 3, {name: PartitionLag(2, 3)})
        batch = replace(measurement(1, name=name), sources=(source, source))
        return page(parsed(started(name=name), batch.to_json(), terminated(name)), name)

    text = with_names(evil)
    assert Page(text).tags == Page(with_names("x")).tags
    assert "&lt;script&gt;" in text
    assert {line["name"] for line in charts(text)[0][0]} >= {
        "source 0, &lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;b onclick=x&gt;"
    }


def test_of_a_failure_the_reason_stands_before_the_whole_error() -> None:
    found = Page(page(parsed(started(), measurement(1).to_json(), terminated(OF_A_SOURCE)), "x"))
    assert f"Failed at 2023-11-14 22:13:20: {OF_A_SOURCE.splitlines()[2]}" in found.shown
    assert OF_A_SOURCE in found.shown


def test_without_its_extra_the_report_says_which_one_it_needs(file: Path) -> None:
    code = f"""{WITHOUT}
sys.argv = ["connectors", "report", {str(file)!r}]
from connectors.cli.main import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code.replace('sys.argv[1].split(",")', '["plotly"]')],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("[PACKAGES_MISSING] not installed: plotly (this command). ")
    assert "Install the extra report: pip install" in done.stderr
    assert not file.with_suffix(".html").exists()


@pytest.mark.parametrize("events", [[], [started()], [started(), terminated("no class X")]])
def test_a_file_without_batches_gives_a_page_too(events: list[dict[str, Any]]) -> None:
    assert "</html>" in page(parsed(*events), "x")


def test_a_source_that_never_counts_its_records_gets_a_page_without_that_plot() -> None:
    sources = [{"kind": "kinesis", "rows": 1, "records": None, "milliseconds": 1200, "spool": None}]
    text = page(parsed(*(measurement(batch).to_json() | {"sources": sources} for batch in range(3))), "x")
    assert titles(text) == ["Throughput (rows/s)", "Batch duration (ms)", "Lag in time (ms)"]


def test_a_long_run_keeps_its_peaks_in_few_points() -> None:
    points = [(float(x), 1000.0 if x == 7777 else float(x % 3)) for x in range(200_000)]
    thinned = _thinned(points)
    assert len(thinned) <= 5_100
    assert (7777.0, 1000.0) in thinned
    assert thinned == sorted(thinned)
