"""Noticing that a source delivers again what was read before, or new messages under ids that were read before."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from connectors.spool.state import SegmentEntry, unpack_mask

__all__ = ["CopyWatch"]

_log = logging.getLogger(__name__)

_ROWS: Final = 1000
_FRACTION: Final = 0.9


class CopyWatch:
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
