"""Spark processes, seen from a fault run: start one, give it queries, kill parts of it, see that nothing is left."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from connectors.testing.spark_protocol.driver import descendants
from connectors.testing.spark_protocol.system import child_environment
from tests.chaos.support import processes, spark_job

READY_SECONDS = 60.0
GONE_SECONDS = 10.0
"""What belongs to a dead driver is gone this long after it: the source waits at most 2 s, its fetchers 5 s more."""

_POLL_SECONDS = 0.02
_LOG_SHOWN = 3000
_ERROR_SHOWN = 200


class SparkJob:
    """One Spark process; it runs one query after the other until it is killed or closed.

    Args:
        folder: for its log and temporary files; one job a folder.
        settings: of its session.
        environment: variables that it has beside, or instead of, those of this process.
        module: the program, where another version of it has another name.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
        module: str = spark_job.__name__,
    ) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._events_path = folder / "events.jsonl"
        with (folder / "spark.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(self._events_path), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={
                    **child_environment(),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_PYTHON": sys.executable,
                    "PYSPARK_DRIVER_PYTHON": sys.executable,
                    **(environment or {}),
                },
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the driver's process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the driver's process runs."""
        return self._process.poll() is None

    def processes(self) -> list[int]:
        """The driver's process and all below it."""
        return [self.pid, *descendants(self.pid)]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind so far."""
        with contextlib.suppress(FileNotFoundError):
            lines = self._events_path.read_text().splitlines()
            return [event for event in map(json.loads, lines) if event["event"] == kind]
        return []

    def wait_for(self, what: str, condition: Callable[[], bool], timeout: float) -> None:
        """Wait until a condition holds.

        Raises:
            AssertionError: it did not hold in so many seconds, or the process ended before; has the end of its log.
        """
        end = time.monotonic() + timeout
        while not condition():
            assert self.alive, f"the Spark process ended while this was waited for: {what}; its log: {self._log()}"
            assert time.monotonic() < end, f"not in {timeout} s: {what}; Spark's log: {self._log()}"
            time.sleep(_POLL_SECONDS)

    def run(self, plan: Mapping[str, Any]) -> None:
        """Start a query and wait until it has started; see `spark_job.start_query` for the plan."""
        self.wait_for("Spark is ready", lambda: bool(self.events("ready")), READY_SECONDS)
        before = len(self.events("started"))
        self._send({"run": plan})
        self.wait_for("the query starts", lambda: len(self.events("started")) > before, READY_SECONDS)

    def stop_query(self) -> None:
        """Stop the query that runs."""
        before = len(self.events("stopped"))
        self._send({"stop": True})
        self.wait_for("the query stops", lambda: len(self.events("stopped")) > before, READY_SECONDS)

    def query_errors(self) -> list[str]:
        """The errors with which queries ended by themselves, of all queries of this process."""
        return [event["error"] for event in self.events("query_ended")]

    def reap(self) -> None:
        """Take note of the end of a process that was killed, or whose JVM was; it gets ten seconds to go."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GONE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process, its JVM and all that is in its group."""
        if self.alive:
            processes.kill(self.pid, group=True)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def close(self) -> None:
        """End it in an orderly way."""
        if self.alive:
            with contextlib.suppress(BrokenPipeError):
                self._send({"end": True})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(READY_SECONDS)
        self.kill()

    def _send(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def _log(self) -> str:
        return (self._folder / "spark.log").read_text(errors="replace")[-_LOG_SHOWN:]


class SparkJobs:
    """One Spark process after the other: a warm one is used as long as it lives. A context manager.

    Args:
        folder: gets a folder for each.
        settings: of all their sessions.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._folder = folder
        self._settings = dict(settings)
        self._started = 0
        self._job: SparkJob | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._job is not None:
            if error is None:
                self._job.close()
            else:
                self._job.kill()

    @property
    def current(self) -> SparkJob:
        """The process that lives; a new one if there is none."""
        if self._job is None or not self._job.alive:
            return self.replace()
        return self._job

    def replace(self) -> SparkJob:
        """A new process, whatever becomes of the one before."""
        self._started += 1
        self._job = SparkJob(self._folder / f"spark-{self._started}", self._settings)
        return self._job

    def discard(self) -> None:
        """Kill the process that lives, if there is one: nobody knows what state it is in."""
        if self._job is not None:
            self._job.kill()


def first_line(error: str) -> str:
    """What the error of a query says first, without the ids of the query."""
    return re.sub(r" Query \[id = .*?\]", " Query", error.strip().splitlines()[0])[:_ERROR_SHOWN]
