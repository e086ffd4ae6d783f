"""Commits offsets to a consumer group in the background, for tools that watch lag; the query never waits for it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from connectors.core.errors import ConnectorError
from connectors.kafka.client import KafkaLookup
from connectors.kafka.offsets import Offsets

if TYPE_CHECKING:
    from connectors.kafka.settings import ClientSettings

__all__ = ["GroupCommitter"]

_log = logging.getLogger(__name__)


class GroupCommitter:
    """Commits the newest offsets it was given; older ones that have not been sent are left out.

    Args:
        settings: of the client.
        group: the consumer group.
        pause_seconds: after which the newest offsets are tried again, where an error may pass.
    """

    def __init__(self, settings: ClientSettings, group: str, pause_seconds: float = 10.0) -> None:
        self._pause_seconds = pause_seconds
        self._settings = settings
        self._group = group
        self._changed = threading.Condition()
        self._waiting: Offsets | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def commit(self, offsets: Offsets) -> None:
        """Commit these, soon."""
        with self._changed:
            self._waiting = offsets
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafka-group-commit", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread, when it has committed what it was given."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        lookup: KafkaLookup | None = None
        warned = False
        while (offsets := self._next()) is not None:
            try:
                lookup = lookup or KafkaLookup(self._settings, self._group)
                lookup.commit(offsets)
                warned = False
            except ConnectorError as error:
                if not warned:
                    _log.warning("[KAFKA_GROUP_COMMIT] Offsets were not committed to %s: %s", self._group, error)
                warned = True
                if error.transient:
                    self._again(offsets)
        if lookup is not None:
            lookup.close()

    def _next(self) -> Offsets | None:
        """What is to be committed; None when there is nothing more to come."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._waiting is not None)
            offsets, self._waiting = self._waiting, None
        return offsets

    def _again(self, offsets: Offsets) -> None:
        """Have these committed after a pause, unless newer ones come; a query that stops does not wait for it."""
        with self._changed:
            newer = self._changed.wait_for(lambda: self._stopped or self._waiting is not None, self._pause_seconds)
            if not newer:
                self._waiting = offsets
