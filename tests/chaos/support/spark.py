"""Spark processes, seen from a fault run: start one, give it queries, kill parts of it, see that nothing is left."""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from tests.chaos.support import processes, spark_job
from tests.chaos.support.cluster import StandaloneCluster
from tests.support.spark_protocol.driver import descendants
from tests.support.spark_protocol.system import child_environment

READY_SECONDS = 60.0
BOOT_SECONDS = 180.0
"""Until a Spark process is ready. No code of ours runs before but `register`: it is the JVM of the driver that starts,
in a cluster along with those of master, workers and executors, on as many processors as the machine has.
"""
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
        cluster: where it runs, unless within its own process.
        extra: what its plans have beside what their trials say; read when a query starts.
        environment: variables that it has beside, or instead of, those of this process; ``PYSPARK_DRIVER_PYTHON`` runs
            the program.
        module: the program, where another version of it has another name.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        cluster: StandaloneCluster | None = None,
        extra: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        module: str = spark_job.__name__,
    ) -> None:
        folder.mkdir(parents=True)
        self._folder, self._cluster, self._extra = folder, cluster, {} if extra is None else extra
        settings = {**settings, **({} if cluster is None else cluster.settings)}
        self._events_path = folder / "events.jsonl"
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **(environment or {})}
        with (folder / "spark.log").open("wb") as log:
            self._process = subprocess.Popen(
                [python["PYSPARK_DRIVER_PYTHON"], "-m", module, str(self._events_path), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**child_environment(), "SPARK_LOCAL_IP": "127.0.0.1", **python},
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
        """The driver's process and all below it, with all that its cluster runs."""
        elsewhere = self._cluster.processes() if self._cluster is not None else []
        return [self.pid, *descendants(self.pid), *elsewhere]

    def find(self, victim: str) -> list[int]:
        """The processes of a kind: see `processes.VICTIMS` and, of a cluster, `StandaloneCluster`."""
        cluster = self._cluster
        if cluster is None or victim == "driver":
            return processes.find(self.pid, victim)
        if victim in {"machine", "decommission"}:
            return cluster.machines
        if victim == "allocation":
            return cluster.released()
        if victim == "fetching_executor":
            return [pid for pid in cluster.executors() if processes.beside(pid)]
        return [pid for pid in self.processes() if processes.VICTIMS[victim](pid)]

    def strike(self, victim: str, pid: int) -> None:
        """Let happen to a process that `find` gave what its kind says: it is killed, or its whole machine is."""
        if victim == "machine" and self._cluster is not None:
            self._cluster.lose(pid)
        elif victim == "decommission" and self._cluster is not None:
            self._cluster.decommission(pid)
        elif victim != "allocation":  # which has gone by itself
            processes.kill(pid, group=victim == "driver")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind so far."""
        return [event for event in spark_job.entries(self._events_path) if event["event"] == kind]

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

    def version(self) -> str:
        """Wait until the process is ready; return the version of its Spark."""
        self.wait_for("Spark is ready", lambda: bool(self.events("ready")), BOOT_SECONDS)
        return str(self.events("ready")[0]["spark"])

    def run(self, plan: Mapping[str, Any]) -> None:
        """Start a query and wait until it has started; see `spark_job.start_query` for the plan."""
        self.wait_for("Spark is ready", lambda: bool(self.events("ready")), BOOT_SECONDS)
        before = len(self.events("started"))
        self._send({"run": {**plan, **self._extra}})
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
        cluster: where they run, unless within themselves.
        environment: as for `SparkJob`.

    Attributes:
        extra: what all plans have beside what their trials say.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] = MappingProxyType({}),
        cluster: StandaloneCluster | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder, self._cluster, self._environment = folder, cluster, environment
        self._settings = dict(settings)
        self.extra: dict[str, Any] = {}
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
        folder = self._folder / f"spark-{self._started}"
        self._job = SparkJob(folder, self._settings, self._cluster, self.extra, self._environment)
        return self._job

    def strike(self, victim: str, choose: random.Random, patience: float) -> dict[int, str]:
        """Kill a process of a kind; with the driver or its JVM gone there is a new Spark process.

        Args:
            victim: the kind; see `SparkJob.find`.
            choose: which of several.
            patience: at most so many seconds there may be none: a worker lives only while there are tasks.

        Returns:
            What should have ended with it and still runs.
        """
        job = self.current
        found: list[int] = []
        job.wait_for(f"a victim: {victim}", lambda: bool(found.extend(job.find(victim)) or found), patience)
        pid = choose.choice(sorted(found))
        whole = victim in {"jvm", "driver"}
        below = job.processes() if whole else [pid, *processes.descendants(pid)]
        job.strike(victim, pid)
        if whole:
            # The next one starts while the remains of this one end, as under a supervisor.
            self.replace()
            job.reap()
        return processes.still_running(below, GONE_SECONDS)

    def discard(self) -> None:
        """Kill the process that lives, if there is one: nobody knows what state it is in."""
        if self._job is not None:
            self._job.kill()


def first_line(error: str) -> str:
    """What the error of a query says first, without the ids of the query."""
    return re.sub(r" Query \[id = .*?\]", " Query", error.strip().splitlines()[0])[:_ERROR_SHOWN]
