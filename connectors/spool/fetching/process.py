"""The process a fetcher runs in; `connectors.spool.fetching.group` starts it.

It knows no connector. Its first line of standard input is a JSON object with the plan, the later ones are
``{"allow": bytes}``, ``{"order": [name, value]}`` and ``{"stop": true}``; the end of input means that the parent is
gone, however it went. On standard output it reports, one JSON object a line: ``ready``, ``published``, ``health``,
``note``, ``error`` and ``ended``. Logs go to standard error. Secrets come by the first line only, and are in no
argument, no environment and no report.

At the end it stops receiving, publishes and acks what it holds, hands back what it cannot keep, and is gone within five
seconds, whatever hangs.

Reports of a fetcher to its parent: lines of JSON, sent by a thread of their own, so that nobody has to wait.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.spool.errors import missing_spool, write_error
from connectors.spool.fetching.buffer import HeldIntake
from connectors.spool.fetching.driver_watch import NO_READER, Published, ReaderWatch, heartbeat_seconds, share_of
from connectors.spool.fetching.pipeline import FetcherEndedError, FetcherFolder, Pipeline
from connectors.spool.fetching.target import FetchContext, FetchPlan, FetchTarget, Orders
from connectors.spool.segments.segment import SegmentInfo, segment_name

__all__ = ["FetchProcess", "Reporter", "main"]


_MOST_WAITING = 10_000
_FLUSH_TIMEOUT = 0.3


class Reporter:
    """Writes reports to a pipe.

    A parent that does not read loses reports, and nothing else: the segments themselves are in the spool.

    Args:
        descriptor: the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._write, name="report", daemon=True)
        self._thread.start()

    def send(self, kind: str, value: Any) -> None:
        """Send one report; it is dropped if too many wait."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(json.dumps({kind: value}).encode() + b"\n")

    def close(self) -> None:
        """Send what waits, if the parent reads."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(_FLUSH_TIMEOUT)

    def _write(self) -> None:
        # A broken pipe: the parent is gone, which standard input says too.
        with contextlib.suppress(OSError):
            while (line := self._lines.get()) is not None:
                while line:
                    line = line[os.write(self._descriptor, line) :]


_log = logging.getLogger(__name__)

_HARD_LIMIT = 4.7
"""Seconds after the end of input at which the kernel ends this process."""

_PUBLISH_LIMIT = 1.2
"""Seconds to make durable what is held; the rest of the time belongs to handing it back."""

_CLOSE_LIMIT = 4.0
"""Seconds until acks and nacks that nobody answers are dropped."""

_TICK = 0.5
_SOONEST_HEALTH = 0.02
_SOONEST_LOOK = 1.0


class FetchProcess:
    """One process life.

    Args:
        control: where the first line and all others come from.
        reporter: where reports go.
    """

    def __init__(self, control: BinaryIO, reporter: Reporter) -> None:
        self._control = control
        self._reporter = reporter
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._disk_error: OSError | None = None
        self._next_health = 0.0
        self._published_bytes = 0
        self._published: Published | None = None
        self._reader_error: ConnectorError | None = None

    def run(self) -> int:
        """Live until the parent wants no more; the exit code."""
        first = self._control.readline()
        if not first:
            return 0
        start = json.loads(first)
        plan = FetchPlan.from_json(start["plan"])
        self._parent = int(start["parent"])
        self._root = plan.root
        self._orders = Orders(start.get("orders"))
        # A fetcher whose reader is elsewhere may fetch nothing until it has seen what that allows.
        self._intake = HeldIntake(plan.max_held_bytes, plan.max_held_rows, 0 if plan.share_of else start["allow"])
        threading.Thread(target=self._read_control, name="control", daemon=True).start()
        signal.signal(signal.SIGTERM, lambda *_: self._events.put(("stop", None)))
        try:
            folder = self._make_folder(plan)
            if folder is None:
                return 0
            target = _load(plan.target)(plan.settings, self._context(int(start["index"])))
            return self._fetch(plan, folder, target)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent hears of it
            return self._report_fault(error)

    def _fetch(self, plan: FetchPlan, folder: FetcherFolder, target: FetchTarget) -> int:
        # Only a fetcher whose reader is elsewhere compares what it has published with what was admitted.
        self._published = Published() if plan.share_of else None
        pipeline = Pipeline(plan, folder, target, self._intake, self)
        pipeline.start()
        if self._published is not None:
            work = (plan, folder, self._published)
            threading.Thread(target=self._watch_reader, args=work, name="reader", daemon=True).start()
        self._reporter.send("ready", {"fetcher": folder.fetcher, "pid": os.getpid()})
        fault: BaseException | None = None
        try:
            self._watch(folder, target)
        except (ConnectorError, FetcherEndedError, _FaultError) as error:
            fault = error.__cause__ if isinstance(error, _FaultError) else error
        self._arm_hard_limit()
        began = time.monotonic()
        pipeline.stop_receiving()
        if isinstance(fault, FetcherEndedError) or not pipeline.close(began + _PUBLISH_LIMIT):
            pipeline.abandon()
        target.close(began + _CLOSE_LIMIT)
        if plan.share_of:
            # Nobody else sees that this process has ended.
            with contextlib.suppress(OSError):
                folder.release()
        self._report_health(target)
        return 0 if fault is None else self._report_fault(fault)

    def _watch(self, folder: FetcherFolder, target: FetchTarget) -> None:
        """Report and look after things until it is time to end.

        Raises:
            ConnectorError: the query must stop.
            FetcherEndedError: the folder is gone.
            _FaultError: a thread of the pipeline failed.
        """
        while True:
            kind, value = self._next_event()
            if kind == "stop":
                return
            if kind == "fail":
                raise value
            if kind == "fault":
                raise _FaultError from value
            if kind == "disk":
                self._disk_error = value
            elif kind == "tick":
                folder.check()
            self._report_health(target)

    def _next_event(self) -> tuple[str, Any]:
        """The next event; a tick when there is none for a while; a stop when the parent is gone."""
        pause = self._next_health - time.monotonic()
        try:
            event = self._events.get(timeout=_TICK)
        except queue.Empty:
            event = ("tick", None)
        if event[0] == "changed" and pause > 0:
            # Streams that open and close in a storm do not become a storm of reports.
            time.sleep(pause)
        # The pipe is how the parent's end is seen. This is the second way, if a stranger has inherited the other end.
        if os.getppid() != self._parent:
            self._arm_hard_limit()
            return ("stop", None)
        return event

    def _read_control(self) -> None:
        while line := self._control.readline():
            command = json.loads(line)
            if "allow" in command:
                self._intake.allow(int(command["allow"]))
            if "order" in command:
                self._orders.give(*command["order"])
            if command.get("stop"):
                break
        self._arm_hard_limit()
        self._events.put(("stop", None))

    def _arm_hard_limit(self) -> None:
        """Let the kernel end this process in time, even if the interpreter hangs by then."""
        if signal.getitimer(signal.ITIMER_REAL)[0] == 0:
            signal.setitimer(signal.ITIMER_REAL, _HARD_LIMIT)

    def _make_folder(self, plan: FetchPlan) -> FetcherFolder | None:
        """The folder of this life, as soon as the disk has room; None if it is time to end before."""
        while True:
            try:
                return FetcherFolder(plan.root, plan.store_access, plan.spool if plan.has_identity else None)
            except FileNotFoundError as error:
                raise missing_spool(plan.root) from error
            except OSError as error:
                self._disk_error = error
                self._reporter.send("health", self._health(None))
                _log.warning("The folder of this fetcher cannot be made. %s", write_error(error, plan.root))
            if self._next_event()[0] == "stop":
                return None

    def _context(self, index: int) -> FetchContext:
        return FetchContext(
            index=index,
            changed=lambda: self._events.put(("changed", None)),
            fail=lambda error: self._events.put(("fail", error)),
            fault=self.failed,
            orders=self._orders,
            note=lambda value: self._reporter.send("note", value),
        )

    # What the reader allows, when it is elsewhere.

    def _watch_reader(self, plan: FetchPlan, folder: FetcherFolder, published: Published) -> None:
        """Look at the ledger now and then, and pause while there is no room, or no reader."""
        try:
            watch = ReaderWatch(folder.store, plan, folder.fetcher)
            while True:
                time.sleep(self._look_at_reader(plan, folder, published, watch))
        except (ConnectorError, FetcherEndedError) as error:
            kind = "fail" if isinstance(error, ConnectorError) else "fault"
            self._events.put((kind, error))
        except Exception as error:  # noqa: BLE001 - it is reported, and ends this process life
            self._events.put(("fault", error))

    def _look_at_reader(
        self, plan: FetchPlan, folder: FetcherFolder, published: Published, watch: ReaderWatch
    ) -> float:
        """Look once; seconds until the next look."""
        soon = min(_SOONEST_LOOK, heartbeat_seconds(plan.max_reader_age))
        try:
            seen = watch.look(published)
            if folder.store.is_closed(segment_name(folder.fetcher, published.segments)):
                raise FetcherEndedError("its folder in the spool was closed")
        except OSError as error:
            _log.warning("the ledger cannot be looked at now: %s", error)
            return soon
        gone = seen.age > plan.max_reader_age
        if gone != (self._reader_error is not None):
            self._reader_error = _no_reader(plan) if gone else None
            _log.warning("%s", self._reader_error or "the reader is back: fetching goes on")
            self._events.put(("changed", None))
        self._intake.allow(0 if gone else seen.allowance)
        near = gone or seen.allowance - self._published_bytes <= share_of(plan.max_spool_bytes, plan.share_of) // 2
        return soon if near else max(folder.store.look_seconds, soon)

    # Reports.

    def published(self, segment: SegmentInfo) -> None:
        """See `PipelineObserver.published`."""
        self._published_bytes += segment.bytes
        if self._published is not None:
            self._published.add(segment.bytes)
        self._reporter.send(
            "published",
            {
                "number": segment.number,
                "rows": segment.rows,
                "bytes": segment.bytes,
                "published": segment.published,
                # Reports may be lost when the parent does not read; the sum is still right in the next one.
                "total_bytes": self._published_bytes,
            },
        )

    def disk_changed(self, error: OSError | None) -> None:
        """See `PipelineObserver.disk_changed`."""
        self._events.put(("disk", error))

    def failed(self, error: BaseException) -> None:
        """See `PipelineObserver.failed`; a target tells of its own threads here too."""
        self._events.put(("fault", error))

    def _report_health(self, target: FetchTarget) -> None:
        self._next_health = time.monotonic() + _SOONEST_HEALTH
        self._reporter.send("health", self._health(target))

    def _health(self, target: FetchTarget | None) -> dict[str, Any]:
        status = None if target is None else target.status()
        error = None if status is None else status.error
        error = error or self._reader_error
        if self._disk_error is not None:
            error = write_error(self._disk_error, self._root)
        last = None if status is None else status.last_response
        with self._intake.lock:
            held = {
                "held_bytes": self._intake.held_bytes,
                "held_rows": self._intake.held_rows,
                "fetched_bytes": self._intake.fetched_bytes,
                "fetched_rows": self._intake.fetched_rows,
                "paused": not self._intake.open,
                "settled_at": self._intake.settled_at(),
            }
        return {
            **held,
            "streams": 0 if status is None else status.streams,
            "streams_open": 0 if status is None else status.streams_open,
            "response_age": None if last is None else round(time.monotonic() - last, 3),
            "error": None if error is None else error.to_json(),
            "counters": {} if status is None else dict(status.counters),
        }

    def _report_fault(self, fault: BaseException) -> int:
        """Say why this life ends; the exit code."""
        if isinstance(fault, FetcherEndedError):
            _log.warning("this fetcher ends: %s", fault)
            return 0
        if not isinstance(fault, ConnectorError):
            _log.error("this fetcher fails", exc_info=fault)
            fault = ServiceUnavailableError(
                "FETCHER_FAILED",
                f"A fetcher failed: {type(fault).__name__}",
                f"pid {os.getpid()}",
                "It is started anew; the driver's log has the stack.",
            )
        self._reporter.send("error", {"terminal": not fault.transient, "error": fault.to_json()})
        return 0 if not fault.transient else 1


class _FaultError(Exception):
    """Raised for a thread of the pipeline that failed; its cause is what that thread raised."""


def _no_reader(plan: FetchPlan) -> ConnectorError:
    return ServiceUnavailableError(
        NO_READER,
        f"No query has written to the ledger for maxReaderAge ({plan.max_reader_age:g} s), so nothing is fetched",
        plan.root,
        "Start the query; fetching goes on by itself then.",
    )


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def main() -> None:
    """Run as a fetcher, with the pipes of `connectors.spool.fetching.group`."""
    # A terminal's Ctrl-C is for the parent: it decides, and this process still hands back what it holds.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s fetcher %(process)d %(name)s: %(message)s")
    # What a library prints must not come among the reports.
    reports = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    reporter = Reporter(reports)
    code = FetchProcess(sys.stdin.buffer, reporter).run()
    reporter.send("ended", {"code": code})
    reporter.close()
    sys.stderr.flush()
    # Threads of libraries, and calls that hang, do not get to say when this process ends.
    os._exit(code)


if __name__ == "__main__":
    main()
