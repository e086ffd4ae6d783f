"""What a stream warns of in the driver's log: fetchers in trouble, and messages that give no rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.core.retry import OutageRule
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.ledger.segment_log import SegmentEntry, unpack_mask

_log = logging.getLogger(__name__)
_OUTAGE_SECONDS: Final = 5.0
"""What passes within so many seconds is no outage: services close streams all the time."""
_WARN_AGAIN_SECONDS: Final = 60.0
_DUPLICATE_ROWS: Final = 1000
_DUPLICATE_FRACTION: Final = 0.9


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


class ServiceWatch:
    """Gives a service up from which no fetcher has got anything for as long as an outage may last."""

    def __init__(self, rule: OutageRule) -> None:
        self._rule = rule
        self._since: float | None = None
        self._error: ConnectorError | None = None

    @property
    def is_out(self) -> bool:
        """Whether no fetcher works now, because of the service."""
        return self._since is not None

    def see(self, now: float, fetchers: Sequence[FetcherStatus], *, served: bool) -> None:
        """Note the states of all fetchers at a monotonic time; raises the error of a service that is given up.

        ``served`` says that something has come, or is left to be read: the query goes on with that. Trouble of the
        spool itself is none of the service, and is waited out.
        """
        errors = [one.error for one in fetchers if one.error is not None and _is_of_service(one.error)]
        self._error = errors[0] if errors else self._error
        if served or self._error is None or any(one.healthy or one.paused for one in fetchers):
            self._since = self._error = None
            return
        self._since = now if self._since is None else self._since
        if self._rule.gives_up(0, now - self._since):
            raise self._rule.ending(self._error)


def _is_of_service(error: ConnectorError) -> bool:
    return isinstance(error, ServiceUnavailableError) and not error.code.startswith("SPOOL_")


class DuplicateWatch:
    """Warns once that delivered messages give no rows, and what that may mean.

    With `by_message_id` a duplicate is a message that the source delivers again; else producers may publish duplicates.
    """

    def __init__(self, root: str, *, by_message_id: bool = True) -> None:
        self._root = root
        self._by_message_id = by_message_id
        self._warned_reused = False
        self._warned_duplicates = False
        self._rows = self._duplicates = 0

    def admitted(self, *, rows: int, kept: int) -> None:
        """Note a segment of so many rows, so many of them new."""
        self._rows += rows
        self._duplicates += rows - kept
        if self._rows < _DUPLICATE_ROWS:
            return
        if self._duplicates >= _DUPLICATE_FRACTION * self._rows and not self._warned_duplicates:
            self._warned_duplicates = True
            _log.warning(
                "[SPOOL_ONLY_COPIES] %d of the last %d messages were read before and give no rows (%s). That is right "
                "after lost acks or a crash. If the source was moved back from outside, to read again, set the option "
                "dedupEpoch to another number.",
                self._duplicates,
                self._rows,
                self._root,
            )
        self._rows = self._duplicates = 0

    def compare(self, admitted: Iterable[SegmentEntry], newest: int | None) -> None:
        """Warn if ids are used again for other messages: then each message is lost, and nothing else shows it.

        A redelivered message has the publish time that it had. So where all messages of a segment were published after
        those before it (`newest`, in microseconds), none of them can be one. Within a segment only the first row
        counts: a later one may be a duplicate of that.
        """
        if not self._by_message_id or self._warned_reused:
            return
        for entry in admitted:
            if entry.published is None:
                continue
            lowest, highest = entry.published
            if newest is not None and lowest > newest and entry.struck is not None:
                self._warned_reused |= bool(unpack_mask(entry.struck, entry.rows)[0])
            newest = max(newest or 0, highest)
        if self._warned_reused:
            _log.warning(
                "[SPOOL_IDS_REUSED] New messages have ids that were read before, and are dropped as duplicates (%s): "
                "the source restarts its ids, as the Pub/Sub emulator does after a restart. Begin with a new "
                "spoolLocation and checkpointLocation, or set the option dedupEpoch to another number.",
                self._root,
            )
