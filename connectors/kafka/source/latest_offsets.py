"""The newest offsets of a source, kept in memory: Spark asks for them every 10 ms while nothing comes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from connectors.kafka.offsets import Offsets

__all__ = ["LatestWatch"]

_PATIENCE_SECONDS: Final = 0.005
"""How long an answer may be waited for that is newer than the question: long enough for a broker nearby."""
_IDLE_SECONDS: Final = 0.25
"""Calls that are further apart are not those of an idle query: what is remembered is as old as the last of them."""
_LONG_PATIENCE_SECONDS: Final = 5.0
"""How long their answers are waited for."""


class LatestWatch:
    """Asks Kafka in a thread, each time when it is asked itself, so that an idle query costs one request a poll.

    Args:
        ask: the latest offsets; with True, also looks for new partitions.
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
        """An answer that is newer than the question, however long it takes."""
        latest = self._ask(True)
        with self._changed:
            self._latest = latest
        return latest

    def remembered(self) -> Offsets:
        """An answer that is newer than the question, unless it takes long; else the newest that is there.

        A newer one is on its way then. An idle query waits for no longer than a broker nearby needs.

        Raises:
            ConnectorError: the last question that was answered failed, after all its retries.
        """
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._answer, name="kafka-latest", daemon=True)
                self._thread.start()
            # A question that is under way now may have been answered before this one was asked.
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

    def _answer(self) -> None:
        looked = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._asked > self._answered)
                if self._stopped:
                    return
                number = self._asked
            look = time.monotonic() - looked >= 1.0
            try:
                latest = self._ask(look)
            except Exception as error:  # noqa: BLE001 - raised by the next call
                with self._changed:
                    self._error, self._answered = error, number
                    self._changed.notify_all()
                continue
            looked = time.monotonic() if look else looked
            with self._changed:
                self._latest, self._answered, self._error = latest, number, None
                self._changed.notify_all()
