"""What the protocol driver asks of the operating system: environments, process trees, memory, output of children."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from connectors.core.processes.table import PROCESSES, processes_below
from tests.support.spark_protocol.errors import ProtocolError

__all__ = ["OutputReader", "child_environment", "descendants", "is_running", "resident_bytes"]

_FAILPOINTS = "CONNECTORS_FAILPOINTS"


def child_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this process's, its import path, no failpoints of its own, then the changes."""
    environment = {key: value for key, value in os.environ.items() if key != _FAILPOINTS}
    environment["PYTHONPATH"] = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment["PYTHONUNBUFFERED"] = "YES"
    return environment | dict(changes or {})


def resident_bytes(pid: int) -> int:
    """The memory that a process holds, in bytes (RSS); 0 when it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return PROCESSES.find(pid) is not None


def descendants(pid: int) -> list[int]:
    """The living processes below a process, at any depth; ask before it dies, because orphans get another parent."""
    return [below for below in processes_below(pid) if below != pid]


class OutputReader:
    """Reads what a process writes, line by line, until it is closed; so the process never waits for a reader."""

    def __init__(self, output: IO[bytes] | None, lines: deque[str]) -> None:
        if output is None:
            raise ProtocolError("the reader process was started without a pipe for its output")
        self._output = output
        self._lines = lines
        self._rest = b""
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="reader-output", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        descriptor = self._output.fileno()
        closing = False
        chunks_left = 64  # a child of the process may hold the pipe and write on
        while chunks_left:
            ready, _, _ = select.select([descriptor, self._wake_read], [], [], 0 if closing else None)
            closing = closing or self._wake_read in ready
            if (descriptor not in ready and closing) or (descriptor in ready and not self._take(descriptor)):
                return
            chunks_left -= closing

    def _take(self, descriptor: int) -> bool:
        data = os.read(descriptor, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(line.decode(errors="replace") for line in lines)
        return bool(data)

    def close(self) -> None:
        """Take what was written so far, then close the pipe."""
        if self._wake_write >= 0:
            os.close(self._wake_write)
            self._wake_write = -1
            self._thread.join()
            os.close(self._wake_read)
            self._output.close()
            if self._rest:
                self._lines.append(self._rest.decode(errors="replace"))
