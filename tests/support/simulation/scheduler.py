"""Steps simulated threads one at a time: a seed chooses which one is next, and time passes only here."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any, Final

import greenlet

_STEP_SECONDS: Final = 4e-5
"""The most that one step takes."""
_PAUSE_CHANCE: Final = 0.002
_PAUSES: Final = (0.01, 0.1, 1.0, 5.0)


class HistoryEndlessError(Exception):
    """Raised when a history has neither ended nor failed after so many steps."""


class Process:
    """A simulated process on a machine of its own; its threads end together when it is killed.

    Attributes:
        clock: seconds by which its wall clock is wrong.
        paused_until: before this time none of its threads runs, as in a process that was stopped.
        kill_in: at this many more steps the process is killed; None for never.
        locks: descriptors of the files that it has locked.
    """

    def __init__(self, name: str, parent: Process | None = None) -> None:
        self.name = name
        self.parent = parent
        self.alive = True
        self.clock = 0.0 if parent is None else parent.clock
        self.paused_until = 0.0
        self.kill_in: int | None = None
        self.locks: set[int] = set()


class Task:
    """One simulated thread."""

    def __init__(self, process: Process, name: str, body: Callable[[], None], hub: Any) -> None:
        self.process = process
        self.name = name
        self.wait: object = None
        """What it waits for, while it does: each wait is an object of its own, so that nothing earlier ends it."""
        self.woken = False
        self.done = False
        self.greenlet = greenlet.greenlet(body, hub)


class Scheduler:
    """Runs tasks until a condition holds.

    Attributes:
        now: seconds since the history began.
        preemption: how often a step of a task ends where another one could go on, as a probability.
        failed: called with a task and what it has raised.
    """

    def __init__(self, seed: str, preemption: float = 0.3, pauses: float = 1.0) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.preemption = preemption
        self.pauses = pauses * _PAUSE_CHANCE
        self.current: Task | None = None
        self.failed: Callable[[Task, BaseException], None] = lambda _task, _error: None
        self.killed: Callable[[Process], None] = lambda _process: None
        self.steps = 0
        self._hub = greenlet.getcurrent()
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._graveyard: list[Task] = []

    def spawn(self, process: Process, work: Callable[[], object], name: str) -> Task:
        """Begin a task; it runs when the scheduler chooses it."""

        def body() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - a thread that ends with an error is told, as by Python
                self.failed(task, error)
            task.done = True

        task = Task(process, name, body, self._hub)
        self._graveyard.append(task)
        self._ready.append(task)
        return task

    def run(self, ended: Callable[[], bool], most_steps: int) -> None:
        """Run until `ended` is true.

        Raises:
            HistoryEndlessError: after `most_steps`, or when nothing is left that could happen.
        """
        while not ended():
            self.steps += 1
            if self.steps > most_steps:
                raise HistoryEndlessError(f"{most_steps} steps, {self.now:.0f} s")
            if not self._ready:
                if not self._timers:
                    raise HistoryEndlessError("every thread waits for ever")
                self.now = max(self.now, self._timers[0][0])
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
            if self._ready:
                self._step(self._ready)

    def _step(self, ready: list[Task]) -> None:
        chosen = int(self.random.random() * len(ready))
        task, ready[chosen] = ready[chosen], ready[-1]
        ready.pop()
        process = task.process
        if not process.alive:
            return
        if process.paused_until > self.now:
            self.at(process.paused_until, lambda: self._ready.append(task))
            return
        self.current = task
        task.greenlet.switch()
        self.current = None
        self.now += self.random.random() * _STEP_SECONDS

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Call a function at a time, outside of every task."""
        heapq.heappush(self._timers, (when, next(self._numbers), act))

    # What a task calls, by the primitives.

    def point(self) -> None:
        """Let another task go on here, perhaps; the process may be killed here."""
        task = self.current
        if task is None:
            return
        process = task.process
        if process.kill_in is not None:
            process.kill_in -= 1
            if process.kill_in <= 0:
                self.kill(process)
        if not process.alive:
            self._hub.switch()
        chance = self.random.random()
        if chance < self.pauses:
            self.sleep(self.random.choice(_PAUSES) * self.random.random())
        elif chance < self.preemption:
            self._ready.append(task)
            self._hub.switch()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self.park(self.now + max(seconds, 0.0))

    def park(self, deadline: float | None = None) -> bool:
        """Wait until `wake`; return False if the deadline came first."""
        task = self.current
        if task is None:
            raise RuntimeError("only a simulated thread can wait")
        task.woken = False
        wait = task.wait = object()
        if deadline is not None:

            def over() -> None:
                if task.wait is wait:
                    task.wait = None
                    self._ready.append(task)

            self.at(deadline, over)
        self._hub.switch()
        return task.woken

    def wake(self, task: Task) -> bool:
        """Let a task that is parked go on; return False if its wait is over already."""
        if task.wait is None:
            return False
        task.wait, task.woken = None, True
        self._ready.append(task)
        return True

    def kill(self, process: Process) -> None:
        """End a process at once: no thread of it runs any more, not even what is in ``finally``."""
        if not process.alive:
            return
        process.alive = False
        self.killed(process)
        if self.current is not None and self.current.process is process:
            self._hub.switch()
