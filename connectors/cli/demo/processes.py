"""The process of the queries, and what a demonstration kills of it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from connectors.cli.demo.count import Attempt
from connectors.cli.demo.job import ERROR_NAME, LOG_NAME
from connectors.cli.demo.plan import Query
from connectors.core.errors import ConnectorError
from connectors.core.processes.interpreter import python_command, python_environment
from connectors.core.processes.table import PROCESSES, processes_below, start_time

_LOG_SHOWN = 2000
_END_SECONDS = 90.0
_FETCHERS_SECONDS = 15.0
_CODED = re.compile(r"connectors\.core\.errors\.\w+: (\[[A-Z_]+\] .*)")
VICTIMS = ("driver", "source", "worker")
"""The driver with its JVM and all its process group; the process of a source; a Python worker."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Whom to kill after which share of the messages, and once it is done, after how many rows and seconds.

    ``held`` is between the write of a batch and Spark's record of it.
    """

    victim: str
    share: float
    held: bool
    rows: int = 0
    seconds: float = 0.0


def planned_kills(seed: int, kills: int) -> list[Kill]:
    """Return the kills of a seed: the kinds in turn, the driver first, over the first four fifths of the rows."""
    choose = random.Random(seed)  # noqa: S311 - repeatable is what it has to be
    planned: list[Kill] = []
    kinds: list[str] = []
    for number in range(kills):
        if not kinds:
            kinds = [VICTIMS[0], *choose.sample(VICTIMS[1:], len(VICTIMS) - 1)]
        victim = kinds.pop(0)
        share = (number + choose.uniform(0.3, 0.9)) / kills * 0.8
        planned.append(Kill(victim, round(share, 3), held=victim == "driver"))
    return planned


class QueryProcess:
    """Starts the process of the queries, kills parts of it, and ends it."""

    def __init__(self, folder: Path, queries: Sequence[Query], restarts: int, run: str) -> None:
        self._folder = folder
        self._plan: dict[str, Any] = {"folder": str(folder), "restarts": restarts, "run": run}
        self._plan["queries"] = [asdict(query) for query in queries]
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: set[int] = set()

    def start(self, failpoints: str = "") -> None:
        environment = {**python_environment(), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environment["CONNECTORS_FAILPOINTS"] = failpoints
        with (self._folder / "query.log").open("ab") as log:
            self._process = subprocess.Popen(
                python_command("-m", "connectors.cli.demo.job"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(self._plan).encode() + b"\n")
            self._process.stdin.flush()

    def strike(self, victim: str, choose: random.Random) -> bool:
        """Kill a process of a kind, and restart a killed driver; return False if none of the kind runs now."""
        if victim == "driver":
            self.kill()
            self.start()
            return True
        from connectors.core.processes.spark import COMMAND_LINES  # noqa: PLC0415 - imports pyspark

        pids = _find(self._process.pid, COMMAND_LINES[victim]) if self._process is not None else []
        if victim == "worker":  # Spark's daemon forks them
            parents = PROCESSES.parents()
            pids = [pid for pid in pids if parents.get(pid) in pids]
        if not pids:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(choose.choice(sorted(pids)), signal.SIGKILL)
        return True

    def kill(self) -> None:
        """Kill the process and its JVM immediately, as a crash of the driver's machine would."""
        if self._process is not None:
            self._killed.update(_find(self._process.pid, ""))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None

    def end(self) -> None:
        """Kill the process, and wait until its fetchers, which end without it, have left the folder."""
        self.kill()
        give_up_at = time.monotonic() + _FETCHERS_SECONDS
        while any(map(start_time, self._killed)) and time.monotonic() < give_up_at:
            time.sleep(0.05)

    def finish(self) -> None:
        """Let the queries end after the rows that are there."""
        (self._folder / "stop").touch()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            self.check(expected=0)
        self.kill()

    def check(self, expected: int | None = None) -> None:
        """Raise what ended the process, unless it still runs or has ended with the expected code."""
        if self._process is None or self._process.poll() in {None, expected}:
            return
        path = self._folder / "query.log"
        error = self._folder / ERROR_NAME
        text = error.read_text(errors="replace") if error.exists() else path.read_text(errors="replace")
        coded = _CODED.search(text)
        ending = f" with code {self._process.returncode}; its log ends: ...{text[-_LOG_SHOWN:]}"
        why = f": {coded[1]}" if coded else ending
        raise ConnectorError("DEMO_QUERY_ENDED", f"The query ended{why}", str(path))

    def attempts(self, query: Query) -> list[Attempt]:
        """Return the writes of a query so far, in the order of time."""
        try:
            lines = (self._folder / query.name / LOG_NAME).read_text().splitlines()
        except FileNotFoundError:
            return []
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}")]
        return [Attempt(**entry) for entry in entries]


def _find(root: int, text: str) -> list[int]:
    """Return the processes below one whose command line has a text."""
    return [pid for pid in processes_below(root) if text in " ".join(PROCESSES.arguments(pid))]
