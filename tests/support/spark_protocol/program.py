"""The protocol driver as a process of its own, so that a test can kill it as Spark's JVM is killed.

``python -m tests.support.spark_protocol SPEC`` runs one query. SPEC is the path of a JSON file with the
arguments of `DriverProcess`. It writes one line of JSON for each event to its standard output:

    {"event": "started", "reader_pids": [..], "worker_pids": [..]}
    {"event": "batch", "batch_id": 0, "rows": 5, "digest": "..", "replayed": false}
    {"event": "ended"}

It ends at once when its standard input is closed, so that none is left behind by a test that is killed itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from connectors.core.processes.interpreter import python_command
from connectors.testing.process import on_parent_death
from tests.support.spark_protocol.errors import NoBatchError, ProtocolError
from tests.support.spark_protocol.query import StreamingQuery
from tests.support.spark_protocol.store import FolderSink
from tests.support.spark_protocol.stream import Trigger
from tests.support.spark_protocol.system import OutputReader, child_environment
from tests.support.spark_protocol.worker import TaskWorkers

__all__ = ["DriverProcess", "main"]

_PARENT_GONE = 3
"""Exit code when the standard input was closed."""


class DriverProcess:
    """A query that runs in a process of its own, under the default trigger until it is killed.

    Args:
        source: ``"module:Class"`` of the data source.
        options: its options.
        checkpoint: folder of the two logs.
        sink: folder of a `FolderSink`; None drops the rows.
        trigger: as for `StreamingQuery`.
        batches: end after so many batches; None runs on.
        workers: number of worker processes.
        reader_environment: changes to the environment of the reader processes.
        environment: changes to the environment of the driver itself: ``CONNECTORS_FAILPOINTS`` with
            ``protocol.tasks_done=kill:3`` kills it at that step of its third batch.
    """

    def __init__(  # noqa: PLR0913 - what a query is made of
        self,
        source: str,
        options: Mapping[str, str],
        *,
        checkpoint: Path | str,
        sink: Path | str | None = None,
        trigger: Trigger = "default",
        batches: int | None = None,
        workers: int = 1,
        reader_environment: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        specification = {
            "source": source,
            "options": dict(options),
            "checkpoint": str(checkpoint),
            "sink": None if sink is None else str(sink),
            "trigger": trigger,
            "batches": batches,
            "workers": workers,
            "reader_environment": dict(reader_environment or {}),
        }
        self._folder = tempfile.TemporaryDirectory(prefix="protocol-driver-")
        path = Path(self._folder.name) / "query.json"
        path.write_text(json.dumps(specification))
        self.events: list[dict[str, Any]] = []
        """What it has written so far."""
        self.log: deque[str] = deque(maxlen=1000)
        """The last lines of its standard error, the readers' and workers' included."""
        self._process = subprocess.Popen(
            python_command("-m", "tests.support.spark_protocol", str(path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(environment),
        )
        self._errors = OutputReader(self._process.stderr, self.log)
        self._changed = threading.Condition()
        self._reading = threading.Thread(target=self._read_events, args=(self._process.stdout,), daemon=True)
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_events(self, output: IO[bytes]) -> None:
        for line in output:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self.events.append({"event": "closed"})
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        """The id of the driver's process."""
        return self._process.pid

    def wait_for(self, event: str, count: int = 1, timeout: float = 60.0) -> dict[str, Any]:
        """Wait until an event has come so often, and return it.

        Raises:
            NoBatchError: it did not come in so many seconds.
            ProtocolError: the driver ended before; the text has the end of its log.
        """

        def found() -> list[dict[str, Any]]:
            return [each for each in self.events if each["event"] == event]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= count or self._is_closed(), timeout)
            if len(found()) >= count:
                return found()[count - 1]
            closed = self._is_closed()
        if closed:
            self._process.wait()
            self._errors.close()
            raise ProtocolError(f"the driver ended with {self._process.returncode}\n" + "\n".join(self.log))
        raise NoBatchError(f"the driver wrote {len(found())} of {count} events {event!r} in {timeout} s")

    def _is_closed(self) -> bool:
        return bool(self.events) and self.events[-1]["event"] == "closed"

    @property
    def reader_pids(self) -> list[int]:
        """The ids of its reader processes; waits until it has started."""
        pids: list[int] = self.wait_for("started")["reader_pids"]
        return pids

    def kill(self) -> None:
        """End it at once with SIGKILL, as when the JVM is killed: its readers and workers are not touched."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout: float) -> int:
        """Wait until it has ended by itself; returns its exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        return self._process.wait(timeout)

    def close(self) -> None:
        """End it if it runs, and take its last events and log lines."""
        self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()
        self._reading.join(10)  # readers do not hold its standard output, so this ends with it
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()


def _write(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def _run(specification: dict[str, Any]) -> None:
    """Run the query until it ends by itself or has run the batches asked for."""
    workers = TaskWorkers(specification["workers"])
    sink = specification["sink"]
    query = StreamingQuery(
        specification["source"],
        specification["options"],
        checkpoint=specification["checkpoint"],
        sink=None if sink is None else FolderSink(sink),
        trigger=specification["trigger"],
        workers=workers,
        reader_environment=specification["reader_environment"],
    )
    batches = specification["batches"]
    with query:
        _write("started", reader_pids=[reader.pid for reader in query.readers], worker_pids=workers.pids)
        while query.is_running and batches != 0:
            batch = query.run_trigger()
            if batch is None:
                time.sleep(query.poll_interval)
                continue
            _write("batch", batch_id=batch.batch_id, rows=batch.rows, digest=batch.digest, replayed=batch.replayed)
            batches = None if batches is None else batches - 1
    workers.close()
    _write("ended")


def main() -> None:
    """Run what the only argument says, a path of a JSON file."""
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.stderr.write(f"usage: python -m tests.support.spark_protocol SPEC\n\n{__doc__}")
        raise SystemExit(2)
    on_parent_death(lambda: os._exit(_PARENT_GONE))
    _run(json.loads(Path(sys.argv[1]).read_text()))
