"""Run a demonstration: publish, stream, disturb, kill on the way, restart, and count by a reader of its own."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pyarrow.ipc

from connectors.cli.demo.count import FAULTS, Message, Row, Tally, make_messages, rows_written, tally
from connectors.cli.demo.job import sink_files
from connectors.cli.demo.plan import FACTS, KEYS, DemoPlan, Query, Service
from connectors.cli.demo.processes import Kill, QueryProcess, planned_kills

_POLL = 0.2
_PORTION = 500
_FIRST_SHARE = 0.3
"""The share published before the query has read its first rows; the rest comes while it runs."""
_SETTLED_SECONDS = 3.0
"""Doubled rows that come late are counted too."""
_QUIET_SECONDS = 120.0
_VICTIM_SECONDS = 20.0
_DUPLICATES_SECONDS = 15.0


@dataclass(slots=True)
class Progress:
    """How far it is: the same object is shown again and again; rows are those of the slowest query."""

    stage: str = "Spark starts"
    published: int = 0
    rows: int = 0
    duplicates: int = 0


def service_of(plan: DemoPlan) -> Service:
    """Return the service of a plan; needs its extra."""
    module, name = FACTS[plan.service].service.split(":")
    chosen: Callable[[DemoPlan], Service] = getattr(import_module(module), name)
    return chosen(plan)


def run_demo(
    service: Service, show: Callable[[Progress], None], closing: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Run the demonstration, and return its record; docs/faults/accounts.md says what its fields are.

    Args:
        service: of the plan, as `service_of` builds it; it knows afterwards what it has left behind.
        show: called several times a second.
        closing: called before what was created is removed.

    Raises:
        ConnectorError: a query ended by itself, or the service refuses a call or cannot be reached.
    """
    plan, began = service.plan, time.monotonic()
    with contextlib.ExitStack() as stack:
        service.open(stack)
        queries = service.queries()
        process = QueryProcess(plan.folder, queries, restarts=2 * plan.kills + 1, run=plan.run)
        run = _Run(plan, service, process, queries, show)
        stack.callback(process.end)
        run.publisher.start()
        stack.callback(run.stop_publishing)
        stack.callback(closing)
        run.watch()
        tallies = [asdict(run.count(query)) for query in queries]
    packages = ("pyspark-stream-connectors", "pyspark", "pyarrow", FACTS[plan.service].package)
    return {
        "service": plan.service.value,
        "server": service.server,
        "versions": {"python": sys.version.partition(" ")[0]} | {package: version(package) for package in packages},
        "seed": plan.seed,
        "kills": [asdict(kill) for kill in run.kills],
        "published": run.progress.published,
        "delivered_again": service.duplicates,
        **{name: sum(one[name] for one in tallies) for name in (*FAULTS, "replays")},
        "queries": tallies,
        "seconds": round(time.monotonic() - began, 1),
        "notes": service.notes,
        "left_behind": service.left_behind,
    }


@dataclass(slots=True)
class _Run:
    plan: DemoPlan
    service: Service
    process: QueryProcess
    queries: list[Query]
    show: Callable[[Progress], None]
    progress: Progress = field(default_factory=Progress)
    kills: list[Kill] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None
    _began: float = field(default_factory=time.monotonic)
    publisher: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.publisher = threading.Thread(target=self._publish, daemon=True)

    def stop_publishing(self) -> None:
        """Wait for the portion that is on its way, and publish no more."""
        self._stopped.set()
        self.publisher.join()

    def _publish(self) -> None:
        messages = make_messages(self.plan.messages, KEYS)
        try:
            for first in range(0, len(messages), _PORTION):
                while self.progress.rows == 0 and first >= len(messages) * _FIRST_SHARE and not self._stopped.is_set():
                    self._stopped.wait(_POLL)
                if self._stopped.is_set():
                    return
                portion = messages[first : first + _PORTION]
                self.service.disturb(first / len(messages))
                self.service.publish(portion)
                self.messages += portion
                self.progress.published = len(self.messages)
        except BaseException as error:  # noqa: BLE001 - raised where the run waits
            self._failure = error

    def watch(self) -> None:
        """Run the queries, kill on the way, and end them when all rows have arrived."""
        self.process.start(self.service.failpoints)
        for planned in planned_kills(self.plan.seed, self.plan.kills):
            if not self._wait(partial(self._has_read, planned.share)):
                break
            self._kill(planned)
        if self._wait(partial(self._has_read, 1.0)):
            if self.service.duplicates is not None:
                self._wait(lambda: self.progress.duplicates > 0, _DUPLICATES_SECONDS)
            self._wait(lambda: False, _SETTLED_SECONDS)
        else:
            self.service.notes.append("Counted before all rows had arrived: the time was over, or no more came.")
        self.progress.stage = "stopping"
        self._update()
        self.stop_publishing()
        self.process.finish()

    def _has_read(self, share: float) -> bool:
        return self.progress.rows >= self.plan.messages * share

    def _kill(self, planned: Kill) -> None:
        hold, choose = self.plan.folder / "hold", random.Random(f"{self.plan.seed} {len(self.kills)}")  # noqa: S311
        if planned.held:
            hold.touch()
            written = self._writes()
            self._wait(lambda: self._writes() > written, _VICTIM_SECONDS)
        struck = self._wait(lambda: self.process.strike(planned.victim, choose), _VICTIM_SECONDS)
        hold.unlink(missing_ok=True)
        if not struck:
            self.service.notes.append(f"No {planned.victim} ran when one was to be killed.")
            return
        seconds = round(time.monotonic() - self._began, 1)
        self.kills.append(replace(planned, rows=self.progress.rows, seconds=seconds))
        self.progress.stage = f"killed with SIGKILL: {planned.victim} ({len(self.kills)} of {self.plan.kills})"
        rows = self.progress.rows
        self._wait(lambda: self.progress.rows > rows or rows >= self.plan.messages, _QUIET_SECONDS)
        self.progress.stage = "streaming again"

    def _writes(self) -> int:
        return sum(len(self.process.attempts(query)) for query in self.queries)

    def _wait(self, condition: Callable[[], bool], seconds: float = float("inf")) -> bool:
        """Wait until a condition holds; return False when the time is over or no rows come any more."""
        deadline = self._began + 60 * self.plan.minutes
        give_up_at, state, moved = time.monotonic() + seconds, (0, 0), time.monotonic()
        while True:
            self.process.check()
            if self._failure is not None:
                raise self._failure
            self._update()
            if condition():
                return True
            now = time.monotonic()
            if state != (now_at := (self.progress.rows, self.progress.published)):
                state, moved = now_at, now
            if now >= min(deadline, give_up_at, moved + _QUIET_SECONDS):
                return False
            time.sleep(_POLL)

    def _update(self) -> None:
        files = [query for query in self.queries if not query.sink]
        self.progress.rows = min(rows_written(self.process.attempts(query)) for query in files)
        self.service.update()
        self.progress.duplicates = self.service.duplicates or 0
        if self.progress.rows and self.progress.stage == "Spark starts":
            self.progress.stage = "streaming"
        self.show(self.progress)

    def count(self, query: Query) -> Tally:
        """Count the rows of a query, from its sink."""
        rows = list(self.service.read_back(query) if query.sink else _rows(self.plan, query))
        if self.plan.plant_loss and query is self.queries[0] and rows:
            rows.pop(len(rows) // 2)
        attempts = self.process.attempts(query)
        counted = tally(query.name, self.plan.run, self.messages, rows, attempts, self.service.repeated)
        if counted.disordered and not self.service.ordered:
            self.service.notes.append(f"{counted.disordered:,} out of order, which is no fault of a reader here.")
            return replace(counted, disordered=0)
        return counted


def _rows(plan: DemoPlan, query: Query) -> Iterator[Row]:
    for path in sink_files(plan.folder / query.name / "sink"):
        with pyarrow.ipc.open_file(path) as reader:
            columns = reader.read_all().select(["text", "place", "position"]).to_pydict().values()
            yield from map(Row, *columns)
