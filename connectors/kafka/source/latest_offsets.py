"""The latest offsets of a source, kept in memory: Spark asks for them every 10 ms while no records arrive."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from connectors.kafka.offsets import Offsets

__all__ = ["LatestWatch"]

_PATIENCE_SECONDS: Final = 0.005
"""How long a call waits for a response to its own request: long enough for a broker nearby."""
_IDLE_SECONDS: Final = 0.25
"""Calls that are further apart are not those of an idle query: what is in memory is as old as the last of them."""
_LONG_PATIENCE_SECONDS: Final = 5.0  # how long such a call waits
_NEW_PARTITIONS_SECONDS: Final = 1.0


class LatestWatch:
    """Asks Kafka in a thread whenever it is called, so that an idle query costs one request a poll.

    ``ask`` returns the latest offsets; with True it also looks for new partitions.
    """

    def __init__(self, ask: Callable[[bool], Offsets]) -> None:
        self._ask = ask
        self._changed = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._called_at = -math.inf
        self._latest: Offsets = {}
        self._error: BaseException | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def fresh(self) -> Offsets:
        """Ask now, and return the response, however long it takes."""
        latest = self._ask(True)
        with self._changed:
            self._latest = latest
        return latest

    def remembered(self) -> Offsets:
        """Have the thread ask, and return the response, or the last one if it takes long; raises its error."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="kafka-latest", daemon=True)
                self._thread.start()
            # The response to a request that is pending now may be older than this call.
            self._asked += 1
            wanted = self._asked
            self._changed.notify_all()
            idle = time.monotonic() - self._called_at < _IDLE_SECONDS
            self._changed.wait_for(
                lambda: self._answered >= wanted or (idle and self._error is not None),
                _PATIENCE_SECONDS if idle else _LONG_PATIENCE_SECONDS,
            )
            self._called_at = time.monotonic()
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return self._latest

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _serve(self) -> None:
        searched_at = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._asked > self._answered)
                if self._stopped:
                    return
                number = self._asked
            search = time.monotonic() - searched_at >= _NEW_PARTITIONS_SECONDS
            error: BaseException | None = None
            try:
                latest = self._ask(search)
                searched_at = time.monotonic() if search else searched_at
            except Exception as problem:  # noqa: BLE001 - raised by the next call
                error = problem
            with self._changed:
                if error is None:
                    self._latest = latest
                self._answered, self._error = number, error
                self._changed.notify_all()
