"""What the system tells about other processes: when one started, its parent, its program and its arguments.

Linux has it in ``/proc``. Elsewhere, as on a Mac, the command ``ps`` tells the same.
"""

from __future__ import annotations

import calendar
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_PS: Final = "/bin/ps"
_DATE_WORDS: Final = 5
_DATE_FORMAT: Final = "%a %b %d %H:%M:%S %Y"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs now.

    Attributes:
        start: when it started: in clock ticks since boot by ``/proc``, in seconds of Unix time by ``ps``.
        parent: the id of its parent.
        program: the name of its program, without folders.
    """

    start: int
    parent: int
    program: str


class ProcFolder:
    """The processes as Linux shows them in ``/proc``; see proc(5)."""

    def find(self, pid: int) -> Process | None:
        """Return a process; None if it is gone or a zombie."""
        try:
            name, _, text = Path(_PROC, str(pid), "stat").read_text(errors="replace").rpartition(")")
        except OSError:
            return None
        fields = text.split()
        return None if fields[0] in {"Z", "X"} else Process(int(fields[19]), int(fields[1]), name.partition("(")[2])

    def arguments(self, pid: int) -> list[str]:
        try:
            data = Path(_PROC, str(pid), "cmdline").read_bytes()
        except OSError:
            return []
        return data.decode(errors="replace").removesuffix("\0").split("\0") if data else []

    def parents(self) -> dict[int, int]:
        """Return the parent of each process that is no zombie."""
        pids = [int(path.name) for path in _PROC.glob("[0-9]*")]
        return {pid: process.parent for pid in pids if (process := self.find(pid)) is not None}


class PsCommand:
    """The processes as the command ``ps`` lists them: POSIX, and the time of a start as BSD and Linux write it."""

    def find(self, pid: int) -> Process | None:
        """Return a process; None if it is gone or a zombie."""
        words = _ps("-o", "lstart=", "-o", "ppid=", "-o", "stat=", "-o", "comm=", "-p", str(pid)).split(
            maxsplit=_DATE_WORDS + 2
        )
        if pid <= 0 or len(words) < _DATE_WORDS + 3 or words[_DATE_WORDS + 1].startswith("Z"):
            return None
        start = calendar.timegm(time.strptime(" ".join(words[:_DATE_WORDS]), _DATE_FORMAT))
        return Process(start, int(words[_DATE_WORDS]), Path(words[_DATE_WORDS + 2].strip()).name)

    def arguments(self, pid: int) -> list[str]:
        """Return the words of a command line; an argument with spaces is several."""
        return _ps("-ww", "-o", "args=", "-p", str(pid)).split()

    def parents(self) -> dict[int, int]:
        """Return the parent of each process that is no zombie."""
        lines = [line.split() for line in _ps("-A", "-o", "pid=", "-o", "ppid=", "-o", "stat=").splitlines()]
        return {int(pid): int(parent) for pid, parent, state in lines if not state.startswith("Z")}


def _ps(*arguments: str) -> str:
    """Return what ``ps`` prints, in plain English and UTC; empty if it finds no process."""
    environment = {"LC_ALL": "C", "TZ": "UTC0"}
    return subprocess.run(
        [_PS, *arguments], env=environment, capture_output=True, check=False, text=True, errors="replace"
    ).stdout


def _system() -> ProcFolder | PsCommand:
    try:
        Path(_PROC, "self", "stat").read_bytes()
    except OSError:
        return PsCommand()
    return ProcFolder()


PROCESSES: Final = _system()
"""The processes of this system."""


def start_time(pid: int) -> int:
    """Return when a process started, as `Process.start` has it; 0 if it is gone or a zombie."""
    process = PROCESSES.find(pid)
    return 0 if process is None else process.start


def processes_below(root: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    parents, below = PROCESSES.parents(), {root}
    while more := {pid for pid, parent in parents.items() if pid not in below and parent in below}:
        below |= more
    return sorted(below)
