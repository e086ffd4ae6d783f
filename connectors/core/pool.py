"""Clients that a worker keeps from task to task: a new connection costs more than a small task.

What a process makes once and shares, such as codecs, schemas and clients.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

__all__ = ["Cache", "Kept"]


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_MOST: Final = 4
_IDLE_SECONDS: Final = 30.0


class Kept(Generic[K, T]):
    """Clients by what they were made from: several queries of a session take turns in a worker.

    Of too many the one used longest ago is closed, and one that nobody wanted for a while.

    Args:
        close: closes one; called from a thread of its own too.
        most: how many are kept.
        idle_seconds: how long one is kept that nobody wants.
    """

    def __init__(self, close: Callable[[T], None], most: int = _MOST, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._close = close
        self._most = most
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._kept: dict[K, tuple[T, float]] = {}
        """The client and since when it is idle; the one used last stands last."""
        self._reaper: threading.Thread | None = None

    def take(self, key: K) -> T | None:
        """The client of this key, which is the caller's now; None if there is none."""
        with self._lock:
            found = self._kept.pop(key, None)
        return None if found is None else found[0]

    def give(self, key: K, client: T) -> None:
        """Keep a client for the next task."""
        with self._lock:
            surplus = [self._kept.pop(key)] if key in self._kept else []
            self._kept[key] = client, time.monotonic()
            surplus += [self._kept.pop(oldest) for oldest in [*self._kept][: -self._most]]
            if self._reaper is None:
                self._reaper = threading.Thread(target=self._reap, name="idle-clients", daemon=True)
                self._reaper.start()
        for each, _ in surplus:
            self._close(each)

    def _reap(self) -> None:
        """Close clients that nobody wants; ends with the last one."""
        while True:
            time.sleep(self._idle_seconds / 4)
            until = time.monotonic() - self._idle_seconds
            with self._lock:
                idle = [self._kept.pop(key)[0] for key, (_, since) in [*self._kept.items()] if since <= until]
                if last := not self._kept:
                    self._reaper = None
            for client in idle:
                self._close(client)
            if last:
                return

    def close(self) -> None:
        """Close all."""
        with self._lock:
            kept = [client for client, _ in self._kept.values()]
            self._kept.clear()
        for client in kept:
            self._close(client)


class Cache:
    """Things made once a process, the ones least lately used dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._made: OrderedDict[object, object] = OrderedDict()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._made)

    def get(self, key: object, make: Callable[[], T]) -> T:
        """What is made once for this key."""
        with self._lock:
            # As few look-ups as can be: to hash the type of a wide struct takes longer than to encode a row of it.
            found = self._made.get(key, self)
            if found is not self:
                self._made.move_to_end(key)
                return found  # type: ignore[return-value]  # what was made under this key
            made = self._made[key] = make()
            while len(self._made) > self._limit:
                self._made.popitem(last=False)
            return made
