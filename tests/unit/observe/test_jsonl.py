"""The file of an observer: a line for each event, for its owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from connectors.observe.prometheus import Exporter
from connectors.observe.watch import Observer
from tests.support.observed import heard, kafka, progress, scraped


def test_each_event_is_one_json_line_and_a_broken_one_does_not_end_the_observer(tmp_path: Path) -> None:
    def act(observer: Observer) -> None:
        put = observer._listener._put
        put(("started", {"query": "q", "run": "r", "name": "orders"}))
        put(("progress", {"no": "report"}))
        put(("progress", progress(kafka(10, 15))))
        put(("terminated", {"query": "q", "run": "r", "exception": None}))

    lines = heard(tmp_path, act)
    assert [line["event"] for line in lines] == ["started", "progress", "terminated"]
    assert lines[1]["sources"][0]["partitions"]["orders-0"]["records"] == 5


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_file_is_for_its_owner_alone_as_it_holds_whole_errors(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        heard(tmp_path, lambda _: None)
    finally:
        os.umask(before)
    assert mode(tmp_path / "lines.jsonl") == 0o600


@pytest.mark.parametrize(("given", "then"), [(0o644, 0o600), (0o666, 0o600), (0o640, 0o640), (0o600, 0o600)])
def test_a_file_that_all_may_read_is_closed_to_them_and_a_group_that_was_let_in_stays(
    given: int, then: int, tmp_path: Path
) -> None:
    """0644 is what this file had before; 0640 is what an administrator gives a collector of logs."""
    path = tmp_path / "lines.jsonl"
    path.write_text('{"event": "before"}\n')
    path.chmod(given)
    assert [line["event"] for line in heard(tmp_path, lambda _: None)] == ["before"]
    assert mode(path) == then


def test_a_full_disk_under_the_lines_leaves_the_rest_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter(0)
    with Observer(file="/dev/full", exporter=exporter) as observer:
        for number in range(3):
            observer._listener._put(("progress", progress(kafka(10, 15), batch=number)))
        observer._listener._put(("started", {"query": "other", "run": "o", "name": ""}))
        while not observer._events.empty() or "o" not in observer._running:
            observer._thread.join(0.01)
        assert scraped(exporter, "orders")["connectors_rows_total"] == 30
        observer._listener._put(("terminated", {"query": "q", "run": "r", "exception": None}))
    assert "q" not in observer.latest
    assert caplog.text.count("[OBSERVE_FILE]") == 1
    assert "OBSERVE_FAILED" not in caplog.text
