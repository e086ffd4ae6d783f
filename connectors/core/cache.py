"""What a process makes once and shares, such as codecs, schemas and clients."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Cache"]

T = TypeVar("T")


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
