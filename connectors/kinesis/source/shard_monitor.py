"""What the source process has seen of streams and shards, updated in the background: Spark asks every 10 ms."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, TypeVar

from connectors.core.aws.access import is_of_aws
from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.core.processes.parent import ParentWatch
from connectors.core.retry import Outage, WaitLog, wait_out
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.offsets import Position, ShardState, Streams
from connectors.kinesis.options.client import client_options
from connectors.kinesis.shards import Listing, Piece, Seen, ShardKey, newest
from connectors.kinesis.source.latest_record import BUSY_CALLS, PLANNING_SECONDS, LatestRecord, Pacer, PollTask
from connectors.kinesis.source.pages import ShardPages

if TYPE_CHECKING:
    from connectors.kinesis.client.client import Page
    from connectors.kinesis.options.source import KinesisReadOptions

T = TypeVar("T")

_SLICE_SECONDS: Final = 0.1


@dataclass(eq=False)
class Job:
    """Something that is done again and again: ``run`` returns the seconds to the next time, None for never."""

    run: Callable[[], float | None]
    due: float | None = None
    running: bool = False
    hurried: bool = False
    dropped: bool = False


class Scheduler:
    """Runs jobs, each in one thread at a time. A job that raises ends, and ``failed`` gets its error."""

    def __init__(self, threads: int, failed: Callable[[BaseException], object]) -> None:
        self._most = threads
        self._failed = failed
        self._parent = ParentWatch()
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Job]] = []
        self._order = itertools.count()
        self._threads = 0
        self._idle = 0
        self._stopped = threading.Event()

    def add(self, job: Job, delay: float = 0.0) -> None:
        with self._changed:
            self._schedule(job, time.monotonic() + delay)

    def hurry(self, job: Job) -> None:
        """Run a job at once; if it is running, then once more after that."""
        with self._changed:
            if job.running:
                job.hurried = True
            else:
                self._schedule(job, time.monotonic())

    def drop(self, job: Job) -> None:
        with self._changed:
            job.dropped = True

    def all_of(self, calls: Iterable[Callable[[], T]], what: str = "the service") -> list[T]:
        """Return the results of calls made in parallel, or raise the error of the first that failed.

        ``what`` names in the log what a long wait is for.
        """
        log = WaitLog(lambda: what)
        futures: list[Future[T]] = []
        for call in calls:
            futures.append(Future())
            self.add(Job(partial(_fulfil, futures[-1], call)))
        for future in futures:
            while not wait([future], _SLICE_SECONDS).done:
                self.check_parent()
                log.tick()
            future.result()
        return [future.result() for future in futures]

    def check_parent(self) -> None:
        """Raise a `ServiceUnavailableError` when the process that started this one is gone: nobody waits."""
        if self._parent.is_gone():
            raise ServiceUnavailableError("KINESIS_CALLER_GONE", "The process that made the request has ended")

    def stop(self) -> None:
        """End the threads, each after the job that it runs now, and the waits of `pause`."""
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Wait in a job, for so long or until `stop`; return whether it was called."""
        return self._stopped.wait(seconds)

    def _schedule(self, job: Job, due: float) -> None:
        """Note when a job is due; the caller holds the lock."""
        job.due = due
        heapq.heappush(self._heap, (due, next(self._order), job))
        self._wake()

    def _wake(self) -> None:
        """Make a thread look at what is due next; the caller holds the lock."""
        if self._idle == 0 and self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, name="kinesis", daemon=True).start()
        self._changed.notify()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            delay: float | None = None
            try:
                delay = job.run()
            except Exception as error:  # noqa: BLE001 - the owner of the job gets it
                self._failed(error)
            with self._changed:
                job.running = False
                if not job.dropped and (job.hurried or delay is not None):
                    self._schedule(job, time.monotonic() + (0.0 if job.hurried else delay or 0.0))
                job.hurried = False

    def _next(self) -> Job | None:
        """Wait for a job that is due; None after `stop`."""
        with self._changed:
            while not self._stopped.is_set():
                now = time.monotonic()
                while self._heap and self._heap[0][0] <= now:
                    due, _, job = heapq.heappop(self._heap)
                    if job.due == due and not job.running and not job.dropped:
                        job.running, job.due = True, None
                        if self._heap:
                            self._wake()  # one idle thread may have been woken for several jobs before it took this one
                        return job
                self._idle += 1
                self._changed.wait(self._heap[0][0] - now if self._heap else None)
                self._idle -= 1
            return None


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised where the result is wanted
        future.set_exception(error)


_log = logging.getLogger(__name__)

_THREADS: Final = 16
_SHARE_OF_A_CORE: Final = 0.25
"""For polling; the rest of half a core is for listing, planning, and what Python needs beside."""
_PROBE_WINDOW_MS: Final = 1000
"""How far behind the newest record of a busy shard a batch may end: the driver asks for a record this old, instead of
reading up to the newest."""
_COVERED_SECONDS: Final = 1.0
_SMOOTHING: Final = 0.1
_NAMED_SHARDS: Final = 3
ENDED: Final = Seen(ended=True)
"""What is seen of a closed shard."""


class PushSource:
    """A source of latest records beside polling; this one pushes nothing and caches nothing."""

    def start_over(self) -> None:
        """Drop what an earlier query cached: the checkpoint is a new one."""

    def bound(self, *, bounded: bool) -> None:
        """Open no subscriptions: this run has an end."""

    def follow(self, shards: Mapping[ShardKey, ShardState], listings: Collection[Listing]) -> None:
        """Push the records of just these shards, each from how far it has been read."""

    def covers(self, _task: PollTask) -> bool:
        """Return whether a shard needs no polling, because its records are pushed."""
        return False

    def pieces(self, _key: ShardKey, _created_ms: int, _begin: Position, _end: Position) -> tuple[Piece, ...]:
        """Return the parts of a range that are cached."""
        return ()

    def forget(self, read: Streams) -> None:
        """Drop what lies before the end of a committed batch."""

    def stop(self) -> None:
        """End its processes."""


class ShardMonitor:
    """Lists streams and follows shards to their latest records, polled or pushed by `push_source`.

    Calls raise a `ConnectorError`, their own or one from the background. A shard without progress for ``patience``
    seconds is given up for a round.
    """

    def __init__(self, options: KinesisReadOptions, patience: float = PLANNING_SECONDS) -> None:
        self.options = options
        self._patience = patience
        self.client = KinesisClient(client_options(options), _THREADS)
        self.scheduler = Scheduler(_THREADS, self.fail)
        self.push_source = PushSource()
        self.pacer = Pacer(options.min_fetch_period, options.max_fetch_rate * 1e6)
        self.round_seconds = 0.0
        """Smoothed processor time of a round of one shard."""
        self.version = 0
        """Grows with everything that is seen."""
        self._changed = threading.Condition()
        self._listings: dict[str, Listing] = {}
        self._listing_job = Job(self._list_again)
        self._tasks: dict[ShardKey, PollTask] = {}
        self._jobs: dict[ShardKey, Job] = {}
        self._error: BaseException | None = None

    @cached_property
    def _is_aws(self) -> bool:
        return is_of_aws(self.client.address()[1])

    @property
    def keeps_limits(self) -> bool:
        """Whether the arrivals in a shard are surely within the limits of AWS: so it is its own service, so far."""
        return self._is_aws and not self.pacer.above_limits

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _raise_error(self) -> None:
        """Raise the error of the background, once; the caller holds the lock."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def listings(self, *, fresh: bool) -> list[Listing]:
        """Return the streams and their shards, as they are now or as listed at most ``shardFetchInterval`` ago."""
        with self._changed:
            self._raise_error()
            if self._listings and not fresh:
                return list(self._listings.values())
        first = not self._listings
        calls = [partial(self._patiently, partial(self.client.listing, stream)) for stream in self.options.streams]
        self._store_listings(self.scheduler.all_of(calls, "the list of shards"))
        if first:
            self.scheduler.add(self._listing_job, self.options.shard_fetch_interval)
        return list(self._listings.values())

    def last_listings(self) -> list[Listing]:
        """Return the streams as they were listed last, whatever has failed since."""
        return list(self._listings.values()) or self.listings(fresh=True)

    def list_now(self) -> None:
        """List the shards in the background: one has ended, and its children exist."""
        self.scheduler.hurry(self._listing_job)

    def _list_again(self) -> float:
        self._store_listings([self._patiently(partial(self.client.listing, stream)) for stream in self.options.streams])
        return self.options.shard_fetch_interval

    def _patiently(self, call: Callable[[], T]) -> T:
        """Make a call until it succeeds, an outage has lasted too long, or the query ends."""
        return wait_out(call, self.options.outage_rule, sleep=self.scheduler.pause)

    def _store_listings(self, listings: Collection[Listing]) -> None:
        with self._changed:
            self._listings = {listing.stream: listing for listing in listings}
            self.version += 1

    def follow(self, shards: Mapping[ShardKey, ShardState], listings: Collection[Listing]) -> None:
        """Follow just these shards of these streams, each from how far it has been read."""
        streams = {listing.arn: listing for listing in listings}
        for key in self._tasks.keys() - shards.keys():
            del self._tasks[key]
            self.scheduler.drop(self._jobs.pop(key))
        for key in shards.keys() - self._tasks.keys():
            stream = streams[key[0]]
            latest = LatestRecord(
                self.client,
                stream.stream,
                key[1],
                shards[key],
                window_ms=_PROBE_WINDOW_MS,
                oldest_ms=stream.at_ms - stream.retention_ms,
                patience=self._patience,
                counted=partial(self.pacer.counted, key),
            )
            task = self._tasks[key] = PollTask(key, latest, Outage(self.options.outage_rule), self.pacer)
            job = self._jobs[key] = Job(partial(self._poll, task))
            self.scheduler.add(job)
        self.push_source.follow(shards, listings)

    def _poll(self, task: PollTask) -> float | None:
        """Do a step of a task, if it is due; return the seconds to the next, None when the shard has ended."""
        cpu = time.thread_time()
        if task.seen.ended:
            return None
        if task.fresh_as_of >= task.wanted and self.push_source.covers(task):
            return _COVERED_SECONDS
        exact = task.exact
        try:
            delay = task.step(exact=exact)
        except ConnectorError as error:
            self.fail(error)
            return self.options.min_fetch_period
        if delay is not None:
            return delay
        self._add_cpu(task, time.thread_time() - cpu)
        if task.latest.is_stalled and not exact:
            _log.warning(
                "%s The query continues without the records that the shard may hold.", task.latest.progress.error()
            )
        with self._changed:
            self._show(task)
            if task.latest.settled:
                task.end_round(exact=exact)
        if task.latest.seen.ended:
            self.list_now()
        return self.pause_seconds(task.idle_rounds) if task.latest.settled else 0.0

    def _add_cpu(self, task: PollTask, seconds: float) -> None:
        task.cpu_seconds += seconds  # a round of a busy shard takes several steps
        if task.latest.settled:
            self.round_seconds += _SMOOTHING * (task.cpu_seconds - self.round_seconds)
            task.cpu_seconds = 0.0

    def seen(self, key: ShardKey) -> Seen:
        """Return what was seen of the newest records of a shard; one that is not followed is closed."""
        return self._tasks[key].seen if key in self._tasks else ENDED

    def refresh(self, *, exact: bool) -> None:
        """Wait until every followed shard has been polled again, up to its newest record if ``exact``.

        A shard without progress counts as polled; with ``exact`` its error is raised.
        """
        asked = time.monotonic()
        waiting = list(self._tasks.values())
        log = WaitLog(lambda: _unpolled([task for task in waiting if not task.is_done(asked)]))
        for task in waiting:
            task.exact, task.wanted = exact, asked
            self.poll_now(task.key)
        with self._changed:
            while not all(task.is_done(asked) for task in waiting):
                self._raise_error()
                self._changed.wait(_SLICE_SECONDS)
                self.scheduler.check_parent()
                log.tick()
        if exact and (stalled := [task for task in waiting if task.latest.is_stalled]):
            raise stalled[0].latest.progress.error()

    def finish_searches(self, seconds: float) -> None:
        """Wait until no followed shard is being searched for its newest record, for so long at most."""
        asked = time.monotonic()
        searching = [task for task in self._tasks.values() if task.latest.is_searching]
        for task in searching:
            self.poll_now(task.key)
        with self._changed:
            while time.monotonic() < asked + seconds and any(
                task.latest.is_searching and not task.seen.ended and not self.push_source.covers(task)
                for task in searching
            ):
                self._raise_error()
                self._changed.wait(_SLICE_SECONDS)
                self.scheduler.check_parent()

    def push(self, key: ShardKey, seen: Seen) -> None:
        """Take what was seen of a shard without polling."""
        with self._changed:
            task = self._tasks.get(key)
            if task is None:
                return
            task.pushed = seen
            self._show(task)
        if seen.ended:
            self.list_now()

    def _show(self, task: PollTask) -> None:
        seen = newest(task.latest.seen, task.pushed)
        self.version += task.seen != seen
        task.seen = seen
        self._changed.notify_all()

    def poll_now(self, key: ShardKey) -> None:
        if (job := self._jobs.get(key)) is not None:
            self.scheduler.hurry(job)

    def set_busy(self, shards: Collection[ShardKey]) -> None:
        """Leave most of the calls to these shards to the tasks of a batch, until the next call."""
        idle = self.pacer.set_busy(shards)
        if self._round_period() <= self.options.min_fetch_period * BUSY_CALLS:
            for key in idle & self._tasks.keys():
                self.poll_now(key)
        # Else there are so many shards that polls are rarer than those calls: they stay at their pace.

    def pages(self, key: ShardKey, stream: str) -> ShardPages:
        """Return the pages of a shard, to be read beside its task at the same pace; ``stream`` is its name or ARN."""

        def in_turn(call: Callable[[], Page]) -> Page:
            return self._patiently(partial(self._paced, key, call))

        return ShardPages(self.client, stream, key[1], in_turn)

    def _paced(self, key: ShardKey, call: Callable[[], Page]) -> Page:
        if (wait := self.pacer.wait_seconds(key)) > 0:
            time.sleep(wait)
        return self.pacer.counted(key, call)

    def pause_seconds(self, idle_rounds: int) -> float:
        """Return the pause between two rounds: more when nothing comes, and when there are many shards to poll."""
        idle = self.options.min_fetch_period * 2.0 ** min(idle_rounds, 30)
        return max(self._round_period(), min(idle, self.options.idle_fetch_period))

    def _round_period(self) -> float:
        """Return the seconds between two rounds of a shard at which all of them take their share of a core."""
        return len(self._tasks) * self.round_seconds / _SHARE_OF_A_CORE

    def stop(self) -> None:
        self.push_source.stop()
        self.scheduler.stop()


def _unpolled(tasks: list[PollTask]) -> str:
    named = "; ".join(task.latest.progress.state() for task in tasks[:_NAMED_SHARDS])
    return f"{len(tasks)} shards to be polled up to their newest records: {named}"
