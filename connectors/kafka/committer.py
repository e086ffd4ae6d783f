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
    """

    def __init__(self, settings: ClientSettings, group: str) -> None:
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
        with KafkaLookup(self._settings, self._group) as lookup:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped or self._waiting is not None)
                    offsets, self._waiting = self._waiting, None
                if offsets is None:
                    return
                try:
                    lookup.commit(offsets)
                except ConnectorError as error:
                    _log.warning("[KAFKA_GROUP_COMMIT] Offsets were not committed to %s: %s", self._group, error)
