"""The processes of a history: drivers that run the query, fetchers, and the checkpoint and sink that they share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from connectors.core.errors import ConnectorError
from connectors.core.offsets import SENTINEL
from connectors.spool.fetching.contract import Intake
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.fetching.room import FetcherEndedError, FetcherFolder
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.options import SpoolOptions, StartingPosition
from connectors.spool.segments.segment import SegmentInfo, Slice, read_slices
from connectors.spool.stream.admission import StartedFetching, StreamSettings
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.micro_batch import SpoolStream
from tests.support.simulation.primitives import MONOTONIC_START, scheduler
from tests.support.simulation.scheduler import Process
from tests.support.simulation.service import ROW_BYTES, Message, Service, Target

Note = Callable[..., None]
ROWS_A_BATCH = 5
_POLL = 0.1
_SUPERVISE = 0.3
_CLOSE_SECONDS = 5.0
_AGAIN_SECONDS = 0.5
_FOR_A_START = {"SPOOL_IN_USE", "SPOOL_FENCED", "SPOOL_STORE_NO_ANSWER", "SPOOL_FETCHERS_BUSY", "SPOOL_DISK_FULL"}
"""Errors after which one starts the query again; any other one of the spool is a finding."""


class ConcurrentQueryError(Exception):
    """Raised as by Spark when another run of the query has logged the batch: this one ends."""


@dataclass
class Checkpoint:
    """Spark's two logs: a name is written once, by whoever comes first.

    A replay of a batch writes no offsets; what was logged is what it reads.
    """

    offsets: dict[int, str] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    def log_offsets(self, batch: int, end: str) -> None:
        scheduler().point()
        if batch in self.offsets:
            raise ConcurrentQueryError(batch)
        self.offsets[batch] = end

    def log_commit(self, batch: int) -> None:
        scheduler().point()
        if batch in self.commits:
            raise ConcurrentQueryError(batch)
        self.commits.add(batch)


@dataclass
class World:
    """What all processes of a history share.

    Attributes:
        root: where the spool is.
        asked: the positions that drivers wanted to commit.
        fetchers: the processes that fetch now.
        drivers: those that run the query, the newest last.
        wrong: what no check of a history sees: errors that must not come.
    """

    root: str
    service: Service
    note: Note
    fetcher_count: int = 1
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    asked: set[int] = field(default_factory=set)
    fetchers: list[Process] = field(default_factory=list)
    drivers: list[Process] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    delivered: set[str] = field(default_factory=set)
    _names: int = 0

    def process(self, kind: str, parent: Process | None = None) -> Process:
        self._names += 1
        return Process(f"{kind}-{self._names}", parent)

    @property
    def drained(self) -> bool:
        """Whether all that was published is in the sink, in committed batches."""
        return len(self.delivered) >= len(self.service.messages)

    def start_driver(self, *, take_over: bool = False) -> Process:
        """Start the query on a machine of its own; it starts again after errors that are no finding."""
        process = self.process("driver")
        self.drivers.append(process)
        scheduler().spawn(process, lambda: Driver(self, process, take_over=take_over).run(), "query")
        return process

    def options(self, *, take_over: bool) -> SpoolOptions:
        """Small segments, partitions and runs, so that much happens to few messages."""
        return SpoolOptions(
            spool_folder=self.root,
            starting_position=StartingPosition.EARLIEST,
            partition_bytes=3 * ROW_BYTES,
            max_partitions=4,
            max_spool_bytes=40 * ROW_BYTES,
            max_fetch_period=0.05,
            start_timeout=2.0,
            take_over=take_over,
        )


class Driver:
    """Spark's side of a query, by the rules of `tests.support.spark_protocol.query`, and the reader in its process."""

    def __init__(self, world: World, process: Process, *, take_over: bool) -> None:
        self._world, self._process, self._take_over = world, process, take_over

    def run(self) -> None:
        """Run the query until it stops; then its process ends, and a new one follows where a person would start it."""
        world, again = self._world, True
        try:
            self._run(self._open())
        except ConcurrentQueryError:
            world.note("stopped", process=self._process.name, code="another run of the query")
            again = False
        except ConnectorError as error:
            world.note("stopped", process=self._process.name, code=error.code)
            if error.code not in _FOR_A_START:
                again = False
                if not self._was_followed:
                    world.wrong.append(str(error))
        except OSError as error:
            world.note("stopped", process=self._process.name, code=f"{type(error).__name__}: {error}")
        if again:
            scheduler().at(scheduler().now + _AGAIN_SECONDS, lambda: world.start_driver() and None)
        scheduler().kill(self._process)

    @property
    def _was_followed(self) -> bool:
        """Whether another driver was started after this one, and may have freed what this one reads."""
        return self._world.drivers[-1] is not self._process

    def _open(self) -> SpoolStream:
        world = self._world
        compaction = CompactionSettings(free_segments=2, recent_ids=12, merge=2)
        settings = StreamSettings(world.options(take_over=self._take_over), "simulated", ("messages",), compaction)
        return SpoolStream(settings, self._start_fetching)

    def _start_fetching(self, ledger: Ledger, wake: Callable[[], None]) -> StartedFetching:
        identity, world = ledger.identity, self._world
        plan = FetchPlan(
            "",
            world.root,
            identity.spool,
            identity.hash_key,
            publish_period=0.05,
            segment_rows=8,
            segment_bytes=80,
            max_held_bytes=1 << 20,
            max_held_rows=1 << 20,
            ordered=world.service.ordered,
        )
        return Fetching(world, self._process, plan, ledger, wake), 1e6

    def _run(self, stream: SpoolStream) -> None:
        checkpoint = self._world.checkpoint
        latest = max(checkpoint.offsets, default=-1)
        batch, constructed = max(latest, 0), latest >= 0 and latest not in checkpoint.commits
        batch += latest >= 0 and not constructed
        while True:
            start = checkpoint.offsets.get(batch - 1) if batch else None
            if not constructed:
                end = self._ask(stream, start)
                if start is not None and end == start:
                    scheduler().sleep(_POLL)
                    continue
                checkpoint.log_offsets(batch, end)
                if start is not None:
                    self._world.asked.add(json.loads(start)["position"])
                    stream.commit(json.loads(start))
            end = checkpoint.offsets[batch]
            self._run_batch(stream, batch, start, end)
            batch, constructed = batch + 1, False

    def _ask(self, stream: SpoolStream, start: str | None) -> str:
        end = stream.latest_offset(dict(SENTINEL) if start is None else json.loads(start), ROWS_A_BATCH)
        stream.report_latest_offset()
        return json.dumps(end)

    def _run_batch(self, stream: SpoolStream, batch: int, start: str | None, end: str) -> None:
        parts = stream.partitions(dict(SENTINEL) if start is None else json.loads(start), json.loads(end))
        rows = [row for slices in parts for row in self._read(slices)]
        scheduler().point()
        self._world.note("batch", process=self._process.name, batch=batch, rows=rows)
        scheduler().point()
        self._world.checkpoint.log_commit(batch)
        self._world.note("commit", process=self._process.name, batch=batch)
        self._world.delivered |= {name for _, name in rows}

    def _read(self, slices: Sequence[Slice]) -> list[tuple[int, str]]:
        rows: list[tuple[int, str]] = []
        for kept in read_slices(self._world.root, slices):
            names = kept.rows.column("id").to_pylist()
            rows += zip(range(kept.position, kept.position + len(names)), names, strict=True)
        return rows


class Fetching:
    """The fetchers of a stream, each a process; another one follows one that has ended."""

    def __init__(
        self, world: World, driver: Process, plan: FetchPlan, ledger: Ledger, wake: Callable[[], None]
    ) -> None:
        self._world, self._driver, self._plan, self._ledger, self._wake = world, driver, plan, ledger, wake
        self._stopping = False
        self._places: list[Fetcher | None] = [None] * world.fetcher_count
        scheduler().spawn(driver, self._supervise, "fetchers")

    def allow(self, free_bytes: int) -> None:
        for place in self._places:
            if place is not None:
                place.allow(free_bytes // len(self._places))

    def status(self) -> list[FetcherStatus]:
        return [
            FetcherStatus(index, healthy=place is not None and place.healthy)
            for index, place in enumerate(self._places)
        ]

    def terminal_error(self) -> None:
        return None

    def stop(self) -> None:
        self._stopping = True
        for place in self._places:
            while place is not None and place.process.alive:
                place.stopping = True
                scheduler().sleep(_POLL)

    def _supervise(self) -> None:
        while not self._stopping:
            for index, place in enumerate(self._places):
                if (place is None or not place.process.alive) and self._may_start():
                    self._places[index] = Fetcher(self._world, self._driver, self._plan, self._wake)
            scheduler().sleep(_SUPERVISE)

    def _may_start(self) -> bool:
        if not self._plan.ordered:
            return True
        try:
            return self._ledger.earlier_fetchers_done()
        except (OSError, ConnectorError):
            return False


class Fetcher:
    """A fetcher process: `Intake` over the simulated service; it ends some time after the driver's process has."""

    def __init__(self, world: World, driver: Process, plan: FetchPlan, wake: Callable[[], None]) -> None:
        self.process = world.process("fetcher", driver)
        self.healthy = self.stopping = False
        self._world, self._driver, self._plan, self._wake = world, driver, plan, wake
        self._failed = False
        self._allowance = 0
        self._fetched = 0
        world.fetchers.append(self.process)
        scheduler().spawn(self.process, self._live, "fetcher")

    def allow(self, free_bytes: int) -> None:
        self._allowance = self._fetched + free_bytes

    def published(self, segment: SegmentInfo) -> None:
        self._fetched += segment.bytes
        if self._driver.alive:
            self._wake()

    def disk_changed(self, error: OSError | None) -> None:
        self.healthy = error is None

    def failed(self, error: BaseException) -> None:
        if not isinstance(error, FetcherEndedError | OSError):
            self._world.wrong.append(f"a fetcher ended with {error!r}")
        self._failed = True

    def _live(self) -> None:
        with contextlib.suppress(OSError, FetcherEndedError):
            folder = FetcherFolder(self._plan.root, None, self._plan.spool)
            intake: Intake[list[Message], list[str]] = Intake(self._plan, self, 0)
            intake.start(folder, Target(self._world.service, self.process))
            self.healthy = True
            while self._driver.alive and not self.stopping and not self._failed:
                scheduler().sleep(_POLL)
                intake.allow(self._allowance)
            intake.stop_receiving()
            if not intake.close(scheduler().now + MONOTONIC_START + _CLOSE_SECONDS):
                intake.abandon()
            folder.release()
        scheduler().kill(self.process)
