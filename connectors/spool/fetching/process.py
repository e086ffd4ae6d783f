"""The process a fetcher runs in; `connectors.spool.fetching.group` starts it.

It knows no connector. It receives commands on standard input, `Start` first, and sends reports on standard output: the
messages of `connectors.spool.fetching.messages`. The end of input means that the parent is gone, however it ended. Logs
go to standard error. Secrets come with `Start` only, and are in no argument, no environment and no report.

At the end it stops receiving, publishes and acks what it holds, hands back what it cannot store, and has ended within
five seconds, whatever hangs.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from typing import Any, BinaryIO, Final

from connectors.core.errors import ConnectorError, ServiceUnavailableError, SpoolError
from connectors.core.processes.parent import ParentWatch
from connectors.spool.errors import fetcher_failed, missing_spool, write_error
from connectors.spool.fetching.contract import (
    FetchContext,
    FetchTarget,
    Intake,
    Orders,
    TargetStatus,
)
from connectors.spool.fetching.messages import (
    COMMANDS,
    Allow,
    Command,
    Fault,
    FetchPlan,
    Health,
    Note,
    Ordered,
    Published,
    Ready,
    Report,
    Start,
    decode,
    encode,
    malformed,
)
from connectors.spool.fetching.room import (
    MAX_RECORDS_BETWEEN,
    FetcherEndedError,
    FetcherFolder,
    Room,
    heartbeat_seconds,
    share_of,
)
from connectors.spool.ledger.records import claimed_epochs, read_record, record_name
from connectors.spool.segments.segment import SegmentInfo, segment_name
from connectors.spool.segments.shapes import NUMBER_NAME
from connectors.spool.store.base import Store

_log = logging.getLogger(__name__)

# Seconds after the end of input.
_PUBLISH_LIMIT = 1.2  # to make durable what is held; the rest of the time belongs to handing it back
_CLOSE_LIMIT = 4.0  # until acks and nacks that nobody answers are dropped
_HARD_LIMIT = 4.7  # until the kernel ends this process
_TICK: Final = 0.5
_SOONEST_HEALTH: Final = 0.02
_SOONEST_CHECK: Final = 1.0
_MAX_WAITING_REPORTS: Final = 10_000
_FLUSH_TIMEOUT: Final = 0.3
_RECORDS_SEARCHED: Final = 4 * MAX_RECORDS_BETWEEN
_EPOCH_AGE: Final = 5.0  # seconds without a new record until a newer epoch is searched for

NO_READER: Final = "SPOOL_NO_READER"
"""The code of the error that a fetcher reports while it pauses because there is no reader."""


class Reporter:
    """Writes reports to a pipe, in a thread of its own: a parent that does not read loses reports, and nothing else."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MAX_WAITING_REPORTS)
        self._thread = threading.Thread(target=self._write, name="report", daemon=True)
        self._thread.start()

    def send(self, report: Report) -> None:
        """Send one report; it is dropped if too many wait. `ConnectorError`: it is too long."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(encode(report))

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


class PublishedBytes:
    """Bytes of rows in the segments that a fetcher has published, up to each number; of those admitted only their sum.

    One thread adds, another one reads and forgets.
    """

    def __init__(self) -> None:
        self.segments = 0
        self.bytes = 0
        self._forgotten = 0
        self._base = 0
        self._totals: list[int] = []

    def add(self, number_of_bytes: int) -> None:
        self.bytes += number_of_bytes
        self._totals.append(self.bytes)
        self.segments += 1

    def up_to(self, segments: int) -> int:
        """Return the bytes of the first `segments`, at most of all; at least of those that were forgotten."""
        count = min(segments - self._forgotten, len(self._totals))
        return self._totals[count - 1] if count > 0 else self._base

    def forget(self, segments: int) -> None:
        """Replace the first `segments` by their sum."""
        count = min(segments - self._forgotten, len(self._totals))  # once: another thread may add meanwhile
        if count > 0:
            self._base = self._totals[count - 1]
            self._forgotten += count
            del self._totals[:count]


class ReaderWatch:
    """Reads in the ledger, for a fetcher outside of the source process, whether there is a reader and what it allows.

    Ages come from the store's own times: at the first check by those of the newest record and of the fetcher's own
    folder, which was made a moment ago; from then on by how long no newer record was seen. No two clocks are compared.
    """

    def __init__(self, store: Store, plan: FetchPlan, fetcher: str) -> None:
        self._store = store
        self._plan = plan
        self._fetcher = fetcher
        self._folder_made = store.written("inbox").get(fetcher)
        self._epoch = 0
        self._newest: tuple[int, int] | None = None
        self._newest_age = 0.0
        self._newest_seen = time.monotonic()
        self._searched_to = (0, -1)
        self._admitted = 0
        self._room = plan.max_spool_bytes

    def check(self, published: PublishedBytes) -> tuple[float, int]:
        """Return the age of the newest record in seconds, and the bytes that the fetcher may publish in all.

        Forgets in `published` what was admitted. OSError: the store does not answer.
        """
        times = self._record_times()
        self._see_newest(times)
        age = self._age()
        if self._is_running_out(published):
            self._search_room(times)
            published.forget(self._admitted)
        return age, published.up_to(self._admitted) + share_of(self._room, self._plan.share_of)

    def _age(self) -> float:
        return self._newest_age + time.monotonic() - self._newest_seen

    def _is_running_out(self, published: PublishedBytes) -> bool:
        """Whether it matters now how much room there is; else no record is read."""
        if self._searched_to == (0, -1):
            return True
        share = share_of(self._room, self._plan.share_of)
        left = published.up_to(self._admitted) + share - published.bytes
        return left <= share_of(self._plan.max_spool_bytes, self._plan.share_of) // 2

    def _record_times(self) -> dict[int, float]:
        """Return when each record of the newest epoch that has some was written."""
        times = self._of_epoch(self._epoch) if self._epoch else {}
        if times and self._age() < _EPOCH_AGE:
            return times
        for epoch in reversed(claimed_epochs(self._store)):
            if epoch <= self._epoch:
                break
            if later := self._of_epoch(epoch):
                self._epoch = epoch
                return later
        return times

    def _of_epoch(self, epoch: int) -> dict[int, float]:
        written = self._store.written(f"ledger/{epoch}")
        return {int(name): at for name, at in written.items() if NUMBER_NAME.fullmatch(name)}

    def _see_newest(self, times: dict[int, float]) -> None:
        newest = (self._epoch, max(times, default=-1))
        if newest == self._newest:
            return
        if not times and self._newest is not None:
            raise SpoolError("SPOOL_MISSING", "The ledger of the spool is gone", self._store.root)
        self._newest_age = 0.0
        if self._newest is None and times and self._folder_made is not None:
            self._newest_age = max(self._folder_made - times[newest[1]], 0.0)
        self._newest, self._newest_seen = newest, time.monotonic()

    def _search_room(self, times: dict[int, float]) -> None:
        """Search the newest announcement among the records that were not searched yet."""
        epoch, searched = self._searched_to
        last = max(times, default=-1)
        first = max(searched if epoch == self._epoch else -1, last - _RECORDS_SEARCHED)
        for number in range(last, first, -1):
            # A record may be trimmed between the list and this.
            with contextlib.suppress(FileNotFoundError):
                record = read_record(self._store, self._plan.spool, self._epoch, number)
                room = Room.of_record(record, f"{self._store.root}/{record_name(self._epoch, number)}")
                if room is not None:
                    self._room = room.bytes
                    self._admitted = room.through.get(self._fetcher, -1) + 1
                    break
        if last >= 0:
            self._searched_to = (self._epoch, last)


class FetchProcess:
    """One fetcher process, from its first line of input to its exit code."""

    def __init__(self, control: BinaryIO, reporter: Reporter) -> None:
        self._control = control
        self._reporter = reporter
        self._events: queue.SimpleQueue[tuple[str, BaseException | None]] = queue.SimpleQueue()
        self._disk_error: OSError | None = None
        self._reader_error: ConnectorError | None = None
        self._next_health = 0.0
        self._published = PublishedBytes()
        self._is_external = False

    def run(self) -> int:
        """Fetch until the parent wants no more; return the exit code."""
        first = self._control.readline()
        if not first.endswith(b"\n"):
            return 0
        try:
            start = decode(first, COMMANDS)
            if not isinstance(start, Start):
                raise malformed("it is not the first one")
        except ConnectorError as error:
            return self._report_fault(error)
        return self._run(start)

    def _run(self, start: Start) -> int:
        self._plan = plan = start.plan
        self._parent = ParentWatch(start.parent)
        self._is_external = bool(plan.share_of)
        self._orders = Orders(start.orders)
        # A fetcher whose reader is elsewhere may fetch nothing until it has seen what that allows.
        self._intake: Intake[Any, Any] = Intake(plan, self, 0 if self._is_external else start.allowance)
        threading.Thread(target=self._read_control, name="control", daemon=True).start()
        signal.signal(signal.SIGTERM, lambda *_: self._events.put(("stop", None)))
        try:
            folder = self._make_folder()
            if folder is None:
                return 0
            module, _, name = plan.target.partition(":")
            make_target = getattr(importlib.import_module(module), name)
            context = FetchContext(
                index=start.index,
                changed=lambda: self._events.put(("changed", None)),
                fail=self.failed,
                orders=self._orders,
                note=lambda value: self._reporter.send(Note(value)),
            )
            return self._fetch(folder, make_target(plan.settings, context))
        except Exception as error:  # noqa: BLE001 - the parent must be told, whatever it is
            return self._report_fault(error)

    def _fetch(self, folder: FetcherFolder, target: FetchTarget[Any, Any]) -> int:
        intake = self._intake
        intake.start(folder, target)
        if self._is_external:
            threading.Thread(target=self._watch_reader, args=(folder,), name="reader", daemon=True).start()
        self._reporter.send(Ready(folder.fetcher))
        fault = self._watch(folder, target)
        self._arm_hard_limit()
        began = time.monotonic()
        intake.stop_receiving()
        if isinstance(fault, FetcherEndedError) or not intake.close(began + _PUBLISH_LIMIT):
            intake.abandon()
        target.close(began + _CLOSE_LIMIT)
        if self._is_external:
            # Nobody else sees that this process has ended.
            with contextlib.suppress(OSError):
                folder.release()
        self._report_health(target)
        return 0 if fault is None else self._report_fault(fault)

    def _watch(self, folder: FetcherFolder, target: FetchTarget[Any, Any]) -> BaseException | None:
        """Report the state until it is time to end; return the error that ends this process, if it is one."""
        while True:
            kind, error = self._next_event()
            if kind in {"stop", "fault"}:
                return error
            if kind == "tick":
                try:
                    folder.check()
                except (ConnectorError, FetcherEndedError) as ended:
                    return ended
            self._report_health(target)

    def _next_event(self) -> tuple[str, BaseException | None]:
        """Return the next event; a tick when there is none for a while; a stop when the parent is gone."""
        pause = self._next_health - time.monotonic()
        try:
            event = self._events.get(timeout=_TICK)
        except queue.Empty:
            event = "tick", None
        if event[0] == "changed" and pause > 0:
            # Streams that open and close in a storm do not become a storm of reports.
            time.sleep(pause)
        # The pipe closes when the parent ends, unless another process inherited its write end: check the pid as well.
        if self._parent.is_gone():
            self._arm_hard_limit()
            return ("stop", None)
        return event

    def _obey(self, command: Command) -> None:
        match command:
            case Allow():
                self._intake.allow(command.allowance)
            case Ordered():
                self._orders.set(command.name, command.value)
            case Start():
                raise malformed("it is the first one again")

    def _read_control(self) -> None:
        # A line without an end is what a parent could write of it before it died.
        while (line := self._control.readline()).endswith(b"\n"):
            try:
                self._obey(decode(line, COMMANDS))
            except ConnectorError as error:
                self.failed(error)
                return
        self._arm_hard_limit()
        self._events.put(("stop", None))

    def _arm_hard_limit(self) -> None:
        """Let the kernel end this process in time, even if the interpreter hangs by then."""
        if signal.getitimer(signal.ITIMER_REAL)[0] == 0:
            signal.setitimer(signal.ITIMER_REAL, _HARD_LIMIT)

    def _make_folder(self) -> FetcherFolder | None:
        """Make the folder of this process, as soon as the disk has room; None if it is time to end before."""
        plan = self._plan
        while True:
            try:
                return FetcherFolder(plan.root, plan.store_access, plan.spool if plan.has_identity else None)
            except FileNotFoundError as error:
                raise missing_spool(plan.root) from error
            except OSError as error:
                self._disk_error = error
                self._reporter.send(self._health(None))
                _log.warning("The folder of this fetcher cannot be created. %s", write_error(error, plan.root))
            kind, fault = self._next_event()
            if fault is not None:
                raise fault
            if kind == "stop":
                return None

    def _watch_reader(self, folder: FetcherFolder) -> None:
        """Pause while there is no room, or no reader."""
        try:
            watch = ReaderWatch(folder.store, self._plan, folder.fetcher)
            while True:
                time.sleep(self._check_reader(folder, watch))
        except Exception as error:  # noqa: BLE001 - it is reported, and ends this process
            self.failed(error)

    def _check_reader(self, folder: FetcherFolder, watch: ReaderWatch) -> float:
        """Check once; return the seconds until the next check."""
        plan = self._plan
        soon = min(_SOONEST_CHECK, heartbeat_seconds(plan.max_reader_age))
        try:
            age, allowance = watch.check(self._published)
            if folder.store.is_closed(segment_name(folder.fetcher, self._published.segments)):
                raise FetcherEndedError("its folder in the spool was closed")
        except OSError as error:
            _log.warning("the ledger cannot be read now: %s", error)
            return soon
        gone = age > plan.max_reader_age
        if gone != (self._reader_error is not None):
            no_reader = ServiceUnavailableError(
                NO_READER,
                f"No query has written to the ledger for maxReaderAge ({plan.max_reader_age:g} s): nothing is fetched",
                plan.root,
                "Start the query; fetching continues by itself then.",
            )
            self._reader_error = no_reader if gone else None
            _log.warning("%s", self._reader_error or "the reader is back: fetching continues")
            self._events.put(("changed", None))
        self._intake.allow(0 if gone else allowance)
        near = gone or allowance - self._published.bytes <= share_of(plan.max_spool_bytes, plan.share_of) // 2
        return soon if near else max(folder.store.look_seconds, soon)

    def published(self, segment: SegmentInfo) -> None:
        self._published.add(segment.bytes)
        if not self._is_external:
            # Only a fetcher whose reader is elsewhere compares what it has published with what was admitted.
            self._published.forget(self._published.segments)
        # Reports may be lost when the parent does not read; the sum is still right in the next one.
        self._reporter.send(Published(segment.number, segment.bytes, self._published.bytes))

    def disk_changed(self, error: OSError | None) -> None:
        self._disk_error = error
        self._events.put(("disk", None))

    def failed(self, error: BaseException) -> None:
        """End this process with an error of a thread, of the intake or of the target."""
        self._events.put(("fault", error))

    def _report_health(self, target: FetchTarget[Any, Any]) -> None:
        self._next_health = time.monotonic() + _SOONEST_HEALTH
        self._reporter.send(self._health(target))

    def _health(self, target: FetchTarget[Any, Any] | None) -> Health:
        status = TargetStatus(0, 0, None) if target is None else target.status()
        error = status.error or self._reader_error
        if self._disk_error is not None:
            error = write_error(self._disk_error, self._plan.root)
        return self._intake.health(status, error)

    def _report_fault(self, fault: BaseException) -> int:
        if isinstance(fault, FetcherEndedError):
            _log.warning("this fetcher ends: %s", fault)
            return 0
        if not isinstance(fault, ConnectorError):
            _log.error("this fetcher fails", exc_info=fault)
            fault = fetcher_failed(fault)
        self._reporter.send(Fault(terminal=not fault.transient, error=fault))
        return 0 if not fault.transient else 1


def main() -> None:
    # A terminal's Ctrl-C is for the parent: it decides, and this process still hands back what it holds.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s fetcher %(process)d %(name)s: %(message)s")
    # What a library prints must not come among the reports.
    reports = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # The folders of a user's modules come last, so that no file in them hides a module of Python or of a package.
    sys.path += [folder for folder in sys.argv[1:] if folder and folder not in sys.path]
    reporter = Reporter(reports)
    code = FetchProcess(sys.stdin.buffer, reporter).run()
    reporter.close()
    sys.stderr.flush()
    # Threads of libraries, and calls that hang, do not delay the end of this process.
    os._exit(code)


if __name__ == "__main__":
    main()
