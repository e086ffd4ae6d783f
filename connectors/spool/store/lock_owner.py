"""The process that holds something, told apart from every other one (rules R2 and R7)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

__all__ = ["Holder", "start_time"]


def start_time(pid: int) -> int:
    """Return when a process began, in clock ticks since boot; 0 if it is gone or a zombie (proc(5), field 22)."""
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
        """Return the holder that this process is."""
        pid = os.getpid()
        return cls(_machine(), socket.gethostname(), pid, start_time(pid), jvm, start_time(jvm) if jvm else 0)

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine, so that `lives` and `jvm_lives` can be true."""
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
        """Return the holder as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the holder that `to_json` wrote."""
        return cls(**value)


@cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()
