"""Warnings of the driver's log while fetchers are in trouble."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from connectors.core.errors import ConnectorError
from connectors.spool.fetching.child import FetcherStatus

__all__ = ["OutageLog"]

_log = logging.getLogger(__name__)
_OUTAGE_SECONDS: Final = 5.0
"""What passes within so many seconds is no outage: services close streams all the time."""
_WARN_AGAIN_SECONDS: Final = 60.0


class OutageLog:
    """Warns when fetchers are in trouble, when the trouble changes, each minute while it lasts, and at its end."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._since: float | None = None
        self._troubles: list[ConnectorError] = []
        self._warned: str | None = None
        self._warn_again_at = 0.0

    def see(self, now: float, fetchers: Sequence[FetcherStatus]) -> None:
        """Note the states of all fetchers at a monotonic time.

        An error may be gone for a moment, when some other call is answered: trouble ends when all are healthy again.
        """
        if all(one.error is None and (one.healthy or one.paused) for one in fetchers):
            if self._since is not None and self._warned is not None:
                lasted = now - self._since
                _log.warning("[SPOOL_FETCHING_RESUMED] All fetchers work again, after %.0f s (%s).", lasted, self._root)
            self._since = self._warned = None
            self._troubles = []
            return
        self._troubles = [one.error for one in fetchers if one.error is not None] or self._troubles
        if not self._troubles:
            return
        if self._since is None:
            self._since = now
        lasts, first = now - self._since, self._troubles[0]
        if lasts >= _OUTAGE_SECONDS and (first.code != self._warned or now >= self._warn_again_at):
            self._warned, self._warn_again_at = first.code, now + _WARN_AGAIN_SECONDS
            _log.warning(
                "[SPOOL_FETCHING_INTERRUPTED] %d of %d fetchers are in trouble for %.0f s, and try again (%s). %s",
                len(self._troubles),
                len(fetchers),
                lasts,
                self._root,
                first,
            )
