"""The micro-batch engine of the protocol driver; `tests.support.spark_protocol.driver` is the module to import."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyspark.sql.datasource import DataSource

from connectors.core.processes.failpoints import failpoint
from tests.support.spark_protocol.errors import (
    AttemptsDifferError,
    DriverCrashedError,
    NoBatchError,
    ProtocolError,
    QueryEndedError,
    ReplayDiffersError,
    UnexpectedBatchError,
)
from tests.support.spark_protocol.process import ReaderProcess, offset_text
from tests.support.spark_protocol.store import Checkpoint, digest
from tests.support.spark_protocol.stream import Batch, Source, Step, Stream, Trigger, known_trigger
from tests.support.spark_protocol.worker import CreatedSource, InProcessWorkers, ReadPlan, TaskWorkers

__all__ = ["StreamingQuery"]

_POLLING_SECONDS = 0.01
"""``spark.sql.streaming.pollingDelay``."""


class StreamingQuery:
    """A streaming query over one source, or several, as Spark's micro-batch engine runs it.

    Used as a context manager it starts at once and is stopped at the end. `start` and `stop` do the same.

    Args:
        source: the data source class, ``"module:Class"``, or a `Source`.
        options: options of the source, if it is not a `Source`.
        checkpoint: folder of the two logs.
        sink: called with the batch id and one table for each partition; for example a `FolderSink`. None drops rows.
        trigger: see `Trigger`.
        trigger_interval: seconds between two polls with ``processing_time``.
        poll_interval: seconds between two polls with nothing new otherwise.
        other_sources: further sources of the same query.
        workers: a number of worker processes, or workers that several queries share (they are not closed then),
            or `InProcessWorkers()`.
        reader_environment: changes to the environment of the reader processes, for example ``CONNECTORS_FAILPOINTS``.
        task_attempts: how often each partition is read, as with retries and speculation; the rows must be equal.
        call_timeout: seconds after which a call of a reader raises `ReaderTimeoutError`.

    Raises:
        TaskFailedError: at the start, when the source cannot be made.
        ReaderFailedError: at the start, when the reader cannot be made.
    """

    def __init__(  # noqa: PLR0913 - what a query of Spark is made of
        self,
        source: type[DataSource] | str | Source,
        options: Mapping[str, str] | None = None,
        *,
        checkpoint: Path | str,
        sink: Callable[[int, Sequence[pa.Table]], None] | None = None,
        trigger: Trigger = "default",
        trigger_interval: float = 0.1,
        poll_interval: float = _POLLING_SECONDS,
        other_sources: Sequence[Source] = (),
        workers: InProcessWorkers | int = 1,
        reader_environment: Mapping[str, str] | None = None,
        task_attempts: int = 1,
        call_timeout: float = 60.0,
    ) -> None:
        first = source if isinstance(source, Source) else Source(source, options or {})
        self.sources = [first, *other_sources]
        names = [each.name for each in self.sources]
        if any(names) and (not all(names) or len(set(names)) < len(names)):
            raise ProtocolError(f"each source needs a name of its own, or none has one: {names}")
        self.checkpoint = Checkpoint(checkpoint, names if all(names) else ())
        self.sink = sink
        self.trigger: Trigger = known_trigger(trigger)
        self.trigger_interval = trigger_interval
        self.poll_interval = poll_interval
        self.reader_environment = dict(reader_environment or {})
        self.task_attempts = task_attempts
        self.call_timeout = call_timeout
        self.batch_id = 0
        """The id of the batch that runs now or comes next."""
        self._own_workers = isinstance(workers, int)
        self._workers = TaskWorkers(workers) if isinstance(workers, int) else workers
        self._streams: list[Stream] = []
        self._hung_up: list[ReaderProcess] = []
        self._constructed = False
        self._replaying = False
        self._running = False
        self._crash: tuple[Step, int | None, bool] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def readers(self) -> list[ReaderProcess]:
        """The reader process of each source; after an end those of the last run."""
        return [stream.reader for stream in self._streams]

    @property
    def reader(self) -> ReaderProcess:
        """The reader process of the first source."""
        return self._streams[0].reader

    @property
    def is_running(self) -> bool:
        """Whether the query runs: not stopped, not failed, not at its end."""
        return self._running

    def start(self) -> None:
        """Make the sources and their reader processes, and find out from the checkpoint where to go on."""
        if self._running:
            raise ProtocolError("the query runs already")
        created = [self._workers.create(each.source_class(), each.options, each.schema) for each in self.sources]
        self._streams = []
        self._running = True
        try:
            for source, made in zip(self.sources, created, strict=True):
                reader = self._make_reader(made)
                self._streams.append(Stream(source, made, reader, reader.supported_features()))
            for stream in self._streams:
                stream.ask_for_limit(self.trigger)
            self._populate_start_offsets()
        except BaseException:
            self._end(ReaderProcess.kill)
            raise

    def _make_reader(self, made: CreatedSource) -> ReaderProcess:
        environment, timeout = self.reader_environment, self.call_timeout
        return ReaderProcess(made.pickled, made.schema, environment=environment, call_timeout=timeout)

    def _populate_start_offsets(self) -> None:
        """Spark's rules: run the latest logged batch again, unless it is committed; then go on behind it."""
        self.batch_id, self._constructed = 0, False
        latest = self.checkpoint.latest_offsets
        if latest is not None:
            starts = self.checkpoint.offsets(latest - 1) if latest > 0 else [None] * len(self._streams)
            ends = self.checkpoint.offsets(latest)
            if len(ends) != len(self._streams):
                raise ProtocolError(f"the checkpoint has {len(ends)} sources and the query has {len(self._streams)}")
            for stream, start, end in zip(self._streams, starts, ends, strict=True):
                stream.start, stream.end = start, end
            self.batch_id, self._constructed = latest, True
            if latest == self.checkpoint.latest_commit:
                self._next_batch()
        self._replaying = self._constructed

    def _next_batch(self) -> None:
        for stream in self._streams:
            stream.start = stream.end
        self.batch_id += 1
        self._constructed = False
        self._replaying = False

    def run_trigger(self, *, force: bool = False) -> Batch | None:
        """Run one trigger: ask for new data, and run a batch if there is any. Does not wait.

        Args:
            force: build a batch although this query's sources have nothing new, as happens in Spark when another
                source of the same query has, or when a stateful operator wants a batch without data.

        Returns:
            The batch, or None when there was nothing to run. Under ``once`` the query has ended after one trigger,
            under ``available_now`` after the first without a batch.

        Raises:
            QueryEndedError: the query does not run.
            DriverCrashedError: at the step given to `crash_at`.
            ReaderFailedError, ReaderDiedError, ReaderTimeoutError, TaskFailedError: a source or its process failed.
            AttemptsDifferError, ReplayDiffersError: rows that must be equal are not.

        All of these, and every error of the sink, end the query, as in Spark.
        """
        if not self._running:
            raise QueryEndedError("the query does not run; restart() goes on from its checkpoint")
        try:
            if not self._constructed:
                self._constructed = self._construct_batch(force=force)
            batch = self._run_constructed() if self._constructed else None
        except BaseException:
            self._end(ReaderProcess.stop)
            raise
        if self.trigger == "once" or (self.trigger == "available_now" and batch is None):
            self._end(ReaderProcess.stop)
        return batch

    def _construct_batch(self, *, force: bool) -> bool:
        """Ask every source; if one has new data, log the offsets and commit the batch before at the sources."""
        for stream in self._streams:
            stream.ask_for_end()
        if not (force or any(stream.has_new_data for stream in self._streams)):
            return False
        self.checkpoint.log_offsets(self.batch_id, [stream.end for stream in self._streams])
        self._step("offsets_logged")
        for stream in self._streams:
            if stream.start is not None:
                stream.reader.commit(stream.start)
        self._step("sources_committed")
        return True

    def _run_constructed(self) -> Batch:
        """Plan the batch, run its tasks, hand the rows to the sink, and log the commit."""
        starts = tuple(stream.start for stream in self._streams)
        ends = tuple(offset_text(stream.end) for stream in self._streams)
        tasks = self._plan_tasks()
        self._step("planned")
        tables = self._run_tasks(tasks)
        batch = Batch(self.batch_id, starts, ends, tuple(tables), digest(tables), self._replaying)
        self._compare_with_earlier_attempt(batch)
        self._step("tasks_done")
        if self.sink is not None:
            self.sink(self.batch_id, tables)
        self._step("sink_written")
        self.checkpoint.log_commit(self.batch_id)
        self._step("batch_committed")
        self._next_batch()
        return batch

    def _plan_tasks(self) -> list[tuple[ReadPlan, bytes]]:
        ranges = [
            (stream, stream.reader.initial_offset() if stream.start is None else stream.start)
            for stream in self._streams
            if stream.has_new_data
        ]
        tasks = []
        for stream, start in ranges:
            for _ in range(stream.source.scans):
                partitions = stream.reader.partitions(start, stream.end)
                stream.plan = stream.plan or self._workers.plan(stream.created, streaming=True)
                tasks += [(stream.plan, partition) for partition in partitions]
        return tasks

    def _run_tasks(self, tasks: list[tuple[ReadPlan, bytes]]) -> list[pa.Table]:
        tables = self._workers.read(tasks)
        for _ in range(1, self.task_attempts):
            for number, (first, again) in enumerate(zip(tables, self._workers.read(tasks), strict=True)):
                if digest([first]) != digest([again]):
                    raise AttemptsDifferError(
                        f"partition {number} of batch {self.batch_id} gave other rows when read again"
                    )
        return tables

    def _compare_with_earlier_attempt(self, batch: Batch) -> None:
        attempt = {"digest": batch.digest, "rows": [table.num_rows for table in batch.tables]}
        earlier = self.checkpoint.attempt(batch.batch_id) if batch.replayed else None
        if earlier is not None and earlier != attempt:
            raise ReplayDiffersError(f"batch {batch.batch_id} held {earlier} and now holds {attempt}")
        self.checkpoint.log_attempt(batch.batch_id, attempt)

    def _step(self, step: Step) -> None:
        failpoint(f"protocol.{step}")
        if self._crash is None or self._crash[0] != step or self._crash[1] not in (None, self.batch_id):
            return
        hang_up_only = self._crash[2]
        self._crash = None
        if hang_up_only:
            self._hung_up += self.readers
        self._end(ReaderProcess.hang_up if hang_up_only else ReaderProcess.kill)
        raise DriverCrashedError(f"at {step} of batch {self.batch_id}, as told")

    def crash_at(self, step: Step, batch_id: int | None = None, *, hang_up_only: bool = False) -> None:
        """Crash once at a step: the readers end and `DriverCrashedError` is raised; `restart` goes on afterwards.

        Args:
            step: one of `STEPS`.
            batch_id: the batch to crash in; the next one that comes there if None.
            hang_up_only: close the sockets and pipes of the readers instead of SIGKILL; see `ReaderProcess.hang_up`.
        """
        self._crash = (step, batch_id, hang_up_only)

    def _polls(self, timeout: float) -> Iterator[Batch | None]:
        """Triggers one after the other, with the pause between them, until the time is over."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            batch = self.run_trigger()
            yield batch
            if self.trigger == "processing_time":
                time.sleep(self.trigger_interval)
            elif batch is None:
                time.sleep(self.poll_interval)

    def run_batch(self, timeout: float = 30.0) -> Batch:
        """Poll until one batch has run, and return it.

        Raises:
            NoBatchError: none came in so many seconds; and all that `run_trigger` raises.
        """
        for batch in self._polls(timeout):
            if batch is not None:
                return batch
        raise NoBatchError(f"no batch in {timeout} s")

    def run_until(self, condition: Callable[[list[Batch]], bool], timeout: float = 30.0) -> list[Batch]:
        """Poll until a condition on the batches run here holds, and return them; asked after every trigger.

        Raises:
            NoBatchError: it did not hold in so many seconds; and all that `run_trigger` raises.
        """
        batches: list[Batch] = []
        for batch in self._polls(timeout):
            batches += [batch] if batch is not None else []
            if condition(batches):
                return batches
        raise NoBatchError(f"what was waited for did not come in {timeout} s; {len(batches)} batches ran")

    def process_available(self, timeout: float = 30.0) -> list[Batch]:
        """Run batches until a trigger finds nothing new, or the query ends by itself; return them.

        A source that fetches in the background may have more a moment later: wait with `run_until` there.

        Raises:
            NoBatchError: there was still something new after so many seconds; and all that `run_trigger` raises.
        """
        batches: list[Batch] = []
        for batch in self._polls(timeout):
            batches += [batch] if batch is not None else []
            if batch is None or not self._running:
                return batches
        raise NoBatchError(f"there is something new without end: {len(batches)} batches in {timeout} s")

    def idle(self, triggers: int = 10) -> None:
        """Run some triggers, with the pauses between them, that all must find nothing new.

        Raises:
            UnexpectedBatchError: one built a batch; and all that `run_trigger` raises.
        """
        for _ in range(triggers):
            if (batch := self.run_trigger()) is not None:
                raise UnexpectedBatchError(f"batch {batch.batch_id} from {batch.starts} to {batch.ends}")
            time.sleep(self.poll_interval)

    def stop(self) -> None:
        """Stop the query as Spark does: the readers get SIGTERM, `stop()` of a reader is not called."""
        self._end(ReaderProcess.stop)

    def kill(self) -> None:
        """End the readers with SIGKILL; nothing is logged, and `restart` goes on from the checkpoint."""
        self._end(ReaderProcess.kill)

    def restart(self, *, trigger: Trigger | None = None, reader_environment: Mapping[str, str] | None = None) -> None:
        """Stop if it runs, and start again on the same checkpoint, with the same workers.

        Args:
            trigger: another trigger from now on.
            reader_environment: another environment for the readers from now on.
        """
        self.stop()
        self.trigger = self.trigger if trigger is None else known_trigger(trigger)
        if reader_environment is not None:
            self.reader_environment = dict(reader_environment)
        self.start()

    def _end(self, how: Callable[[ReaderProcess], None]) -> None:
        """End the reader processes, all of them, even if one does not end as it should."""
        if self._running:
            self._running = False
            with contextlib.ExitStack() as stack:
                for stream in self._streams:
                    stack.callback(how, stream.reader)

    def close(self) -> None:
        """Stop the query and end its own workers; also kill readers that were only hung up."""
        self.stop()
        for reader in self._hung_up:
            reader.kill()
        if self._own_workers:
            self._workers.close()
