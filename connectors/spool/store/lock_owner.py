"""Who holds something: one process of one machine, told apart from every other (rules R2 and R7)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

__all__ = ["Holder", "LockedFolder", "start_time"]


def start_time(pid: int) -> int:
    """When a process began, in clock ticks since boot; 0 if it is gone or a zombie (proc(5), field 22)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in {"Z", "X"} else int(fields[19])


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, and the JVM it belongs to.

    Attributes:
        machine: the boot of the machine and the name space of its pids; two containers of one machine differ.
        host: its name, for people.
        pid, start: of the process.
        jvm, jvm_start: of Spark's driver, or of whatever it belongs to; 0 if that does not matter.
    """

    machine: str
    host: str
    pid: int
    start: int
    jvm: int = 0
    jvm_start: int = 0

    @classmethod
    def this_process(cls, jvm: int = 0) -> Self:
        """The holder that this process is."""
        pid = os.getpid()
        return cls(_machine(), socket.gethostname(), pid, start_time(pid), jvm, start_time(jvm) if jvm else 0)

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine, so that it can be looked at."""
        return self.machine == _machine()

    @property
    def lives(self) -> bool:
        """Whether the process lives; False if it is of another machine."""
        return self.is_here and start_time(self.pid) == self.start

    @property
    def jvm_lives(self) -> bool:
        """Whether its JVM lives; False if it is of another machine."""
        return self.is_here and self.jvm_start != 0 and start_time(self.jvm) == self.jvm_start

    def to_json(self) -> dict[str, Any]:
        """The holder as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The holder that `to_json` wrote."""
        return cls(**value)


class LockedFolder:
    """A folder whose lock this process has."""

    def __init__(self, path: str, lock: int) -> None:
        self._path = path
        self._lock = lock

    def is_present(self) -> bool:
        """Whether the folder that was locked is still there under its name."""
        try:
            found = Path(self._path).lstat()
        except FileNotFoundError:
            return False
        held = os.fstat(self._lock)
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._lock)


@cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()
