"""Finding a shard's newest records without reading the shard: the service has no call that names the newest.

A record that was seen is a legal end of a batch, wherever it lies. So the driver follows a shard one record at a time;
when more lies ahead than that, it looks at what arrived a moment ago (a start by time, one record), and reads on only
where little is left. Right ends need no right times: a time only says where to look.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from connectors.core.errors import ConnectorError
from connectors.kinesis.client.errors import EXPIRED_ITERATOR
from connectors.kinesis.offsets import Kind, Position, ShardState, after, at_time
from connectors.kinesis.shards import Seen, is_behind
from connectors.kinesis.source.iterators import kept_iterator

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.client.responses import Page

__all__ = ["ShardTail", "look_times"]

CALLS_A_STEP: Final = 2
_WIDER: Final = 10
_PAGE_RECORDS: Final = 10_000
_SKEW_MS: Final = 10_000
"""Times of arrival are not exact."""
_CLEAN_SLACK_MS: Final = 1000
"""The service tells its time in whole seconds, and a record may show a moment after it arrived."""


def look_times(low_ms: int, now_ms: int, window_ms: int) -> Generator[int, int | None, None]:
    """The times at which to look for the newest record; ends when all that is newer arrived within a window.

    Yields:
        A time; to be sent when the first record as new as it arrived, or None when there is none.

    Args:
        low_ms: nothing older is of interest.
        now_ms: the service's time.
        window_ms: how far behind the newest record the last one found may lie.
    """
    width, empty_from = window_ms, now_ms
    found: int | None = None
    while found is None:
        moment = max(low_ms, now_ms - width)
        found = yield moment
        if found is None:
            if moment <= low_ms:
                return
            empty_from, width = moment, width * _WIDER
    while empty_from - found > window_ms:
        middle = (found + empty_from) // 2
        later = yield middle
        if later is None:
            empty_from = middle
        else:
            found = max(middle, later)


class ShardTail:
    """Follows one shard; not thread-safe.

    Args:
        client: calls the service.
        stream: name or ARN.
        shard: the id of the shard.
        state: how far it has been read.
        window_ms: how far behind the newest record its last one seen may lie.
        oldest_ms: nothing older is kept, by the service's time.
    """

    def __init__(
        self, client: KinesisClient, stream: str, shard: str, state: ShardState, *, window_ms: int, oldest_ms: int
    ) -> None:
        self._client = client
        self._stream = stream
        self._shard = shard
        self._state = state
        self._window_ms = window_ms
        self._low_ms = max(oldest_ms, state.known_ms or 0)
        self._iterator: str | None = None
        self._times: Generator[int, int | None, None] | None = None
        self._look: str | None = None
        self._look_at = 0
        self._walking = False
        self._exact_ms: int | None = None
        self._calls = 0
        self.seen = Seen()
        """What is known of the shard's newest records."""
        self.settled = False
        """The last step has finished a round: what is newer than `seen` arrived within the window, or after it."""
        self.found_any = False
        """The last round has seen a record."""

    def step(self, *, exact: bool) -> int:
        """Do a part of a round: one call, or two. An error leaves everything so that the step can be repeated.

        Args:
            exact: a round goes up to the newest record, as it is when the round begins.

        Returns:
            The number of GetRecords calls.

        Raises:
            ConnectorError: a call failed.
        """
        self._calls = 0
        if self.settled:
            self.found_any = False
            self._exact_ms = None
        self.settled = False
        try:
            while not self.settled and self._calls < CALLS_A_STEP:
                if self._times is None:
                    self._follow(exact=exact)
                else:
                    self._search(exact=exact)
        except ConnectorError as error:
            if error.code == EXPIRED_ITERATOR:
                self._iterator = self._look = None
            raise
        return self._calls

    def skip_to(self, seen: Seen) -> None:
        """Go on behind a record that was seen elsewhere, if it is newer."""
        if seen.number is None or not self._is_newer(seen.number):
            return
        self.seen = Seen(seen.number, seen.arrival_ms)
        self._low_ms = max(self._low_ms, seen.arrival_ms or 0)
        self._iterator = None
        self._walking = False
        self._times = self._look = None

    def _follow(self, *, exact: bool) -> None:
        """Read on behind the newest record seen."""
        walking = self._walking
        if self._iterator is None:
            known = self._state.known_ms is not None or self.seen.number is not None
            self._iterator = kept_iterator(self._client, self._stream, self._shard, self._resume(), was_read=known)
        page = self._page(self._iterator, _PAGE_RECORDS if walking else 1)
        if exact and self._exact_ms is None:
            self._exact_ms = page.at_ms
        self._take(page)
        if self.settled:
            return
        if not walking and page.behind_ms == 0:
            self._walking = True
        elif not walking:
            self._times = look_times(self._low_ms, page.at_ms, self._window_ms)
            self._look_at = next(self._times)
        elif page.records and not self._goes_on(exact=exact):
            self._settle()

    def _goes_on(self, *, exact: bool) -> bool:
        """Whether there is something ahead that was there when the round began."""
        return exact and (self.seen.arrival_ms or 0) <= (self._exact_ms or 0) + _CLEAN_SLACK_MS

    def _search(self, *, exact: bool) -> None:
        """Look at a time, for a record that is nearer to the newest."""
        if self._times is None:
            return
        if self._look is None:
            self._look = self._client.iterator(self._stream, self._shard, at_time(self._look_at))
        page = self._page(self._look, 1)
        if not page.records and page.behind_ms > 0 and page.following is not None:
            self._look = page.following
            return
        self._look = None
        if page.records and self._is_newer(page.records[0].number):
            self._take(page)
            if self.settled:
                return
            if page.behind_ms == 0:
                self._times, self._walking = None, True
                return
        try:
            self._look_at = self._times.send(page.records[0].arrival_ms if page.records else None)
        except StopIteration:
            self._times = None
            self._walking = exact or not (page.records and self.seen.number == page.records[0].number)
            if not self._walking:
                self._settle()

    def _page(self, iterator: str, limit: int) -> Page:
        self._calls += 1
        return self._client.records(iterator, limit, self._stream, self._shard)

    def _take(self, page: Page) -> None:
        """Note what a page has that lies behind all that was seen."""
        if page.records and self._is_newer(page.records[-1].number):
            newest = page.records[-1]
            self.seen = Seen(newest.number, newest.arrival_ms)
            self._low_ms = max(self._low_ms, newest.arrival_ms)
            self.found_any = True
        if page.following is None:
            self.seen = replace(self.seen, ended=True)
            self._settle()
            return
        self._iterator = page.following
        if page.behind_ms == 0 and not page.records:
            # Behind a record, 0 proves nothing: others may have arrived in the same millisecond.
            self.seen = replace(self.seen, clean_ms=page.at_ms - _CLEAN_SLACK_MS)
            self._settle()

    def _is_newer(self, number: int) -> bool:
        newest = self.seen.number
        return number > newest if newest is not None else is_behind(self._state.position, number)

    def _settle(self) -> None:
        self.settled = True
        self._walking = False
        self._times = self._look = None

    def _resume(self) -> Position:
        """Where to read on without an iterator."""
        begin = self._state.position
        clean_ms = self.seen.clean_ms if self.seen.number is not None else self.seen.clean_ms or self._state.clean_ms
        if clean_ms is not None:
            # Nothing came until then: so an idle shard has few empty pages, and its last record may be trimmed.
            return at_time(max(clean_ms - _SKEW_MS, begin.number if begin.kind is Kind.TIME else 0))
        return begin if self.seen.number is None else after(self.seen.number)
