"""Reports of a fetcher to its parent: lines of JSON, sent by a thread of their own, so that nobody has to wait."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from typing import Any

__all__ = ["Reporter"]

_MOST_WAITING = 10_000
_FLUSH_TIMEOUT = 0.3


class Reporter:
    """Writes reports to a pipe.

    A parent that does not read loses reports, and nothing else: the segments themselves are in the spool.

    Args:
        descriptor: the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._write, name="report", daemon=True)
        self._thread.start()

    def send(self, kind: str, value: Any) -> None:
        """Send one report; it is dropped if too many wait."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(json.dumps({kind: value}).encode() + b"\n")

    def close(self) -> None:
        """Send what waits, if the parent reads."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(_FLUSH_TIMEOUT)

    def _write(self) -> None:
        # A broken pipe: the parent is gone, which standard input says too.
        with contextlib.suppress(OSError):
            while (line := self._lines.get()) is not None:
                while line:
                    line = line[os.write(self._descriptor, line) :]
