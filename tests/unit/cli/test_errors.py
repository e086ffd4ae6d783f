"""What commands print: text of files and services cannot control the terminal, whatever it holds."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from connectors.cli.errors import printable
from connectors.cli.main import app
from connectors.observe.lag import Measurement, PartitionLag, SourceMeasurement
from tests.support.spool_writing import HandSpool

ROOT = Path(__file__).parents[3]
TITLE, RED, C1, BIDI = "\x1b]0;owned\x07", "\x1b[31m", "\x9b2J", "\u202e"
EVIL = f"or{TITLE}de{RED}rs{C1}{BIDI}\r\x08\x7f"
FORBIDDEN = {*"\x1b\x07\x9b\u202e\r\x08\x7f\ud800"}


def run(*arguments: str, input: str | None = None) -> Result:  # noqa: A002 - as click calls it
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"}, input=input)


def observed(name: str) -> str:
    """A line of an observer's file about a query and its source, both with this name."""
    source = SourceMeasurement(name, 1, 2, 3, {name: PartitionLag(2, 3)})
    return json.dumps(Measurement(0, name, "r", name, 7, 1, 5, 6.0, (source,)).to_json()) + "\n"


def test_text_keeps_its_lines_and_its_letters_and_loses_what_controls_a_terminal() -> None:
    assert printable("naïve 日本 🙂\n\tz\x1b[31m") == "naïve 日本 🙂\n\tz[31m"
    assert printable(EVIL) == "or]0;ownedde[31mrs2J"
    assert printable("a\ud800b") == "ab", "half of a surrogate pair cannot be encoded"
    assert printable("\u2066a\u2069\u200fb\u061c") == "ab"


@pytest.mark.parametrize("name", [EVIL, "a\ud800b"], ids=["escapes", "half a surrogate pair"])
@pytest.mark.parametrize("event", ["progress", "terminated"])
def test_watch_prints_no_control_characters_of_a_file(event: str, name: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    end = {"v": 1, "event": "terminated", "time_ms": 1, "query": name, "run": "r", "exception": f"why {name}"}
    lines.write_text(observed(name) + (json.dumps(end) + "\n" if event == "terminated" else ""))
    done = run("watch", "--once", str(lines))
    assert done.exit_code == 0
    assert not FORBIDDEN & set(done.stdout)


def test_a_terminal_that_has_not_all_letters_shows_a_question_mark(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(observed("naïve"))
    command = [sys.executable, "-m", "connectors.cli", "watch", "--once", str(lines)]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environ)
    assert "na?ve  running" in done.stdout


def test_a_name_is_one_line_of_watch(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(observed("orders\nfailed  batch 9"))
    assert not any(line.startswith("failed") for line in run("watch", "--once", str(lines)).stdout.splitlines())


def test_an_error_prints_no_control_characters(tmp_path: Path) -> None:
    done = run("report", str(tmp_path / f"{EVIL}.jsonl"))
    assert done.exit_code == 2
    assert not FORBIDDEN & set(done.stderr)


def test_a_spool_prints_no_control_characters_of_its_files(tmp_path: Path) -> None:
    HandSpool(tmp_path / "spool", sources=(f"projects/p/subscriptions/{EVIL}",)).open()
    done = run("spool", "inspect", str(tmp_path / "spool"))
    assert done.exit_code == 0
    assert "projects/p/subscriptions/or" in done.stdout
    assert not FORBIDDEN & set(done.stdout)


def test_a_question_prints_no_control_characters(tmp_path: Path) -> None:
    folder = tmp_path / f"spool{EVIL}"
    HandSpool(folder).open()
    done = run("spool", "wipe", str(folder), input="n\n")
    assert "Delete the spool" in done.stderr
    assert not FORBIDDEN & set(done.stderr)


def test_the_log_of_fetchers_has_no_control_characters() -> None:
    code = f"""
import logging
from connectors.cli.errors import log_to_stderr
log_to_stderr()
logging.getLogger("connectors").warning("the service said %s", {EVIL!r})
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert "WARNING connectors: the service said or]0;ownedde" in done.stderr
    assert not FORBIDDEN & set(done.stderr)
    assert logging.getLogger("connectors").handlers == []
