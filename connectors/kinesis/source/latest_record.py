"""Polls a shard for its latest record without reading the shard: the service has no call that names it.

A record that was seen is a legal end of a batch. So the driver follows a shard one record at a time. If more lies
ahead, it searches by time, one record a call, and reads on only near the newest. Times only say where to ask.

A query's first round ends early, since its first rows wait for it; the next one continues from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from connectors.core.errors import ConnectorError
from connectors.core.retry import Outage
from connectors.kinesis.client.errors import EXPIRED_ITERATOR
from connectors.kinesis.offsets import Position, PositionKind, ShardState, after, at_time
from connectors.kinesis.shards import Seen, ShardKey, is_after
from connectors.kinesis.source.pages import Pace, Progress, is_above_limits, iterator_or_oldest

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient, Page

PLANNING_SECONDS: Final = 60.0
_CALLS_A_STEP: Final = 2
_BURST: Final = 3
"""Calls that a shard gets at once after a pause: with two a second, and those of a second reader, no more than the
service takes."""
BUSY_CALLS: Final = 4
"""While a batch reads a shard, its tasks make three of four calls."""
_SEARCHING: Final = 0.7
"""What a call of a search counts for while no task reads the shard: 3.6 a second by default, evenly spaced, so that
one of the service's five is left to others."""
_WIDER: Final = 10
_PAGE_RECORDS: Final = 10_000
_PAGE_BYTES: Final = 1 << 20
"""What a shard takes in a second, and half of what it gives in one: the rest is for the tasks."""
_FIRST_RECORDS: Final = 1000
_FIRST_BYTES: Final = 256 << 10
"""Of the page with which a first round may end; a task reads it again."""
_SKEW_MS: Final = 10_000
"""Times of arrival are not exact."""
_CLEAN_SLACK_MS: Final = 1000
"""The service tells its time in whole seconds, and a record may show a moment after it arrived."""


def probe_times(low_ms: int, now_ms: int, window_ms: int) -> Generator[int, int | None, None]:
    """Yield times at which to look for the latest record, until all newer ones arrived within a window.

    Nothing before ``low_ms`` matters; ``now_ms`` is the service's time. Send the arrival of the first record as new as
    the time, or None.
    """
    width, empty_from = window_ms, now_ms
    arrival: int | None = None
    while arrival is None:
        moment = max(low_ms, now_ms - width)
        arrival = yield moment
        if arrival is None:
            if moment <= low_ms:
                return
            empty_from, width = moment, width * _WIDER
    while empty_from - arrival > window_ms:
        middle = (arrival + empty_from) // 2
        later = yield middle
        if later is None:
            empty_from = middle
        else:
            arrival = max(middle, later)


class LatestRecord:
    """Follows one shard to its latest record; not thread-safe.

    The last record seen may lie ``window_ms`` behind the newest; nothing is older than ``oldest_ms``. A round without
    progress for ``patience`` seconds ends with what was seen. ``counted`` makes each call, and is told whether it is
    ``searching``.
    """

    def __init__(
        self,
        client: KinesisClient,
        stream: str,
        shard: str,
        state: ShardState,
        *,
        window_ms: int,
        oldest_ms: int,
        patience: float = PLANNING_SECONDS,
        counted: Callable[..., Page] = lambda call, **_searching: call(),
    ) -> None:
        self._client = client
        self._counted = counted
        self._stream = stream
        self._shard = shard
        self._state = state
        self._window_ms = window_ms
        self._low_ms = max(oldest_ms, state.complete_ms or 0)
        self._iterator: str | None = None
        self._times: Generator[int, int | None, None] | None = None
        self._probe: str | None = None
        self._probe_at = 0
        self._walking = False
        self._is_first = True
        self._next_limit = 1
        self._record_bytes = 1
        """Of the records seen last, on average."""
        self._exact_ms: int | None = None
        self._calls = 0
        self._searching = False
        self.progress = Progress(stream, shard, patience)
        self.is_stalled = False
        """Whether the last round ended because its pages led nowhere."""
        self.seen = Seen()
        self.settled = False
        """Whether the last step finished a round: what is newer than `seen` arrived within the window, or after it."""
        self.found_any = False
        """Whether the last round has seen a record."""

    def step(self, *, exact: bool, searching: bool = False) -> int:
        """Make one or two calls of a round; return how many. After an error the step can be repeated.

        With ``exact`` the round reaches the record that is the newest when it begins.
        """
        self._calls = 0
        self._searching = searching
        if self.settled:
            self.found_any = False
            self._exact_ms = None
            self.progress.restart()
        self.settled = self.is_stalled = False
        try:
            while not self.settled and self._calls < _CALLS_A_STEP:
                if self._times is None:
                    self._follow(exact=exact)
                else:
                    self._search(self._times, exact=exact)
                if self.is_stalled:
                    self._settle()
        except ConnectorError as error:
            if error.code == EXPIRED_ITERATOR:
                self._iterator = self._probe = None
            raise
        return self._calls

    @property
    def is_searching(self) -> bool:
        """Whether more lies ahead than was seen, and the newest record has not been located."""
        return self._times is not None or (self._walking and not self.settled)

    def skip_to(self, seen: Seen) -> None:
        """Go on after a record that was pushed, if it is newer."""
        if seen.number is None or not self._is_newer(seen.number):
            return
        self.seen = Seen(seen.number, seen.arrival_ms)
        self._low_ms = max(self._low_ms, seen.arrival_ms or 0)
        self._iterator = None
        self._walking = False
        self._times = self._probe = None

    def _follow(self, *, exact: bool) -> None:
        walking = self._walking
        if self._iterator is None:
            was_read = self._state.complete_ms is not None or self.seen.number is not None
            begin = self._resume_position()
            self.progress.restart()
            self._iterator = iterator_or_oldest(self._client, self._stream, self._shard, begin, was_read=was_read)
        limit = self._fitting(_PAGE_RECORDS, _PAGE_BYTES) if walking else self._next_limit
        self._next_limit = 1
        page = self._page(self._iterator, limit)
        if exact and self._exact_ms is None:
            self._exact_ms = page.at_ms
        self._take(page)
        if self.settled:
            return
        if walking:
            is_before_the_round = (self.seen.arrival_ms or 0) <= (self._exact_ms or 0) + _CLEAN_SLACK_MS
            if page.records and not (exact and is_before_the_round):
                self._settle()
            return
        if page.behind_ms > 0 and page.records and self._is_first and limit == 1:
            self._next_limit = self._fitting(_FIRST_RECORDS, _FIRST_BYTES)
        if self._next_limit == 1:
            self._search_or_end(page, exact=exact)

    def _search_or_end(self, page: Page, *, exact: bool) -> None:
        times = None
        if page.behind_ms > 0:
            times = probe_times(self._low_ms, page.at_ms, self._window_ms)
            self._probe_at = next(times)
        if self._is_first and page.records and not exact:
            self._settle(times)
        else:
            self._walking, self._times = times is None, times

    def _search(self, times: Generator[int, int | None, None], *, exact: bool) -> None:
        if self._probe is None:
            self.progress.restart()
            self._probe = self._client.iterator(self._stream, self._shard, at_time(self._probe_at))
        page = self._page(self._probe, 1)
        if not page.records and page.behind_ms > 0 and page.following is not None:
            self._probe = page.following
            return
        self._probe = None
        if page.records and self._is_newer(page.records[0].number):
            self._take(page)
            if self.settled:
                return
            if page.behind_ms == 0:
                self._times, self._walking = None, True
                return
        try:
            self._probe_at = times.send(page.records[0].arrival_ms if page.records else None)
        except StopIteration:
            self._times = None
            self._walking = exact or not (page.records and self.seen.number == page.records[0].number)
            if not self._walking:
                self._settle()
            return
        if self._is_first and self.found_any and not exact:
            self._settle(times)

    def _page(self, iterator: str, limit: int) -> Page:
        self._calls += 1
        call = partial(self._client.records, iterator, limit, self._stream, self._shard)
        page = self._counted(call, searching=self._searching)
        self.is_stalled = self.progress.note(page)
        if page.records:
            self._record_bytes = max(1, page.data_size // len(page.records))
        return page

    def _fitting(self, records: int, size: int) -> int:
        return max(1, min(records, size // self._record_bytes))

    def _take(self, page: Page) -> None:
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
            # After a record, 0 proves nothing: others may have arrived in the same millisecond.
            self.seen = replace(self.seen, clean_ms=page.at_ms - _CLEAN_SLACK_MS)
            self._settle()

    def _is_newer(self, number: int) -> bool:
        newest = self.seen.number
        return number > newest if newest is not None else is_after(self._state.position, number)

    def _settle(self, times: Generator[int, int | None, None] | None = None) -> None:
        """End the round; the next one goes on with a search for which there are ``times``."""
        self.settled = True
        self._walking = self._is_first = False
        self._times, self._probe = times, None

    def _resume_position(self) -> Position:
        begin = self._state.position
        clean_ms = self.seen.clean_ms if self.seen.number is not None else self.seen.clean_ms or self._state.clean_ms
        if clean_ms is not None:
            # Nothing came until then: so an idle shard has few empty pages, and its last record may be trimmed.
            return at_time(max(clean_ms - _SKEW_MS, begin.number if begin.kind is PositionKind.TIME else 0))
        return begin if self.seen.number is None else after(self.seen.number)


class Pacer:
    """Spaces the calls of this process to each shard, which others read too; most are left to tasks of a busy one."""

    def __init__(self, period: float, rate: float) -> None:
        self._new_pace = partial(Pace, period, rate, _BURST, rested=True)
        self.above_limits = False
        """Whether a page was ever seen that a shard of AWS does not take in its time."""
        self._busy: frozenset[ShardKey] = frozenset()
        self._paces: dict[ShardKey, Pace] = {}

    def set_busy(self, shards: Collection[ShardKey]) -> frozenset[ShardKey]:
        """Leave most calls to the tasks that read these shards; return those that are not busy any more."""
        before, self._busy = self._busy, frozenset()
        for key in shards:
            self._pace(key).begin()  # the first call of the task
        self._busy = frozenset(shards)
        idle = before - self._busy
        for key in idle:
            self._pace(key).forgive()  # calls that were left to the task
        return idle

    def wait_seconds(self, key: ShardKey, calls: int = 1, *, searching: bool = False) -> float:
        return self._pace(key).wait_seconds(calls, spread=searching or key in self._busy)

    def counted(self, key: ShardKey, call: Callable[[], Page], *, searching: bool = False) -> Page:
        """Make a call now, and count it and what it brings."""
        pace = self._pace(key)
        pace.begin(BUSY_CALLS if key in self._busy else _SEARCHING if searching else 1)
        page = call()
        pace.add_bytes(page.data_size)
        self.above_limits = self.above_limits or is_above_limits(page)
        return page

    def end_search(self, key: ShardKey) -> None:
        """Let no burst follow calls that were closer together than those to come."""
        self._pace(key).begin()

    def _pace(self, key: ShardKey) -> Pace:
        pace = self._paces.get(key)
        return pace if pace is not None else self._paces.setdefault(key, self._new_pace())


@dataclass(eq=False)
class PollTask:
    """Polls one shard for its latest record, at the pacer's times, with the monitor's notes.

    ``seen`` is the newest polled or pushed. By the monotonic clock: a round was asked for at ``wanted`` (up to the
    newest record if ``exact``), the current one ``began``, and the last finished one began at ``fresh_as_of``.
    ``searching``: a step of a search, or of the first round, for which the first rows wait.
    """

    key: ShardKey
    latest: LatestRecord
    outage: Outage
    pacer: Pacer
    seen: Seen = field(default_factory=Seen)
    pushed: Seen = field(default_factory=Seen)
    exact: bool = False
    searching: bool = True
    wanted: float = -1.0
    began: float | None = None
    fresh_as_of: float = -1.0
    idle_rounds: int = 0
    cpu_seconds: float = 0.0
    expired: bool = False

    def is_done(self, asked: float) -> bool:
        """Return whether a round is over that began after a time, or none is needed."""
        return self.seen.ended or self.fresh_as_of >= asked

    def step(self, *, exact: bool) -> float | None:
        """Make the next calls and return None, or return the seconds until they are due.

        Raises a `ConnectorError` when an outage has lasted too long.
        """
        now = time.monotonic()
        self.searching = self.fresh_as_of < 0 or self.latest.is_searching
        if (wait := self.pacer.wait_seconds(self.key, _CALLS_A_STEP, searching=self.searching)) > 0:
            return wait
        if self.began is None:
            self.began = now
            self.latest.skip_to(self.pushed)
        try:
            self.latest.step(exact=exact, searching=self.searching)
        except ConnectorError as error:
            return self._retry_delay(error)
        self.outage.reset()
        self.expired = False
        return None

    def end_round(self, *, exact: bool) -> None:
        """Note that a round is over, which went up to the newest record if ``exact``."""
        self.idle_rounds = 0 if self.latest.found_any else self.idle_rounds + 1
        if exact or not self.exact:
            if self.searching:
                self.pacer.end_search(self.key)
            self.fresh_as_of = self.began or 0.0
            self.exact = False
        self.began = None

    def _retry_delay(self, error: ConnectorError) -> float:
        if error.code == EXPIRED_ITERATOR and not self.expired:
            self.expired = True
            return 0.0  # it lives five minutes, and the next step has a new one: no failure that ``numRetries`` counts
        try:
            return self.outage.next_delay_seconds(error)
        except ConnectorError:
            self.outage.reset()
            raise
