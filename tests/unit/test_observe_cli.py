"""``connectors watch`` and ``connectors report``, on the file and the metrics of an observer."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import threading
from collections.abc import Mapping
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from connectors.cli import app
from connectors.observe.exporter import Exporter
from connectors.observe.lines import LineFile
from connectors.observe.measure import Measurement, PartitionLag, SourceMeasurement, SpoolMeasurement
from connectors.observe.report import _thinned, page
from connectors.observe.view import LineViews, read_lines
from connectors.testing.java import free_port

START = 1_700_000_000_000


def measurement(batch: int, *, rows: int = 100, lag: int = 5, query: str = "q1", name: str = "orders") -> Measurement:
    spool = SpoolMeasurement("s1", ("projects/p/subscriptions/s",), 300, 17, 250, 200, 4096, 2500)
    sources = (
        SourceMeasurement("kafka_py", rows, lag, 1500, {"orders-0": PartitionLag(lag, 1500)}),
        SourceMeasurement("spool", rows, lag, 2500, {"s1": PartitionLag(lag, 900)}, spool),
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


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def lines_of(output: str) -> list[list[str]]:
    """What is shown, without the clock; parts stand two blanks or more from each other."""
    return [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()[1:]]


HEADS = ["source", "behind", "age s", "unread bytes", "oldest s", "duplicates"]


def test_watch_shows_the_newest_batch_of_each_query_and_how_it_ended(file: Path) -> None:
    write(file, started("q2", "broken"), measurement(9, query="q2", name="broken").to_json(), terminated("why", "q2"))
    with file.open("a") as lines:
        lines.write('{"half a li')  # as it is while it is being written
    shown = lines_of(run("watch", "--once", str(file)).stdout)
    assert shown[:5] == [
        ["orders", "running", "batch 3", "0.25 s", "800 rows/s"],
        HEADS,
        ["0 kafka_py", "30", "1.5", "-", "-", "-"],
        ["1 spool", "30", "2.5", "4,096", "2.5", "17"],
        ["broken", "failed", "batch 9", "0.25 s", "800 rows/s"],
    ]


def test_watch_shows_the_same_from_metrics_as_from_the_file(file: Path) -> None:
    exporter = Exporter(0)
    exporter.update(measurement(3, lag=30))
    from_metrics = lines_of(run("watch", "--once", exporter.url).stdout)
    exporter.close()
    # The time of a spool's source is that of its positions there, of which the age of the oldest message is no part.
    expected = lines_of(run("watch", "--once", str(file)).stdout)
    expected[3][2] = "0.9"
    assert from_metrics == expected


def states(file: Path) -> list[tuple[str, int]]:
    return [(view.state, view.batch) for view in LineViews(file).look()]


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
    assert [event.get("batch") for event in events] == [None, 0, 1, *([2] if cut == 1 else []), 3, 4, 5]
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
    assert [view.batch for view in views.look()] == [3]
    os.truncate(file, 0)
    assert [view.batch for view in views.look()] == [3]
    for batch in range(100, 110):
        lines.write(measurement(batch).to_json())
        assert [view.batch for view in views.look()] == [batch]
    os.truncate(file, 0)
    for batch in range(200, 250):  # longer than it was, before the next look
        lines.write(measurement(batch).to_json())
    lines.close()
    assert [view.batch for view in views.look()] == [249]


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
    "a source that is none": json.dumps(measurement(1).to_json() | {"sources": [{}]}),
    "a time that is a text": json.dumps(measurement(1).to_json() | {"time_ms": "now"}),
    "very deep": "[" * 100_000,
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
    """Counts tags, and keeps every address."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "data", "action"}]


def test_the_report_is_one_page_with_its_plots_that_loads_nothing(file: Path) -> None:
    done = run("report", str(file))
    assert done.exit_code == 0
    text = file.with_suffix(".html").read_text()
    found = Page(text)
    assert found.tags.count("svg") == 6
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert found.addresses == []
    assert "url(" not in text
    assert "//" not in text
    for title in ("Throughput", "Latency", "Lag", "Lag in time", "Duplicates struck out", "Spool"):
        assert f"<h3>{title} <small>" in text
    assert "<dt>rows</dt><dd>800</dd>" in text
    assert "<dt>duplicates struck out</dt><dd>17</dd>" in text


def test_a_line_of_a_plot_goes_through_every_batch(file: Path) -> None:
    text = page([json.loads(line) for line in file.read_text().splitlines()], "x")
    lag = text[text.index("<h3>Lag <small>") :]
    points = re.findall(r'polyline points="([^"]+)"', lag)[0].split()
    heights = [float(point.partition(",")[2]) for point in points]
    assert len(heights) == 4
    steps = [before - after for before, after in pairwise(heights)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert steps[0] > 0, "more lag is higher"


def test_names_and_errors_are_text_and_no_html() -> None:
    evil = "<script>alert(1)</script>"
    events = [started(name=evil), measurement(1, name=evil).to_json(), terminated(evil)]
    text = page(events, evil)
    assert "script" not in Page(text).tags
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("events", [[], [started()], [started(), terminated("no class X")]])
def test_a_file_without_batches_gives_a_page_too(events: list[dict[str, Any]]) -> None:
    assert "</html>" in page(events, "x")


def test_a_source_that_never_counts_its_records_gets_a_page_without_that_plot() -> None:
    sources = [{"kind": "kinesis", "records": None, "milliseconds": 1200, "spool": None}]
    text = page([measurement(batch).to_json() | {"sources": sources} for batch in range(3)], "x")
    assert "<h3>Lag in time <small>" in text
    assert "<h3>Lag <small>" not in text


def test_a_long_run_keeps_its_peaks_in_few_points() -> None:
    points = [(float(x), 1000.0 if x == 7777 else float(x % 3)) for x in range(20_000)]
    thinned = _thinned(points)
    assert len(thinned) <= 700
    assert (7777.0, 1000.0) in thinned
    assert thinned == sorted(thinned)
