"""``connectors fetch`` as a process: what the tests of external fetchers run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from connectors.core.processes.failpoints import ROLE_VARIABLE
from tests.support.spark_protocol.driver import descendants


class FetchProgram:
    """A running ``connectors fetch pubsub``; a context manager that ends it.

    Args:
        folder: for the file of its options and for its log.
        options: those of the query; they go by file.
        arguments: more arguments.
        environment: more variables.
    """

    def __init__(
        self, folder: Path, options: Mapping[str, str], *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self.options = dict(options)
        self._arguments = arguments
        # Else it would die at what the reader is to die at.
        self._environment = {**os.environ, ROLE_VARIABLE: "program", **(environment or {})}
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.end()

    def start(self) -> None:
        """Start it, once more after its end."""
        file = self._folder / "fetch-options.json"
        file.write_text(json.dumps(self.options))
        with (self._folder / "fetch.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "connectors.cli",
                    "fetch",
                    "pubsub",
                    "--options",
                    str(file),
                    *self._arguments,
                ],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self) -> int:
        """Tell it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def kill(self) -> None:
        """SIGKILL it; its fetchers see that."""
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        """What it and its fetchers have written."""
        return (self._folder / "fetch.log").read_text()

    def wait_for(self, text: str, count: int = 1, timeout: float = 30.0) -> None:
        """Wait until its log has a text so many times; fails if it does not, or if the program ends."""
        deadline = time.monotonic() + timeout
        while self.log.count(text) < count:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.log}"
            time.sleep(0.02)

    def children(self) -> list[int]:
        """The pids of its fetchers."""
        return list(descendants(self.process.pid))
