"""The parts of `threading`, `queue`, `time` and `secrets` that the spool uses, on the scheduler of the present history.

`install` puts them in the place of Python's own. It comes before the first import of what uses them.
"""

from __future__ import annotations

import fcntl
import os
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from tests.support.simulation.scheduler import Scheduler, Task

_EPOCH = 1_800_000_000.0
_LOCK_POLL = 0.001
MONOTONIC_START = 1000.0
_scheduler = [Scheduler("before the first history")]
_real_flock, _real_close = fcntl.flock, os.close


def scheduler() -> Scheduler:
    """Return the scheduler of the present history."""
    return _scheduler[-1]


def use(new: Scheduler) -> None:
    """Begin another history."""
    _scheduler[:] = [new]


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None or timeout < 0 else scheduler().now + timeout


def _discard(waiting: deque[Task] | list[Task], task: Task) -> None:
    """Forget a task whose wait has ended by its timeout; whoever wanted to wake it may have done so before."""
    if task in waiting:
        waiting.remove(task)


class Lock:
    """`threading.Lock`.

    One that a module makes when it is imported belongs to no simulated process, so it locks nothing: a process that was
    killed would leave it locked for all others.
    """

    def __init__(self) -> None:
        self._is_shared = scheduler().current is None
        self._held = False
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = scheduler()
        here.point()
        deadline = _deadline(timeout)
        while self._held and not self._is_shared:
            if not blocking or here.current is None:
                return False
            task = here.current
            self._waiting.append(task)
            if not here.park(deadline):
                _discard(self._waiting, task)
                return False
        self._held = True
        return True

    def release(self) -> None:
        if not self._held and not self._is_shared:
            raise RuntimeError("release unlocked lock")
        self._held = False
        while self._waiting and not scheduler().wake(self._waiting.popleft()):
            pass
        scheduler().point()

    def locked(self) -> bool:
        return self._held

    def _at_fork_reinit(self) -> None:
        """What `concurrent.futures` asks of a lock that it shares."""

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """`threading.RLock`."""

    def __init__(self) -> None:
        super().__init__()
        self._owner: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        current = scheduler().current
        if not (self._depth and self._owner is current) and not super().acquire(blocking, timeout):
            return False
        self._owner = current
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            super().release()


class Condition:
    """`threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: list[Task] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        here = scheduler()
        task = here.current
        assert task is not None
        depth = getattr(self._lock, "_depth", 1)
        self._waiting.append(task)
        # Python's waiter is registered before the lock is released, so a notification in between is not missed.
        here.current = None
        for _ in range(depth):
            self._lock.release()
        here.current = task
        woken = here.park(_deadline(timeout))
        if not woken:
            _discard(self._waiting, task)
        for _ in range(depth):
            self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = _deadline(timeout)
        while not (found := predicate()):
            left = None if deadline is None else deadline - scheduler().now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        while n and self._waiting:
            n -= scheduler().wake(self._waiting.pop(0))

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._flag = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        scheduler().point()
        return self._flag

    def set(self) -> None:
        self._flag = True
        woken, self._waiting = self._waiting, []
        for task in woken:
            scheduler().wake(task)
        scheduler().point()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        here = scheduler()
        here.point()
        deadline = _deadline(timeout)
        while not self._flag:
            task = here.current
            assert task is not None
            self._waiting.append(task)
            if not here.park(deadline):
                _discard(self._waiting, task)
                break
        return self._flag


class Semaphore:
    """`threading.Semaphore`."""

    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._condition = Condition(Lock())

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        with self._condition:
            if not self._value and blocking and timeout != 0:
                self._condition.wait_for(lambda: self._value, timeout)
            if not self._value:
                return False
            self._value -= 1
            return True

    def release(self, n: int = 1) -> None:
        with self._condition:
            self._value += n
            self._condition.notify(n)


class Thread:
    """`threading.Thread`."""

    def __init__(
        self,
        group: None = None,  # noqa: ARG002 - Python's interface
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "thread"
        self.daemon = daemon
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self._task: Task | None = None
        self._ended = Event()

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)

    def start(self) -> None:
        here = scheduler()
        assert here.current is not None, "only a simulated thread starts another one"
        self._task = here.spawn(here.current.process, self._run, self.name)
        here.point()

    def _run(self) -> None:
        try:
            self.run()
        finally:
            self._ended.set()

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._ended.is_set()


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._count = Semaphore(0)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:  # noqa: ARG002
        self._items.append(item)
        self._count.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._count.acquire(block, timeout):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


def _monotonic() -> float:
    return scheduler().now + MONOTONIC_START


def _wall() -> float:
    current = scheduler().current
    return _EPOCH + scheduler().now + (0.0 if current is None else current.process.clock)


def _flock(file: int, operation: int) -> None:
    """Lock a file, and note it: the locks of a process that is killed end with it."""
    current = scheduler().current
    while True:
        scheduler().point()
        try:
            _real_flock(file, operation | (fcntl.LOCK_NB if operation & fcntl.LOCK_EX else 0))
        except BlockingIOError:
            if operation & fcntl.LOCK_NB or current is None:
                raise
            scheduler().sleep(_LOCK_POLL)
        else:
            break
    if current is not None:
        current.process.locks.add(file)


def _close(file: int) -> None:
    current = scheduler().current
    if current is not None:
        current.process.locks.discard(file)
    _real_close(file)


def drop_locks(locks: Iterable[int]) -> None:
    """Close what a killed process had locked."""
    for file in locks:
        _real_close(file)


def install() -> None:
    """Replace Python's own, for the whole process."""
    for kind in (Lock, RLock, Condition, Event, Semaphore, Thread):
        setattr(threading, kind.__name__, kind)
    queue.SimpleQueue = SimpleQueue  # type: ignore[assignment,misc]
    time.monotonic = time.perf_counter = _monotonic
    time.time = _wall
    time.time_ns = lambda: int(_wall() * 1e9)
    time.sleep = lambda seconds: scheduler().sleep(seconds)
    secrets.token_hex = lambda count=None: scheduler().random.randbytes(count or 32).hex()  # type: ignore[assignment]
    secrets.token_bytes = lambda count=None: scheduler().random.randbytes(count or 32)  # type: ignore[assignment]
    fcntl.flock = _flock  # type: ignore[assignment]
    os.close = _close
