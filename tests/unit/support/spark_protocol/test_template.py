"""A reader process that is forked is what a started one would be."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.facts_source import FactsSource, facts_of
from tests.support.spark_protocol.driver import InProcessWorkers, ReaderProcess
from tests.support.spark_protocol.system import child_environment
from tests.support.spark_protocol.template import ForkedProcess, fork_reader


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


@pytest.fixture
def forked(tmp_path: Path) -> Iterator[ForkedProcess]:
    """A reader that waits for the other side of its socket."""
    address = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(1)
        with ended(fork_reader(child_environment({"PYTHON_WORKER_FACTORY_SOCK_PATH": address}))) as process:
            yield process


@contextlib.contextmanager
def ended(process: ForkedProcess) -> Iterator[ForkedProcess]:
    """Kill it at the end."""
    with process.stdin, process.stdout:
        yield process
        process.kill()
        process.wait(60)


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


def test_it_has_its_pipes_and_its_socket_and_nothing_of_the_process_that_forked_it() -> None:
    found = facts()
    assert found["standard"] == ["pipe", "pipe", "pipe"]
    assert len(found["descriptors"]) == 5, "three pipes, the socket, and the folder that is listed"
    assert found["interrupt"]


def test_when_the_process_that_forks_is_killed_the_next_reader_has_another_one() -> None:
    first = reader()
    parent = parent_of(first.pid)
    os.kill(parent, signal.SIGKILL)
    second = reader()  # at once: nobody has seen yet that it ended
    first.hang_up()
    try:
        assert parent_of(second.pid) != parent
    finally:
        second.stop()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
