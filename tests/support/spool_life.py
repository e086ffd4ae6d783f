"""A whole life of a spool in one process: a service, a fetcher, the stream and the protocol driver over them.

All of the spool is the real thing - `Intake`, `SpoolStream`, and what is below them; only the processes around them
are threads here, so that one disk can stand under all of them and hundreds of restarts take seconds.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from connectors.core.offsets import SENTINEL
from connectors.spool.errors import no_room
from connectors.spool.fetching.contract import Block, Intake, TargetStatus
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.fetching.room import FetcherEndedError, FetcherFolder
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.options import SpoolOptions, StartingPosition
from connectors.spool.segments.segment import SegmentInfo, read_slices
from connectors.spool.stream.admission import StartedFetching, StreamSettings
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.micro_batch import SpoolStream
from tests.support.in_process_query import InProcessQuery
from tests.support.spark_protocol.driver import FolderSink, InProcessWorkers

ROW_BYTES = 10
ROWS_A_BATCH = 5

_SCHEMA = StructType(
    [StructField("id", StringType()), StructField("payload", BinaryType()), StructField("offset", LongType())]
)
_FIRST_ID = 16_000_000_000_000_000
_ROWS_A_DELIVERY = 3
_CLOSE_SECONDS = 5.0
_RETRY_SECONDS = 0.02


class Service:
    """Messages, each delivered until it is acked."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.acked: dict[str, int] = {}
        self.changed = threading.Condition()
        self.now: Callable[[], int] = lambda: 0
        """What is noted beside an ack: how far the run was."""
        self._again: list[str] = []

    def publish(self, count: int) -> None:
        with self.changed:
            first = len(self.published)
            # Every third id is not a number, so that both kinds of keys are in the runs.
            new = [
                f"m{number}" if number % 3 == 2 else str(_FIRST_ID + number) for number in range(first, first + count)
            ]
            self.published += new
            self.changed.notify_all()

    def redeliver(self, count: int) -> None:
        """Deliver messages once more that were acked, the oldest and the newest."""
        with self.changed:
            acked = list(self.acked)
            self._again += [*acked[: count // 2], *acked[-(count - count // 2) :]]
            self.changed.notify_all()

    def ack(self, ids: Sequence[str]) -> None:
        with self.changed:
            for each in ids:
                self.acked.setdefault(each, self.now())
            self.changed.notify_all()

    def due(self, delivered: set[str]) -> list[str]:
        """What a fetcher that holds some messages gets now."""
        again, self._again = self._again, []
        return again + [each for each in self.published if each not in self.acked and each not in delivered]


class Target:
    """The fetcher's side of the service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._held: set[str] = set()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, intake: Intake[list[str], list[str]]) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._receive, args=(intake,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        with self._service.changed:
            self._service.changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _receive(self, intake: Intake[list[str], list[str]]) -> None:
        service = self._service
        while not self._stopped.is_set():
            with service.changed:
                due = service.due(self._held)
                if not due:
                    service.changed.wait(_RETRY_SECONDS)
                    continue
                self._held.update(due)
            for first in range(0, len(due), _ROWS_A_DELIVERY):
                ids = due[first : first + _ROWS_A_DELIVERY]
                intake.put(ids, ROW_BYTES * len(ids), len(ids))

    def decode(self, deliveries: Sequence[list[str]]) -> Block[list[str]]:
        ids = [each for delivery in deliveries for each in delivery]
        rows = pa.record_batch({"id": pa.array(ids, pa.string()), "payload": pa.array([i.encode() for i in ids])})
        times = [self._service.published.index(each) for each in ids]
        sizes = np.full(len(ids), ROW_BYTES, np.int64)
        return Block(rows, pa.array(ids, pa.string()), sizes, (min(times), max(times)), ids)

    def on_durable(self, token: list[str]) -> None:
        self._service.ack(token)
        self._held.difference_update(token)

    def on_given_up(self, held: Sequence[list[str]]) -> None:
        for ids in held:
            self._held.difference_update(ids)

    def status(self) -> TargetStatus:
        return TargetStatus(1, 1, None)

    def close(self, _deadline: float) -> None:
        pass


class Fetching:
    """The fetcher of a stream, in a thread; when one life ends by itself, the next one begins."""

    def __init__(self, plan: FetchPlan, service: Service, on_published: Callable[[], None]) -> None:
        self._plan, self._service, self._on_published = plan, service, on_published
        self._ending = threading.Event()
        self._life_over = threading.Event()
        self.disk_error: OSError | None = None
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def allow(self, free_bytes: int) -> None:
        pass

    def status(self) -> list[FetcherStatus]:
        return [FetcherStatus(0, healthy=self.disk_error is None)]

    def terminal_error(self) -> None:
        return None

    def stop(self) -> None:
        self._ending.set()
        self._life_over.set()
        self._thread.join()

    def published(self, _segment: SegmentInfo) -> None:
        self._on_published()

    def disk_changed(self, error: OSError | None) -> None:
        self.disk_error = error

    def failed(self, error: BaseException) -> None:
        assert isinstance(error, FetcherEndedError | OSError), error
        self._life_over.set()

    def _live(self) -> None:
        while not self._ending.is_set():
            try:
                folder = FetcherFolder(self._plan.root)
            except (OSError, FetcherEndedError):
                self._ending.wait(_RETRY_SECONDS)
                continue
            intake: Intake[list[str], list[str]] = Intake(self._plan, self)
            intake.start(folder, Target(self._service))
            self._life_over.wait()
            intake.stop_receiving()
            if not intake.close(time.monotonic() + _CLOSE_SECONDS):
                intake.abandon()
            folder.release()
            if not self._ending.is_set():
                self._life_over.clear()


@dataclass
class LifePartition(InputPartition):
    root: str
    slices: tuple[Any, ...]


class LifeSource(DataSource):
    """The source over the spool of the `SpoolLife` that an option names."""

    @classmethod
    def name(cls) -> str:
        return "spool_life"

    def schema(self) -> StructType:
        return _SCHEMA

    def streamReader(self, schema: StructType) -> LifeReader:  # noqa: ARG002 - Spark's interface
        return LifeReader(int(self.options["life"]))


class LifeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What `PubSubStreamReader` is, for a service in this process."""

    def __init__(self, life: int) -> None:
        self._life = life
        self._stream: SpoolStream | None = None

    def _open(self) -> SpoolStream:
        if self._stream is None:
            self._stream = LIVES[self._life].open_stream()
        return self._stream

    def initialOffset(self) -> dict[str, Any]:
        return dict(SENTINEL)

    def getDefaultReadLimit(self) -> ReadMaxRows:
        return ReadMaxRows(ROWS_A_BATCH)

    def prepareForTriggerAvailableNow(self) -> None:
        self._open().prepare_for_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadMaxRows) -> Mapping[str, Any]:
        return self._open().latest_offset(start, limit.max_rows)

    def reportLatestOffset(self) -> Mapping[str, Any]:
        return self._open().report_latest_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LifePartition]:
        root = str(LIVES[self._life].spool)
        return [LifePartition(root, tuple(slices)) for slices in self._open().partitions(start, end)]

    def read(self, partition: LifePartition) -> Iterator[pa.RecordBatch]:
        for kept in read_slices(partition.root, partition.slices):
            offsets = np.arange(kept.position, kept.position + len(kept.rows))
            names = [*kept.rows.schema.names, "offset"]
            yield pa.RecordBatch.from_arrays([*kept.rows.columns, pa.array(offsets)], names=names)

    def commit(self, end: dict[str, Any]) -> None:
        self._open().commit(end)

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.stop()


LIVES: dict[int, SpoolLife] = {}
_numbers = itertools.count()


class SpoolLife:
    """A service, a spool on a disk, a checkpoint and a sink elsewhere, and queries over them.

    Used as a context manager it can be found by its queries.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        self.disk.mkdir(exist_ok=True)
        self.spool = self.disk / "spool"
        self.service = Service()
        self.stream: SpoolStream | None = None
        self._number = next(_numbers)

    def __enter__(self) -> Self:
        LIVES[self._number] = self
        return self

    def __exit__(self, *_: object) -> None:
        del LIVES[self._number]

    @property
    def sink(self) -> FolderSink:
        return FolderSink(self.folder / "sink")

    def query(self, query_class: type[InProcessQuery] = InProcessQuery) -> InProcessQuery:
        """A query on the life's checkpoint and sink."""
        options = {"life": str(self._number)}
        return query_class(
            LifeSource,
            options,
            checkpoint=self.folder / "checkpoint",
            sink=self.sink,
            workers=InProcessWorkers(),
            poll_interval=0.002,
        )

    def open_stream(self) -> SpoolStream:
        """What the reader opens: small segments, partitions and runs, so that much happens to few messages."""
        options = SpoolOptions(
            spool_folder=self.spool,
            starting_position=StartingPosition.EARLIEST,
            partition_bytes=3 * ROW_BYTES,
            max_partitions=4,
            max_spool_bytes=1 << 30,
            max_fetch_period=0.001,
            start_timeout=5.0,
            available_now_quiet=1.0,
            available_now_max_wait=5.0,
        )
        compaction = CompactionSettings(free_segments=2, merge=2)
        settings = StreamSettings(options, "spool_life", ("messages",), compaction)
        self.stream = None
        self.stream = SpoolStream(settings, self._start_fetching)
        return self.stream

    def _start_fetching(self, ledger: Ledger, wake: Callable[[], None]) -> StartedFetching:
        identity = ledger.identity
        plan = FetchPlan(
            "",
            str(self.spool),
            identity.spool,
            identity.hash_key,
            publish_period=0.001,
            segment_rows=4,
            segment_bytes=40,
            max_held_bytes=1 << 20,
            max_held_rows=1 << 20,
        )
        return Fetching(plan, self.service, wake), 1e6

    def publish_and_read(self, query: InProcessQuery, count: int, timeout: float = 30.0) -> None:
        """Publish messages, and run batches until all that was ever published is in the sink."""
        self.service.publish(count)
        self.read_all(query, timeout)

    def read_all(self, query: InProcessQuery, timeout: float = 30.0) -> None:
        if self.sink.rows() < len(self.service.published):
            query.run_until(lambda _: self.sink.rows() >= len(self.service.published), timeout)

    def compact(self) -> None:
        """Free and merge now; the stream does it soon, merges once a second, and on a full disk a minute later."""
        assert self.stream is not None
        compaction = self.stream._background.compaction
        assert compaction is not None
        try:
            compaction.step(read_from=self.stream._background.backlog.read_from())
            while compaction.merge():
                pass
        except OSError as error:
            if not no_room(error):
                raise

    def assert_each_once(self) -> None:
        found = self.sink.lost_and_doubled(self.service.published, "id")
        assert not found.lost, f"lost: {found.lost}"
        assert not found.doubled, f"doubled: {found.doubled}"
        assert self.sink.values("offset") == list(range(len(self.service.published)))
