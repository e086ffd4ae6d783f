"""What calls of Spark wait for: new rows, or the knowledge that there are none; and what a stream warns of."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

from connectors.core.errors import ConnectorError, ServiceUnavailableError, declared_action
from connectors.core.retry import OutageRule, WaitLog
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.ledger.segment_log import SegmentEntry, unpack_mask

_log = logging.getLogger(__name__)
_WAIT_STEP: Final = 0.5
_LONGEST_SECONDS: Final = 300.0
_LONG_WAIT: Final = 1.0
_OUTAGE_SECONDS: Final = 5.0
"""Trouble that passes sooner is no outage: services close streams all the time."""
_WARN_AGAIN_SECONDS: Final = 60.0
_DUPLICATE_ROWS: Final = 1000
_DUPLICATE_FRACTION: Final = 0.9


class Reason(StrEnum):
    """Why a call of Spark need not wait any longer."""

    NEW_ROWS = "there are new rows"
    QUIET = "the streams are open, and brought nothing"
    ALL_CAME = "all that was published before the run began has come"
    SPOOL_FULL = "the spool is full"
    SOURCE_LOST = "the source delivers nothing more"
    TIMEOUT = "the time is over"


class Freshness:
    """What has come in, noted by the admitting thread within `changing`; calls of Spark wait for it.

    A bounded run ends after `quiet` seconds without old rows, or after `longest` if streams are unhealthy; without a
    `longest` of the user's, an outage of the service is no reason to end. Times are seconds of the monotonic clock;
    publish times are microseconds of the service.

    Attributes:
        healthy_since: when all streams were last seen to become healthy; None while they are not.
        bound_time: publish time that separates old rows from new ones; None before any bounded run.
    """

    def __init__(self, quiet: float, longest: float | None) -> None:
        self.healthy_since: float | None = None
        self.bound_time: int | None = None
        self._quiet = quiet
        self._longest = _LONGEST_SECONDS if longest is None else longest
        self._waits_for_service = longest is None
        self._is_out = False
        self._began = 0.0
        self._settled = 0.0
        self._old: float | None = None
        self._changed = threading.Condition()
        self._changes = 0

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Note something, as one change: calls that wait look for a reason again. Nothing slow belongs in it."""
        with self._changed:
            yield
            self._changes += 1
            self._changed.notify_all()

    def begin(self, now: float, bound_time: int) -> None:
        """Begin a bounded run, at this time of the service as far as it is known."""
        self._began, self.bound_time = now, bound_time

    def round_ended(self, now: float, *, healthy: bool, settled: float, out: bool = False) -> None:
        """Note a round of admission: whether streams were healthy, and before when all that came is admitted.

        ``out`` says that nothing works because of the service.
        """
        self._is_out = out
        self._settled = max(self._settled, settled)
        if not healthy:
            self.healthy_since = None
        elif self.healthy_since is None:
            self.healthy_since = now

    def admitted(self, now: float, published: tuple[int, int] | None, rows: int) -> None:
        """Note an admitted segment with its new rows, published between two times."""
        if self.bound_time is not None and published is not None:
            # Seen now, so the service's clock was at least so far when the run began, whatever the clock here said.
            self.bound_time = max(self.bound_time, published[1] - int((now - self._began) * 1e6))
        if rows and self.bound_time is not None and (published is None or published[0] < self.bound_time):
            self._old = now

    def all_came(self, now: float) -> bool:
        """Whether all messages published before a bounded run began have come, so that its end may be fixed.

        Healthy streams must have brought nothing old for a while; what a fetcher still holds may be old.
        """
        with self._changed:
            last = max(self._began, self._old or self._began)
            since, settled = self.healthy_since, self._settled
        if now - last >= self._longest and not (self._is_out and self._waits_for_service):
            return True
        return since is not None and settled - max(last, since) >= self._quiet

    def wait(
        self,
        reason: Callable[[], Reason | None],
        check: Callable[[], None],
        deadline: float = float("inf"),
        what: str = "fetched messages",
    ) -> Reason:
        """Wait until there is a reason to answer, or the deadline; return the reason. Raises what `check` raises.

        No lock is held while `reason` and `check` run: they may read from storage. ``what`` says in the log what is
        waited for, when that takes long.
        """
        began = time.monotonic()
        log = WaitLog(lambda: what)
        seen = self._changes
        while (result := reason()) is None and time.monotonic() <= deadline:
            check()
            log.tick()
            with self._changed:
                step = min(_WAIT_STEP, max(deadline - time.monotonic(), 0.0))
                self._changed.wait_for(lambda: self._changes != seen, step)  # noqa: B023 - it is called here
                seen = self._changes
        check()
        result = result or Reason.TIMEOUT
        if time.monotonic() - began >= _LONG_WAIT:
            _log.info("A call of Spark has waited %.1f s: %s.", time.monotonic() - began, result)
        return result


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
                "[SPOOL_FETCHING_INTERRUPTED] %d of %d fetchers have failed for %.0f s. They keep retrying (%s). %s",
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
        spool itself is waited out.
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

    def admitted(self, *, rows: int, new: int) -> None:
        """Note a segment with its rows, and how many of them are new."""
        self._rows += rows
        self._duplicates += rows - new
        if self._rows < _DUPLICATE_ROWS:
            return
        if self._duplicates >= _DUPLICATE_FRACTION * self._rows and not self._warned_duplicates:
            self._warned_duplicates = True
            _log.warning(
                "[SPOOL_ONLY_COPIES] %d of the last %d messages were read before, and give no rows (%s). %s",
                self._duplicates,
                self._rows,
                self._root,
                declared_action("SPOOL_ONLY_COPIES"),
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
            if newest is not None and lowest > newest and entry.duplicate_mask is not None:
                self._warned_reused |= bool(unpack_mask(entry.duplicate_mask, entry.rows)[0])
            newest = max(newest or 0, highest)
        if self._warned_reused:
            _log.warning(
                "[SPOOL_IDS_REUSED] New messages have ids that were read before, and are dropped as duplicates (%s). "
                "The source starts its ids again, as the Pub/Sub emulator does after a restart. %s",
                self._root,
                declared_action("SPOOL_IDS_REUSED"),
            )
