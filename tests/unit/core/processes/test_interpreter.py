"""Nothing of the present folder runs in the processes that the pack starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.cli.protos import build_descriptor_set
from connectors.core.processes.interpreter import (
    probe_command,
    python_command,
    python_environment,
    without_present_folder,
)
from connectors.core.session import python_fault
from connectors.kafka.native import native_reason
from connectors.testing.process import ServerProcess, start_bound_process
from tests.support.spark_protocol.worker import TaskWorkers

TRAPPED = ("json", "connectors", "grpc_tools", "numpy", "socket", "pyarrow", "contextlib", "signal", "ctypes", "types")
"""What one of the programs imports, and the standard library of a fresh Python has not loaded yet."""


@pytest.fixture
def sprung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A present folder with modules that note that they ran; returns what has."""
    folder, notes = tmp_path / "present", tmp_path / "notes"
    folder.mkdir()
    for name in TRAPPED:
        (folder / name).mkdir()
        note = f"open({str(notes)!r}, 'a').write({name!r} + '\\n')\nraise SystemExit('a trap ran')\n"
        (folder / name / "__init__.py").write_text(note)
    monkeypatch.chdir(folder)
    return lambda: notes.read_text().split() if notes.exists() else []


def test_the_traps_work(sprung: Callable[[], list[str]]) -> None:
    for words in (["-c", "import json"], ["-m", "connectors.cli"]):
        subprocess.run([sys.executable, *words], capture_output=True, check=False)
    assert len(sprung()) == 2


def test_protos_build_runs_nothing_of_the_present_folder(sprung: Callable[[], list[str]], tmp_path: Path) -> None:
    Path("x.proto").write_text('syntax = "proto3"; message X {}')
    assert build_descriptor_set(Path(), tmp_path / "x.desc", [], []) == (1, "")
    assert sprung() == []


def test_the_check_of_kafkas_fast_path_passes_beside_modules_of_the_same_names(
    sprung: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # no verdict is stored there yet
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])  # as in a worker of Spark, which -m has started
    native_reason.cache_clear()
    try:
        assert native_reason() == ""
    finally:
        native_reason.cache_clear()
    assert sprung() == []


def test_the_check_of_the_workers_python_finds_modules_of_the_present_folder_and_runs_none(
    sprung: Callable[[], list[str]],
) -> None:
    python_fault.cache_clear()
    assert python_fault(sys.executable, is_local=True) == ""
    done = subprocess.run(probe_command(sys.executable, "import json"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sprung() == []


def test_servers_for_tests_start_beside_modules_of_the_same_names(sprung: Callable[[], list[str]]) -> None:
    with ServerProcess("connectors.testing.pubsub", ["--port", "0"]) as server:
        assert server.endpoint
    assert start_bound_process(["/bin/true"]).wait() == 0
    TaskWorkers(1).close()
    assert sprung() == []


def test_a_child_finds_the_pack_and_what_this_process_finds_but_not_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert without_present_folder(["", str(tmp_path), ".", "/elsewhere"]) == ["/elsewhere"]
    monkeypatch.setenv("PYTHONPATH", f":{tmp_path / 'kept'}:")
    program = "import sys, connectors; print(*sys.path)"
    done = subprocess.run(
        python_command("-c", program), env=python_environment(), capture_output=True, text=True, check=True
    )
    paths = done.stdout.split()
    assert str(tmp_path / "kept") in paths
    assert str(tmp_path) not in paths
