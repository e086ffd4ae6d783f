"""A fetcher beside an executor: a process that a short task starts there, and that ends with the executor.

Spark gives the task a slot only while the process starts, so fetchers never keep batches waiting. The process has a
session of its own and no pipe to anyone: it ends within seconds when the JVM of its executor does, and when the driver
ends or does not want it any more, which it reads in the spool (`connectors.spool.fetching.placement`). At its end it
publishes or hands back what it holds, as every fetcher does.

It is ``python -m connectors.spool.fetching.detached JVM``, where JVM is the pid of the executor; it reads its order,
with the secrets in it, from standard input, and answers with one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from connectors.core.errors import ConnectorError
from connectors.core.processes.interpreter import importing_environment, python_command
from connectors.core.processes.table import PROCESSES, start_time
from connectors.spool.errors import fetcher_ended, fetcher_failed
from connectors.spool.fetching.external import run_fetchers
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.fetching.messages import PLANS, decode
from connectors.spool.fetching.placement import Claim, Place, beat_seconds
from connectors.spool.ledger.identity import check_identity
from connectors.spool.ledger.writer_lock import process_gone, spark_pid
from connectors.spool.store import open_store
from connectors.spool.store.base import Holder

_log = logging.getLogger(__name__)

STARTED: Final = "started"
TAKEN: Final = "taken"
"""Spark has run the task twice, and the other one was faster."""
DECLINED: Final = "declined"
"""There are as many fetchers here as there should be while others have fewer."""
FAILED: Final = "failed"
_START_SECONDS: Final = 60.0
_WATCH_SECONDS: Final = 0.5
_END_SECONDS: Final = 10.0
"""From the moment when it is to end until the kernel ends it; its fetchers need five."""

_started: list[subprocess.Popen[bytes]] = []
"""What this worker has started; a process that has ended is a zombie until it is polled."""


def start_in_task(order: Mapping[str, Any], plans: Sequence[bytes]) -> str:
    """Start a fetcher beside the executor that this task runs on; return its answer, a JSON object.

    The plans are lines of `connectors.spool.fetching.messages`, since executors may have another version of this pack.

    Args:
        order: ``job``, ``number``, ``round``, and ``at_executor`` and ``on_machine``: the most that should run there.
        plans: one for each source.
    """
    _started[:] = [process for process in _started if process.poll() is None]
    jvm = spark_pid()
    text = json.dumps({**order, "jvm": jvm, "start": start_time(jvm), "plans": [plan.decode() for plan in plans]})
    process = subprocess.Popen(
        python_command("-m", "connectors.spool.fetching.detached", str(jvm)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=importing_environment(),
        # A session of its own: Spark's daemon of workers signals its group when it ends.
        start_new_session=True,
    )
    answer = _ask(process, text.encode() + b"\n")
    _started.append(process)
    if answer:
        return answer.decode()
    return _answer(FAILED, fetcher_ended(process.wait(), process.pid))


def _ask(process: subprocess.Popen[bytes], order: bytes) -> bytes:
    """Send an order; return the answer, which is empty if the process ends without one, or takes too long."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process has no pipes")
    late = threading.Timer(_START_SECONDS, process.kill)
    late.start()
    try:
        with process.stdout as answers:
            with contextlib.suppress(BrokenPipeError), process.stdin as orders:
                orders.write(order)
            return answers.read()
    finally:
        late.cancel()


def _answer(outcome: str, error: ConnectorError | None = None) -> str:
    host = Holder.this_process().host
    return json.dumps({"outcome": outcome, "host": host, "error": None if error is None else error.to_json()})


class DetachedFetcher:
    """The process, from its order to its end."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._jvm_gone = process_gone(order["jvm"]) if start_time(order["jvm"]) == order["start"] else lambda: True
        self._plans = [decode(plan.encode(), PLANS) for plan in order["plans"]]
        plan = self._plans[0]
        self._store = open_store(plan.root, "", plan.store_access)
        holder = Holder.this_process(order["jvm"])
        place = Place(order["number"], order["round"], holder, _executor_id(order["jvm"]))
        self._claim = Claim(self._store, order["job"], place)
        self._stopped = threading.Event()

    def claim(self) -> str:
        """Take the place that the order names; return the outcome. `ConnectorError`: this is no place for it."""
        plan = self._plans[0]
        self._store.check_visible()
        check_identity(self._store, plan.spool)
        at_executor, on_machine = self._claim.neighbors()
        if at_executor >= self._order["at_executor"] or on_machine >= self._order["on_machine"]:
            return DECLINED
        return STARTED if self._claim.take() else TAKEN

    def run(self) -> None:
        """Fetch until the executor or the driver is gone, or the driver does not want it any more."""
        for watch in (self._watch_executor, self._keep_place):
            threading.Thread(target=watch, name=watch.__name__.strip("_"), daemon=True).start()
        try:
            run_fetchers(self._plans, 1, self._stopped, report=self._see, outlive_reader=False)
        except Exception as error:  # noqa: BLE001 - the driver is told, whatever it is
            self._end(error=_named(error))
        else:
            self._end(readerless=not self._stopped.is_set())

    def stop(self) -> None:
        """End soon, whatever hangs."""
        if not self._stopped.is_set():
            signal.setitimer(signal.ITIMER_REAL, _END_SECONDS)
            self._stopped.set()

    def _see(self, statuses: Sequence[FetcherStatus]) -> None:
        folders = tuple(status.fetcher for status in statuses if status.fetcher is not None)
        healthy = all(status.healthy for status in statuses)
        if (folders, healthy) != (self._claim.place.folders, self._claim.place.healthy):
            self._try_to_keep(folders=folders, healthy=healthy)

    def _watch_executor(self) -> None:
        while not self._jvm_gone():
            if self._stopped.wait(_WATCH_SECONDS):
                return
        _log.warning("the executor is gone: this fetcher ends")
        self.stop()

    def _keep_place(self) -> None:
        while not self._stopped.wait(beat_seconds(self._store)):
            self._try_to_keep()

    def _try_to_keep(self, **changes: Any) -> None:
        try:
            if self._claim.is_wanted():
                self._claim.keep(**changes)
            else:
                _log.warning("the driver is gone, or no longer wants this fetcher: it ends")
                self.stop()
        except (OSError, ConnectorError) as error:
            _log.warning("this fetcher cannot record now where it runs: %s", error)

    def _end(self, *, error: ConnectorError | None = None, readerless: bool = False) -> None:
        self.stop()
        with contextlib.suppress(OSError, ConnectorError):
            if error is None and not readerless:
                self._claim.leave()
            else:
                self._claim.keep(ended=True, error=error, readerless=readerless, healthy=False)


def _named(error: Exception) -> ConnectorError:
    if isinstance(error, ConnectorError):
        return error
    _log.error("this fetcher fails", exc_info=error)
    return fetcher_failed(error)


def _executor_id(jvm: int) -> str:
    """Return the id that Spark has given an executor, from its command line; ``driver`` of local mode."""
    arguments = PROCESSES.arguments(jvm)
    if "--executor-id" in arguments[:-1]:
        return arguments[arguments.index("--executor-id") + 1]
    if any("SparkSubmit" in argument for argument in arguments):
        return "driver"
    return ""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s fetcher %(process)d %(name)s: %(message)s")
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    fetcher = None
    try:
        fetcher = DetachedFetcher(json.loads(sys.stdin.buffer.readline()))
        outcome = fetcher.claim()
        text = _answer(outcome)
    except Exception as error:  # noqa: BLE001 - the driver is told, whatever it is
        outcome, text = FAILED, _answer(FAILED, _named(error))
    os.write(answer, text.encode())
    os.close(answer)
    if fetcher is not None and outcome == STARTED:
        signal.signal(signal.SIGTERM, lambda *_: fetcher.stop())
        fetcher.run()
    # Threads of libraries, and calls that hang, do not delay the end of this process.
    os._exit(0)


if __name__ == "__main__":
    main()
