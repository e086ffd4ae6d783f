"""The demonstration: publish, stream, redeliver on purpose, kill in the middle, restart, and count by ids."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.ipc

from connectors.cli.demo.job import LOG_NAME, sink_files
from connectors.core.diagnostics import reach
from connectors.core.errors import ConnectorError, OptionError, SpoolError
from connectors.core.processes.interpreter import python_command, python_environment
from connectors.spool.admin.survey import stats
from connectors.testing.pubsub import start_server_process
from connectors.testing.pubsub.client import PubSubTestClient, answered

_PROJECT = "demo"
_TOPIC = "orders"
_POLL = 0.2
_PUBLISHERS_BATCH = 500
_REDELIVERED = 0.15
_LOG_SHOWN = 2000
_LARGEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the demonstration does, in an empty folder.

    Attributes:
        endpoint: an emulator to use, ``host:port``; None for the embedded server.
        plant_loss: drop one row from the sink before the count, to show that the count sees it.
        kill_at: the query is killed when this share of the messages is in the sink; above 1 it is not.
        timeout: seconds after which the count is made whatever has arrived.
    """

    folder: Path
    messages: int = 50_000
    endpoint: str | None = None
    plant_loss: bool = False
    kill_at: float = 0.4
    timeout: float = 150.0


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What came of it; lost and doubled are counted by the ids that were published.

    ``rows_per_second`` is the rate while nothing disturbs: without starts, and without the kill.
    """

    published: int
    delivered: int
    duplicates: int
    lost: int
    doubled: int
    rows_per_second: int


@dataclass(slots=True)
class Progress:
    """How far it is: the same object is shown again and again.

    Messages fetched include duplicates, rows are those in the sink, and a failure ends the publishing.
    """

    stage: str = "starting"
    published: int = 0
    fetched: int = 0
    duplicates: int = 0
    rows: int = 0
    uids: list[str] = field(default_factory=list, repr=False)
    failure: ConnectorError | None = None


def run_demo(plan: DemoPlan, show: Callable[[Progress], None]) -> DemoResult:
    """Run the demonstration; ``show`` is called several times a second.

    Raises:
        ConnectorError: the query ended by itself, or the server cannot be reached.
    """
    progress = Progress()
    with contextlib.ExitStack() as stack:
        if plan.endpoint is not None:
            _check_endpoint(plan.endpoint)
            endpoint = plan.endpoint
        else:
            server = stack.enter_context(start_server_process())
            server.redeliver_acked(_REDELIVERED, delay=1.0, to_other_stream=True)
            endpoint = server.endpoint
        subscription = f"demo-{os.getpid()}-{time.time_ns()}"
        client = stack.enter_context(PubSubTestClient(endpoint, _PROJECT))
        topic = f"{_TOPIC}-{subscription}"
        with answered(endpoint):
            client.create(topic, subscription)
        stopped = threading.Event()

        def publish() -> None:
            try:
                with answered(endpoint):
                    _publish(client, topic, plan.messages, progress, stopped)
            except ConnectorError as error:
                progress.failure = error

        publishing = threading.Thread(target=publish, daemon=True)
        options = {
            "projectId": _PROJECT,
            "subscriptionId": subscription,
            "endpoint": endpoint,
            "spoolLocation": str(plan.folder / "spool"),
            "maxRecordsPerTrigger": str(max(plan.messages // 5, 1)),
        }
        query = _Query(plan.folder, options)
        stack.callback(query.kill)
        publishing.start()
        stack.callback(publishing.join)
        stack.callback(stopped.set)
        _watch(plan, progress, show, query)
        publishing.join()
    if progress.failure is not None:
        raise progress.failure
    return _count(plan, progress)


def _check_endpoint(endpoint: str) -> None:
    """Connect to an address, or say why that fails: the client of gRPC would wait long, and then not say it."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _LARGEST_PORT:
        raise OptionError("DEMO_ENDPOINT", "It is not HOST:PORT", endpoint)
    reach(host.strip("[]"), int(port))


def _publish(client: PubSubTestClient, topic: str, messages: int, progress: Progress, stopped: threading.Event) -> None:
    for first in range(0, messages, _PUBLISHERS_BATCH):
        if stopped.is_set():
            return
        uids = [f"order-{number:09d}" for number in range(first, min(first + _PUBLISHERS_BATCH, messages))]
        client.publish(topic, [(f'{{"order": "{uid}"}}'.encode(), {"uid": uid}) for uid in uids])
        progress.uids += uids
        progress.published = len(progress.uids)


class _Query:
    def __init__(self, folder: Path, options: dict[str, str]) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

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
            plan = json.dumps({"folder": str(self._folder), "options": self._options})
            self._process.stdin.write(plan.encode() + b"\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the query and its JVM at once, as a crash of the machine's driver would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._end()

    def finish(self) -> None:
        if self._process is not None:
            (self._folder / "stop").touch()
            self._end()

    def _end(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.wait()
            self._process.stdin.close()
            self._process = None

    def check(self) -> None:
        """Raise what ended the query, if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            log = (self._folder / "query.log").read_text(errors="replace")
            raise ConnectorError(
                "DEMO_QUERY_ENDED",
                f"The query ended with code {self._process.returncode}; the end of its log: ...{log[-_LOG_SHOWN:]}",
                str(self._folder / "query.log"),
            )


def _watch(plan: DemoPlan, progress: Progress, show: Callable[[Progress], None], query: _Query) -> None:
    """Run the query, kill it in the middle, restart it, and end it when all rows have arrived."""
    deadline = time.monotonic() + plan.timeout
    # On an emulator the copies are made by the client: a fetcher dies between durable and ack.
    # It ends in good order, and not by a signal: an emulator goes on to serve the streams of a client that is gone.
    died = plan.folder / "fetcher-died"
    failure = f"raise_once:{died}:{errno.EIO}:4"
    query.start(f"fetcher/fetch.after_publish_before_ack={failure}" if plan.endpoint else "")
    progress.stage = "Spark starts"
    killed, rows_at_kill = False, 0
    while time.monotonic() < deadline:
        query.check()
        if progress.failure is not None:
            raise progress.failure
        _update(progress, plan.folder)
        show(progress)
        if progress.rows and not killed:
            progress.stage = "streaming"
        if not killed and progress.rows >= plan.messages * plan.kill_at:
            query.kill()
            killed = True
            query.start()
            progress.stage = "killed with SIGKILL; Spark starts again"
            rows_at_kill = progress.rows
        elif killed and progress.rows > rows_at_kill:
            progress.stage = "streaming again from the checkpoint"
        if progress.rows >= plan.messages and progress.duplicates:
            break
        time.sleep(_POLL)
    progress.stage = "stopping"
    show(progress)
    query.finish()
    _update(progress, plan.folder)


def _update(progress: Progress, folder: Path) -> None:
    with contextlib.suppress(SpoolError):
        seen = stats(str(folder / "spool"))
        progress.fetched, progress.duplicates = seen.delivered, seen.duplicates
    progress.rows = sum(entry["rows"] for entry in _batches(folder).values())


def _batches(folder: Path) -> dict[int, dict[str, Any]]:
    try:
        lines = (folder / LOG_NAME).read_text().splitlines()
    except FileNotFoundError:
        return {}
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    return {entry["batch"]: entry for entry in entries}


def _count(plan: DemoPlan, progress: Progress) -> DemoResult:
    uids: list[str] = []
    for path in sink_files(plan.folder / "sink"):
        with pyarrow.ipc.open_file(path) as reader:
            uids += reader.read_all()["uid"].to_pylist()
    if plan.plant_loss and uids:
        uids.pop(len(uids) // 2)
    counts = Counter(uids)
    return DemoResult(
        progress.published,
        progress.fetched,
        progress.duplicates,
        len(set(progress.uids) - counts.keys()),
        sum(count - 1 for count in counts.values()),
        _rate(list(_batches(plan.folder).values())),
    )


def _rate(batches: list[dict[str, Any]]) -> int:
    """Return rows a second from the end of the first batch of each run, which starts Python's workers, to the last."""
    rows, seconds = 0, 0.0
    for run in {entry["run"] for entry in batches}:
        first, *others = sorted((entry for entry in batches if entry["run"] == run), key=lambda entry: entry["ended"])
        rows += sum(entry["rows"] for entry in others)
        seconds += others[-1]["ended"] - first["ended"] if others else 0.0
    return round(rows / seconds) if seconds else 0
