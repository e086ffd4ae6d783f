"""Questions to Kafka that are tried again, with new connections, as ``fetchOffset.numRetries`` says."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from connectors.core.errors import ServiceUnavailableError, SourceGoneError
from connectors.kafka.client.factory import KafkaLookup

if TYPE_CHECKING:
    from connectors.kafka.options.source import KafkaReadOptions

__all__ = ["PatientLookup"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_SLICE_SECONDS: Final = 0.5
_FIRST_SECONDS: Final = 25.0
"""Brokers that have answered nothing for so long are no outage that passes: most often their address is wrong."""


class PatientLookup:
    """Answers questions by a `KafkaLookup` that is made anew after each failure; safe to use from several threads."""

    def __init__(self, options: KafkaReadOptions) -> None:
        self._options = options
        self._group = options.group_to_start_from
        self._lookup: KafkaLookup | None = None
        self._lock = threading.RLock()
        self._parent = os.getppid()
        self._give_up_at: float | None = None
        self._has_worked = False

    def ask(self, question: Callable[[KafkaLookup], T]) -> T:
        """The answer to a question.

        Raises:
            ConnectorError: the last error, when every attempt failed, or the first that no attempt can mend.
        """
        left = self._options.offset_retries
        while True:
            left -= 1
            try:
                with self._lock:
                    found = question(self._open())
            except (ServiceUnavailableError, SourceGoneError) as error:  # a topic may be about to be made
                self.close()
                over = self._give_up_at is not None and time.monotonic() >= self._give_up_at
                if left <= 0 or over or error.code == "KAFKA_CALLER_GONE":
                    raise
                _log.warning("[KAFKA_OFFSETS_RETRIED] %s Trying again, %d attempts left.", error, left)
                self.pause()
            else:
                self._give_up_at, self._has_worked = None, True
                return found

    def _open(self) -> KafkaLookup:
        if self._lookup is None and self._has_worked:
            self._lookup = KafkaLookup(self._options.client, self._group)
        elif self._lookup is None:
            now = time.monotonic()
            self._give_up_at = self._give_up_at or now + _FIRST_SECONDS
            self._lookup = KafkaLookup(self._options.client, self._group, max(1.0, self._give_up_at - now))
        return self._lookup

    def pause(self) -> None:
        """Wait for ``fetchOffset.retryIntervalMs``.

        Raises:
            ServiceUnavailableError: the process that asked is gone.
        """
        end = time.monotonic() + self._options.offset_retry_ms / 1000
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_SECONDS))
            if os.getppid() != self._parent:
                raise ServiceUnavailableError("KAFKA_CALLER_GONE", "The process that asked is gone")

    def close(self) -> None:
        """Close the connections; the next question makes new ones."""
        with self._lock:
            if self._lookup is not None:
                self._lookup.close()
            self._lookup = None
