"""Spark Declarative Pipelines: the project of examples/pipeline on three servers, run twice by Spark's own command.

Its client needs what a client of Spark Connect needs, so it has that environment; see test_connect.py. With
SPARK_TESTING set, Spark Connect takes a free port instead of 15002, which another test may have.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from connectors.core.processes.interpreter import python_environment
from tests.support.documents import blocks
from tools.side_environment import side_environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "examples" / "pipeline"
PAGE = (ROOT / "docs/how-to/pipelines.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def output() -> str:
    """What the example prints, with all that Spark logs."""
    command = [str(side_environment("connect")), str(PROJECT / "run.py")]
    inherited = {name: value for name, value in python_environment().items() if not name.startswith("PYSPARK_")}
    environment = {**inherited, "SPARK_TESTING": "a free port"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_pipeline_that_runs_twice_has_each_message_once_in_each_table_and_in_the_sink(output: str) -> None:
    [shown] = [one.text.splitlines() for one in blocks(PAGE) if one.language == "text"]
    assert [line for line in output.splitlines() if line in set(shown)] == shown


def test_a_pipeline_that_follows_the_page_logs_no_warning_of_secrets(output: str) -> None:
    assert "SPARK_SHOWS_SECRETS" not in output


def test_the_page_shows_the_command_and_the_settings_of_the_example() -> None:
    shown = [one.text for one in blocks(PAGE)]
    run, specification = (PROJECT / "run.py").read_text(), (PROJECT / "spark-pipeline.yml").read_text()
    [command] = [text for text in shown if text.startswith("spark-pipelines ")]
    assert all(word.strip('"') in run for word in command.split())
    [settings] = [text for text in shown if text.startswith("name:")]
    assert all(line in specification for line in settings.splitlines() if "storage" not in line)
