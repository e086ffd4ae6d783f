"""A standalone cluster of Spark on this machine: a master and workers, each a process, as pip installs them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from connectors.testing.process import start_bound_process
from tests.chaos.support import processes
from tests.chaos.support.record import ROOT
from tests.servers.java import free_ports
from tests.support import quick_java
from tests.support.spark_protocol.driver import descendants

WORKERS = 2

_CORES = 4
_EXECUTOR_CORES = 2
_LEAST_EXECUTORS, _MOST_EXECUTORS = 2, 4
"""Two that fetch; others come for a while when a job needs them."""
_START_SECONDS = 60.0
_GRACE_SECONDS = 3.0
_DAEMON_OPTIONS = "-Dspark.decommission.enabled=true -Dspark.master.rest.enabled=false"
_DECOMMISSIONED = "DECOMMISSIONED"
_POLL_SECONDS = 0.1
_WATCH_SECONDS = 0.5


class StandaloneCluster:
    """A master and two workers; a context manager that ends them. To be used by the main thread.

    Dynamic allocation and decommissioning are on.

    Args:
        folder: for the logs, and for the executors.
        settings: of the application, beside those that say where the cluster is.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder, self._settings = folder, dict(settings or {})
        self._port, self._page = free_ports(2)
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._seen: set[int] = set()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            place = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page)]
            self._master = self._start("master.Master", *place)
            _wait_for(lambda: bool(self._state()), "the master listens")
            for _ in range(WORKERS):
                self.join()
            self._await_workers(WORKERS)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def settings(self) -> dict[str, str]:
        """What an application in client mode needs to run here."""
        return {
            "spark.master": f"spark://127.0.0.1:{self._port}",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.cores": str(_EXECUTOR_CORES),
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": quick_java.OPTIONS,
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.executorEnv.PYSPARK_PYTHON": sys.executable,
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.minExecutors": str(_LEAST_EXECUTORS),
            "spark.dynamicAllocation.initialExecutors": str(_LEAST_EXECUTORS),
            "spark.dynamicAllocation.maxExecutors": str(_MOST_EXECUTORS),
            "spark.dynamicAllocation.executorIdleTimeout": "5s",
            "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
            "spark.decommission.enabled": "true",
            **self._settings,
        }

    @property
    def machines(self) -> list[int]:
        """The processes of the workers; each stands for a machine."""
        return [pid for pid, worker in self._workers.items() if worker.poll() is None]

    def processes(self) -> list[int]:
        """All that runs on the machines: executors, their Python workers, their fetchers."""
        return [pid for machine in self.machines for pid in self._on(machine)]

    def _on(self, machine: int) -> list[int]:
        below = list(descendants(machine))
        return [*below, *(pid for each in below for pid in processes.beside(each))]

    def executors(self) -> list[int]:
        """The JVMs of the executors."""
        return [pid for pid in self.processes() if processes.VICTIMS["executor"](pid)]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note which executors run meanwhile, for `released`."""
        self._seen.clear()
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_WATCH_SECONDS):
                self.released()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def released(self) -> list[int]:
        """Executors that were seen since `watched` began, and are gone."""
        now = set(self.executors())
        self._seen |= now
        return sorted(self._seen - now)

    def join(self) -> None:
        """Start another worker."""
        self._started += 1
        worker = self._start(
            "worker.Worker",
            *("--host", "127.0.0.1", "--webui-port", "0", "--cores", str(_CORES), "--memory", "4g"),
            *("--work-dir", str(self._folder / f"worker-{self._started}"), f"spark://127.0.0.1:{self._port}"),
        )
        self._workers[worker.pid] = worker

    def lose(self, machine: int) -> None:
        """Kill a worker with all that runs on its machine; another one joins."""
        for pid in (machine, *self._on(machine)):
            processes.kill(pid)
        self._workers.pop(machine).wait()
        self.join()

    def decommission(self, machine: int) -> None:
        """Tell a worker that its machine will go, as a cluster manager does, and lose it when its time is over."""
        before = self._decommissioned()
        os.kill(machine, signal.SIGPWR)
        _wait_for(lambda: self._decommissioned() > before, "the master knows of the decommissioning")
        time.sleep(_GRACE_SECONDS)
        self.lose(machine)

    def stop(self) -> None:
        """End all of it."""
        running = [*self.processes(), *self.machines, *([self._master.pid] if self._master else [])]
        for pid in running:
            processes.kill(pid)
        for process in (*self._workers.values(), *([self._master] if self._master else [])):
            process.wait()

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": f"{quick_java.OPTIONS} {_DAEMON_OPTIONS}",
        }
        words = [f"{name}={value}" for name, value in environment.items()]
        program = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with (self._folder / f"{kind}-{self._started}.log").open("wb") as log:
            return start_bound_process(["/usr/bin/env", *words, *program], stdout=log, stderr=log)

    def _state(self) -> dict[str, Any]:
        """What the master says of the cluster; nothing while it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._page, timeout=5)
        try:
            connection.request("GET", "/json/")
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, json.JSONDecodeError):  # its page may come before its answers
            return {}
        finally:
            connection.close()
        return answer

    def _await_workers(self, count: int) -> None:
        _wait_for(lambda: self._state().get("aliveworkers", 0) >= count, f"{count} workers have joined")

    def _decommissioned(self) -> int:
        return sum(worker["state"] == _DECOMMISSIONED for worker in self._state().get("workers", []))


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _START_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not in {_START_SECONDS} s: {what}"
        time.sleep(_POLL_SECONDS)
