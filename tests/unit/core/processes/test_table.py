"""What other processes are, by ``/proc`` and by ``ps``."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from connectors.core.processes.interpreter import python_command
from connectors.core.processes.table import PROCESSES, ProcFolder, PsCommand, processes_below, start_time
from tests.support.waiting import wait_for

GONE = 4_000_000  # above the most that Linux gives by default
SYSTEMS = [PsCommand(), PROCESSES] if isinstance(PROCESSES, ProcFolder) else [PsCommand()]
System = ProcFolder | PsCommand


@pytest.fixture(params=SYSTEMS, ids=lambda system: type(system).__name__)
def system(request: pytest.FixtureRequest) -> System:
    return request.param


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(python_command("-c", "import time; time.sleep(600)", "a word", "")) as process:
        yield process
        process.kill()


def test_a_process_has_a_start_a_parent_and_a_program(system: System, child: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: "time.sleep" in " ".join(system.arguments(child.pid)), 10)
    process = system.find(child.pid)
    assert process is not None
    assert process.parent == os.getpid()
    assert process.program.startswith("python")
    assert process.start > 0
    assert system.parents()[child.pid] == os.getpid()


def test_the_words_of_a_command_line_come_in_order(system: System, child: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: "time.sleep" in " ".join(system.arguments(child.pid)), 10)
    arguments = " ".join(system.arguments(child.pid))
    assert arguments.rstrip().endswith("-P -c import time; time.sleep(600) a word")


@pytest.mark.parametrize("pid", [GONE, 0, -1])
def test_a_process_that_is_not_there_is_none(system: System, pid: int) -> None:
    assert system.find(pid) is None
    assert system.arguments(GONE) == []


def test_a_zombie_is_gone(system: System, child: subprocess.Popen[bytes]) -> None:
    child.kill()
    wait_for(lambda: system.find(child.pid) is None, 10)
    assert child.pid not in system.parents()
    assert child.poll() is not None, "nobody has waited for it before"


def test_ps_gives_the_seconds_of_the_start() -> None:
    before = time.time()
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        found = PsCommand().find(process.pid)
        process.kill()
    assert found is not None
    assert before - 2 <= found.start <= time.time() + 2, "Linux's ps reckons it from the time of the boot"


def test_processes_below_one_are_its_children_and_theirs() -> None:
    program = "import subprocess, sys; subprocess.Popen(['/bin/sleep', '600']).wait()"
    with subprocess.Popen(python_command("-c", program)) as process:
        wait_for(lambda: len(processes_below(process.pid)) == 2, 10)
        below = processes_below(process.pid)
        assert process.pid in below
        for pid in below:
            assert start_time(pid)
            os.kill(pid, 9)
