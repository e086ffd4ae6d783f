"""Threads that do small jobs at their times: what the source process asks the service in the background."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from connectors.core.errors import ServiceUnavailableError
from connectors.core.processes.parent import ParentWatch
from connectors.core.retry import WaitLog

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
    """Runs jobs, each by one thread at a time. The threads end with the process.

    A job that raises is not run again; ``failed`` is called with its error.
    """

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
        """Run a job in so many seconds."""
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
        """Never run a job again."""
        with self._changed:
            job.dropped = True

    def all_of(self, calls: Iterable[Callable[[], T]], what: str = "the service") -> list[T]:
        """Return the results of calls that are made side by side; raises what the first call that failed raised.

        ``what`` says in the log what is waited for, when that takes long.
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
            raise ServiceUnavailableError("KINESIS_CALLER_GONE", "The process that asked is gone")

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
