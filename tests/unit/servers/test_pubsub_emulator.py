"""The official emulator is found where the documentation says, and a program bound to another dies with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.core.errors import ServiceUnavailableError
from connectors.testing.process import ServerProcess
from tests.support.waiting import wait_for

SERVER = """
import signal, subprocess, sys, time
from connectors.testing.process import announce, on_parent_death, on_termination, start_bound_process
import threading
ending = threading.Event()
on_termination(ending.set)
on_parent_death(ending.set)
child = start_bound_process(["/bin/sleep", "600"], by_kernel=sys.argv[1] == "by-kernel")
announce(str(child.pid))
ending.wait()
child.kill()
child.wait()
"""


@pytest.fixture
def bound_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module that starts a bound program, and announces its pid in place of an endpoint."""
    (tmp_path / "bound_program.py").write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    return "bound_program"


def wait_until_gone(pid: int) -> None:
    wait_for(lambda: not is_running(pid), 10)


def is_running(pid: int) -> bool:
    """True while the process lives; a zombie that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class TestProcesses:
    @pytest.mark.parametrize("way", ["by-kernel", "by-watch"])
    def test_bound_program_dies_when_its_supervisor_is_killed(self, bound_program: str, way: str) -> None:
        if way == "by-kernel" and sys.platform != "linux":
            pytest.skip("only Linux has it")
        supervisor = ServerProcess(bound_program, [way])
        pid = int(supervisor.endpoint)
        # Only the supervisor: the bound program is in a group of its own.
        os.kill(supervisor.pid, 9)
        wait_until_gone(pid)
        supervisor.stop()

    def test_all_end_when_the_user_is_killed(self, bound_program: str) -> None:
        code = (
            "from connectors.testing.process import ServerProcess\n"
            f"server = ServerProcess({bound_program!r}, ['by-watch'])\n"
            "print(server.pid, server.endpoint, flush=True)\n"
            "import time; time.sleep(600)\n"
        )
        user = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert user.stdout is not None
        pids = [int(pid) for pid in user.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_running(pid) for pid in pids)
        user.kill()
        user.communicate()
        for pid in pids:
            wait_until_gone(pid)

    def test_program_that_never_listens_is_ended(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "silent_program.py").write_text("import time\ntime.sleep(600)\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(ServiceUnavailableError, match="did not listen within"):
            ServerProcess("silent_program", [], start_timeout=0.5)
