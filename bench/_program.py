"""A program beside a benchmark, in a process group of its own: told what to do, and asked what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from tests.support.spark_protocol.driver import descendants

LONGEST_RUN_SECONDS = 300
_GONE_SECONDS = 8.0
_TAIL_BYTES = 3000


class Program:
    """A program beside this one, in a process group of its own; a context manager that ends all it has started.

    Args:
        name: its file in this folder.
        arguments: its command line.
        plan: its first line of input.
        python: the interpreter, whose environment may have another Spark.
    """

    def __init__(
        self, name: str, *arguments: str, plan: Mapping[str, Any] | None = None, python: str = sys.executable
    ) -> None:
        command = [python, str(Path(__file__).with_name(name)), *arguments]
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                "SPARK_LOCAL_IP": "127.0.0.1",
                **os.environ,
                "PYSPARK_PYTHON": python,
                "PYSPARK_DRIVER_PYTHON": python,
            },
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._input = cast("IO[bytes]", self._process.stdin)
        threading.Thread(target=self._read, daemon=True).start()
        if plan is not None:
            self._tell(plan)

    def reports(self) -> Iterator[dict[str, Any]]:
        """What it prints, one JSON object a line.

        Raises:
            RuntimeError: it ended, or it ran for `LONGEST_RUN_SECONDS`.
        """
        give_up_at = time.monotonic() + LONGEST_RUN_SECONDS
        while time.monotonic() < give_up_at:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=1)
                if not line:
                    raise RuntimeError(f"{self._name} ended: {self._wrote()}")
                yield json.loads(line)
        raise RuntimeError(f"{self._name} gave too little in {LONGEST_RUN_SECONDS} s: {self._wrote()}")

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Tell it a command, one line of JSON, and give its next report."""
        self._tell(command)
        return next(self.reports())

    def _tell(self, command: Mapping[str, Any]) -> None:
        self._input.write(json.dumps(command).encode() + b"\n")
        self._input.flush()

    def cpu_seconds(self) -> float:
        """The processor time of it and of all it has started, so far."""
        return sum(map(cpu_seconds, [self._process.pid, *descendants(self._process.pid)]))

    def memory_bytes(self) -> int:
        """The memory of it and of all it has started; what several of them share counts once."""
        return sum(map(memory_bytes, [self._process.pid, *descendants(self._process.pid)]))

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it and all it has started stand still meanwhile, so that it takes nothing from what is measured."""
        pids = [self._process.pid, *descendants(self._process.pid)]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGSTOP:
                yield

    def close(self) -> None:
        """Kill its process group, and wait for what is left of it: workers and fetchers see it and end."""
        pid = self._process.pid
        left = {(each, _started(each)) for each in descendants(pid)}
        if self._process.poll() is None:
            os.killpg(pid, signal.SIGKILL)
        self._process.wait()
        give_up_at = time.monotonic() + _GONE_SECONDS
        while left := {each for each in left if each[1] and _started(each[0]) == each[1]}:
            time.sleep(0.05)
            if time.monotonic() > give_up_at:
                for each, _ in left:
                    print(f"pid {each} outlived {self._name} by {_GONE_SECONDS:g} s and is killed", flush=True)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
        for stream in (self._input, self._log):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        with cast("IO[bytes]", self._process.stdout) as output:
            for line in output:
                self._lines.put(line)
        self._lines.put(b"")

    def _wrote(self) -> str:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip()


def _started(pid: int) -> str:
    """When a process was started, so that another one with its pid is told apart; empty if it does not run."""
    fields = _stat(pid)
    return "" if not fields or fields[0] == "Z" else fields[19]


def cpu_seconds(pid: int) -> float:
    """The processor time of a process, and of the children that it has seen end."""
    return sum(map(int, _stat(pid)[11:15])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    """The memory of a process, of what it shares its share (proc(5), Pss); 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, behind its name; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []
