"""Noticing that a source delivers again what was read before, as after a seek from outside of the query."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["CopyWatch"]

_log = logging.getLogger(__name__)

_ROWS: Final = 1000
_FRACTION: Final = 0.9


class CopyWatch:
    """Says once, in the log, that nearly all that is delivered gives no rows, and what that may mean.

    Args:
        root: the folder of the spool.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._rows = 0
        self._copies = 0
        self._said = False

    def admitted(self, *, rows: int, kept: int) -> None:
        """A segment of so many rows was admitted, and so many of them were new."""
        self._rows += rows
        self._copies += rows - kept
        if self._rows < _ROWS:
            return
        if self._copies >= _FRACTION * self._rows and not self._said:
            self._said = True
            _log.warning(
                "[SPOOL_ONLY_COPIES] %d of the last %d messages were read before and give no rows (%s). That is right "
                "after lost acks or a crash. If the source was moved back from outside, to read again, set the option "
                "dedupEpoch to another number.",
                self._copies,
                self._rows,
                self._root,
            )
        self._rows = self._copies = 0
