"""Saying in the log that fetchers cannot fetch: an outage stops no query, and else nothing would tell of it.

Noticing that a source delivers again what was read before, or new messages under ids that were read before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from connectors.core.errors import ConnectorError
from connectors.spool.fetching.child import FetcherStatus
from connectors.spool.ledger.state import SegmentEntry, unpack_mask

__all__ = ["DuplicateWatch", "OutageLog"]


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


_ROWS: Final = 1000
_FRACTION: Final = 0.9


class DuplicateWatch:
    """Says once, in the log, that messages that are delivered give no rows, and what that may mean.

    Args:
        root: the folder of the spool.
        by_message_id: whether a copy is a message of the source delivered again; else producers may publish copies.
    """

    def __init__(self, root: str, *, by_message_id: bool = True) -> None:
        self._root = root
        self._by_message_id = by_message_id
        self._said_reused = False
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

    def compare(self, admitted: Iterable[SegmentEntry], newest: int | None) -> None:
        """See whether ids are used again for other messages: then each message is lost, and nothing else tells.

        A message that is delivered again has the publish time that it had. So where all messages of a segment were
        published after those before it, none of them can be one of these. Within a segment only the first row counts: a
        later one may be a copy of that.

        Args:
            admitted: segments, in their order.
            newest: the highest publish time admitted before them, microseconds; None if nothing was.
        """
        for entry in admitted:
            if entry.published is None:
                continue
            lowest, highest = entry.published
            if newest is not None and lowest > newest and _first_is_known(entry):
                self._say_reused()
            newest = max(newest or 0, highest)

    def _say_reused(self) -> None:
        if self._by_message_id and not self._said_reused:
            self._said_reused = True
            _log.warning(
                "[SPOOL_IDS_REUSED] New messages have ids that were read before, and are dropped as copies (%s): the "
                "source counts its ids anew, as the Pub/Sub emulator does after a restart. Begin with a new "
                "spoolLocation and checkpointLocation, or set the option dedupEpoch to another number.",
                self._root,
            )


def _first_is_known(entry: SegmentEntry) -> bool:
    return entry.struck is not None and bool(unpack_mask(entry.struck, entry.rows)[0])
