"""Saying in the log that fetchers cannot fetch: an outage stops no query, and else nothing would tell of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from connectors.core.errors import ConnectorError
from connectors.spool.fetch_child import FetcherStatus

__all__ = ["OutageLog"]

_log = logging.getLogger(__name__)

_PATIENCE: Final = 5.0
"""What passes within so many seconds is no outage: services close streams all the time."""

_AGAIN_EVERY: Final = 60.0


class OutageLog:
    """Warns when fetchers are in trouble, when the trouble is another one, each minute while it lasts, and at its end.

    Args:
        root: the folder of the spool.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._since: float | None = None
        self._troubles: list[ConnectorError] = []
        self._said: str | None = None
        self._say_again_at = 0.0

    def see(self, now: float, fetchers: Sequence[FetcherStatus]) -> None:
        """Take note of how the fetchers stand.

        Args:
            now: seconds of the monotonic clock.
            fetchers: all of them. An error may be gone for a moment, when some other call is answered: trouble ends
                when all are healthy again.
        """
        if all(one.error is None and (one.healthy or one.paused) for one in fetchers):
            self._end(now)
            return
        self._troubles = [one.error for one in fetchers if one.error is not None] or self._troubles
        if not self._troubles:
            return
        if self._since is None:
            self._since = now
        lasts, first = now - self._since, self._troubles[0]
        if lasts >= _PATIENCE and (first.code != self._said or now >= self._say_again_at):
            self._said, self._say_again_at = first.code, now + _AGAIN_EVERY
            _log.warning(
                "[SPOOL_FETCHING_INTERRUPTED] %d of %d fetchers are in trouble for %.0f s, and try again (%s). %s",
                len(self._troubles),
                len(fetchers),
                lasts,
                self._root,
                first,
            )

    def _end(self, now: float) -> None:
        if self._since is not None and self._said is not None:
            _log.warning(
                "[SPOOL_FETCHING_RESUMED] All fetchers work again, after %.0f s (%s).", now - self._since, self._root
            )
        self._since = self._said = None
        self._troubles = []
