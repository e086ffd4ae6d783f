"""The processes of a Spark application that a fault run kills, found by their command lines."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support.spark_protocol.driver import descendants, is_running

_POLL_SECONDS = 0.005


def command_line(pid: int) -> str:
    """The command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def parent(pid: int) -> int:
    """The parent of a process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def describe(pid: int) -> str:
    """Its pid, command line, and what it does: state, parent, age in seconds, where it waits in the kernel."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        threads = sorted((each / "wchan").read_text() for each in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return f"{pid} {command_line(pid)}"
    return f"{pid} {command_line(pid)}state={fields[0]} parent={fields[1]} age={age:.1f} waits={','.join(threads)}"


def _named(text: str) -> Callable[[int], bool]:
    return lambda pid: text in command_line(pid)


def _is_task_worker(pid: int) -> bool:
    """Forked by Spark's daemon; the daemon itself has the JVM as its parent."""
    return "pyspark.daemon" in command_line(pid) and "pyspark.daemon" in command_line(parent(pid))


VICTIMS: dict[str, Callable[[int], bool]] = {
    "jvm": _named("org.apache.spark.deploy.SparkSubmit"),
    "source_runner": _named("python_streaming_source_runner"),
    "fetcher": _named("connectors.spool.fetching.process"),
    "worker": _is_task_worker,
    "executor": _named("CoarseGrainedExecutorBackend"),
}
"""How each kind of process below a driver is told; ``driver`` is the driver with its whole process group."""


def find(driver: int, victim: str) -> list[int]:
    """The processes of a kind below a driver; for ``driver`` the driver itself."""
    return [driver] if victim == "driver" else [pid for pid in descendants(driver) if VICTIMS[victim](pid)]


def beside(executor: int) -> list[int]:
    """The processes that fetch beside an executor, which are not below it."""
    text = f"connectors.spool.fetching.detached {executor} "
    found = [int(path.name) for path in Path("/proc").glob("[0-9]*") if text in command_line(int(path.name))]
    return [pid for each in found for pid in (each, *descendants(each))]


def kill(pid: int, *, group: bool = False) -> None:
    """SIGKILL a process, or its whole group, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def still_running(pids: Iterable[int], timeout: float) -> dict[int, str]:
    """Wait until processes are gone; what those are and do that run when the time is over."""
    end = time.monotonic() + timeout
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    return {pid: describe(pid) for pid in left}
