"""A pool of clients, which tasks take turns with, and a cache of what a process makes once and shares."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_MAX_IDLE: Final = 4
_IDLE_SECONDS: Final = 30.0


class Pool(Generic[K, T]):
    """Idle clients by their settings: a new connection costs more than a small task.

    Of too many, the least recently used is closed, and so is one that nobody acquires for a while; ``close`` is called
    from a thread of the pool too.
    """

    def __init__(
        self, close: Callable[[T], None], max_idle: int = _MAX_IDLE, idle_seconds: float = _IDLE_SECONDS
    ) -> None:
        self._close = close
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._idle: dict[K, tuple[T, float]] = {}
        """The client and since when it is idle; the most recently used stands last."""
        self._reaper: threading.Thread | None = None

    def acquire(self, key: K) -> T | None:
        """Return the client of this key, which is the caller's from now on; None if there is none."""
        with self._lock:
            client, _ = self._idle.pop(key, (None, 0.0))
        return client

    def release(self, key: K, client: T) -> None:
        """Put a client into the pool, for the next task."""
        with self._lock:
            surplus = [self._idle.pop(key)] if key in self._idle else []
            self._idle[key] = client, time.monotonic()
            surplus += [self._idle.pop(oldest) for oldest in [*self._idle][: -self._max_idle]]
            if self._reaper is None:
                self._reaper = threading.Thread(target=self._reap, name="idle-clients", daemon=True)
                self._reaper.start()
        for extra, _ in surplus:
            self._close(extra)

    def close(self) -> None:
        """Close all clients."""
        with self._lock:
            clients = [client for client, _ in self._idle.values()]
            self._idle.clear()
        for client in clients:
            self._close(client)

    def _reap(self) -> None:
        """Close clients that are idle for too long; ends with the last one."""
        while True:
            time.sleep(self._idle_seconds / 4)
            until = time.monotonic() - self._idle_seconds
            with self._lock:
                expired = [self._idle.pop(key)[0] for key, (_, since) in [*self._idle.items()] if since <= until]
                if last := not self._idle:
                    self._reaper = None
            for client in expired:
                self._close(client)
            if last:
                return


class Cache:
    """Values that a process makes once; the least recently used are dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[object, object] = OrderedDict()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: object, make: Callable[[], T]) -> T:
        """Return the value of this key, made at the first call."""
        with self._lock:
            # As few look-ups as can be: to hash the type of a wide struct takes longer than to encode a row of it.
            value = self._values.get(key, self)
            if value is not self:
                self._values.move_to_end(key)
                return value  # type: ignore[return-value]  # made under this key
            made = self._values[key] = make()
            while len(self._values) > self._limit:
                self._values.popitem(last=False)
            return made
