"""A reader process that is forked is what a started one would be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.facts_source import FactsSource, facts_of
from tests.support.spark_protocol.driver import InProcessWorkers, ReaderProcess
from tests.support.spark_protocol.system import child_environment


def reader(**settings: Any) -> ReaderProcess:
    made = InProcessWorkers().create(FactsSource, {}, None)
    return ReaderProcess(made.pickled, made.schema, **settings)


def facts(**settings: Any) -> dict[str, Any]:
    process = reader(**settings)
    try:
        found = facts_of(process.initial_offset())
        assert found["pid"] == process.pid
    finally:
        process.stop()
    return found


def test_it_runs_the_runner_of_pyspark_as_its_program() -> None:
    found = facts()
    assert (found["main"], found["arguments"]) == ("pyspark.sql.streaming.python_streaming_source_runner", [])


def test_its_environment_folder_and_import_path_are_those_of_the_moment_of_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts()  # the process that forks it is older than the changes
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SET_LATER", "by the driver")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "more")])
    found = facts(environment={"SET_BY_THE_TEST": "yes"})
    assert found["environment"].pop("PYTHON_WORKER_FACTORY_SOCK_PATH")
    expected = child_environment({"SET_BY_THE_TEST": "yes"})
    for environment in (found["environment"], expected):
        environment.pop("SPARK_BUFFER_SIZE", None)  # which PySpark sets, here too when a session began here before
    assert found["environment"] == expected
    assert found["folder"] == str(tmp_path)
    assert str(tmp_path / "more") in found["paths"]
    assert "SET_BY_THE_TEST" not in facts()["environment"]
