"""What driver and tasks share: the pages of a shard, the pace of its calls, and trimmed records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from connectors.core.errors import ConnectorError, DataLossError, ServiceUnavailableError
from connectors.core.retry import WaitLog
from connectors.kinesis.client.errors import EXPIRED_ITERATOR, INVALID_ARGUMENT, NOT_FOUND
from connectors.kinesis.offsets import TRIM, Position, PositionKind, StreamState, after, at
from connectors.kinesis.shards import Listing, vanished

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient, Page, Record

_log = logging.getLogger(__name__)

RECORDS_A_SECOND: Final = 1000
BYTES_A_SECOND: Final = 1 << 20
"""What a shard of AWS takes in a second."""
_BUCKET_SECONDS = 1.0
"""The service counts by the second: what was not used in the last one is lost."""
_FEW_PAGES: Final = 1000
"""Of a shard that takes records again after a week; an empty page passes over some time."""
READ_SECONDS: Final = 900.0
"""Some thousand responses: a gap of months may take many, and need not show in how far behind the shard says it is."""
_PROGRESS_MS: Final = 1000
_LONGEST_CALL_SECONDS: Final = 5.0
"""What a page counts for at most: a call that was retried for long is no sign of a shard that leads nowhere."""


class Pace:
    """Spaces the calls to one shard by ``period`` seconds and ``rate`` bytes a second; not thread-safe.

    AWS counts both from the start of each call. After a pause up to ``calls`` may be made at once; at first one, unless
    ``rested``.
    """

    def __init__(
        self, period: float, rate: float, calls: int, *, rested: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._period = period
        self._rate = rate
        self._slack = (calls - 1) * period
        self._began = self._clock()
        self._calls_due = self._began + (0.0 if rested else self._slack)
        self._bytes_due = self._began

    def wait_seconds(self, calls: int = 1, *, spread: bool = False) -> float:
        """Return the seconds until that many calls may be made at once, not positive for now.

        With ``spread`` no pause is made up for, and the first of the calls counts.
        """
        due = self._calls_due if spread else self._calls_due + (calls - 1) * self._period - self._slack
        return max(due, self._bytes_due) - self._clock()

    def begin(self, calls: float = 1) -> None:
        """Count a call that begins now, or several in a row; a call of ``calls`` periods leaves others their share."""
        self._began = self._clock()
        self._calls_due = max(self._calls_due, self._began) + calls * self._period

    def forgive(self) -> None:
        """Let calls that counted for several delay the next no longer than two bursts would, one by somebody else."""
        self._calls_due = min(self._calls_due, max(self._began + 2 * self._slack, self._clock() + self._slack))

    def add_bytes(self, size: int) -> None:
        """Count what the call that has begun brought.

        Late calls are made up for as far as the service's bucket reaches: a response of more than a second's bytes
        blocks the shard until it is paid.
        """
        seconds = size / self._rate
        saved = max(0.0, _BUCKET_SECONDS - seconds)
        self._bytes_due = max(self._bytes_due, self._began - saved) + seconds


def is_above_limits(page: Page) -> bool:
    """Return whether more records of a page arrived in their time than a shard of AWS takes."""
    if not page.records:
        return False
    span_ms = page.records[-1].arrival_ms - page.records[0].arrival_ms + 1000
    limits = ((len(page.records), RECORDS_A_SECOND), (page.data_size, BYTES_A_SECOND))
    return any(taken * 1000 > a_second * span_ms for taken, a_second in limits)


class Progress:
    """Whether a shard's pages progress: to records, or at least a second nearer to the newest.

    Between two pages at most 5 s count towards ``patience``.
    """

    def __init__(self, stream: str, shard: str, patience: float) -> None:
        self._where = f"{stream}, {shard}"
        self._patience = patience
        self._spent = 0.0
        self._noted_at = time.monotonic()
        self._least_ms: int | None = None
        self._behind_ms = 0
        self._log = WaitLog(lambda: f"a record, or the end, of a shard ({self.state()})", lambda: self._spent)

    def state(self) -> str:
        return f"{self._where}, {self._behind_ms} ms behind its newest record"

    def restart(self) -> None:
        self._least_ms = None
        self._log.restart()

    def note(self, page: Page) -> bool:
        """Note the next page; return whether pages have led nowhere for the patience."""
        now = time.monotonic()
        self._spent += min(now - self._noted_at, _LONGEST_CALL_SECONDS)
        self._noted_at = now
        self._behind_ms = page.behind_ms
        is_nearer = self._least_ms is None or page.behind_ms <= self._least_ms - _PROGRESS_MS
        if page.records or page.behind_ms == 0 or page.following is None or is_nearer:
            self._least_ms = page.behind_ms
            self._log.restart()
        self._log.tick()
        return self._log.seconds > self._patience

    def error(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            "KINESIS_SHARD_STALLED",
            f"For {self._patience:g} s the shard has returned no record, and reads stay {self._behind_ms} ms "
            f"behind its "
            "newest",
            self._where,
        )


@dataclass(frozen=True, slots=True)
class ShardPages:
    """The pages of a shard; ``in_turn`` makes a call when the shard may be asked, and retries it."""

    client: KinesisClient
    stream: str
    shard: str
    in_turn: Callable[[Callable[[], Page]], Page] = lambda call: call()
    patience: float = READ_SECONDS

    def read(
        self, position: Position, limit: Callable[[], int], *, was_read: bool = False, most: int | None = _FEW_PAGES
    ) -> Iterator[Page]:
        """Yield at most ``most`` pages from a position on, of ``limit`` records, up to the end of a closed shard.

        Raises a `ServiceUnavailableError` for pages without progress for ``patience`` seconds. For ``was_read`` see
        `iterator_or_oldest`.
        """
        progress = Progress(self.stream, self.shard, self.patience)
        iterator: str | None = None

        def fetch() -> Page:
            nonlocal iterator
            is_new = iterator is None
            if iterator is None:
                iterator = iterator_or_oldest(self.client, self.stream, self.shard, position, was_read=was_read)
            try:
                return self.client.records(iterator, limit(), self.stream, self.shard)
            except ConnectorError as error:
                if error.code != EXPIRED_ITERATOR:
                    raise
                iterator = None
                if is_new:
                    raise
                # It lives five minutes; a sink that takes longer for a page is no failure that ``numRetries`` counts.
                return fetch()

        for _ in count() if most is None else range(most):
            page = self.in_turn(fetch)
            if progress.note(page):
                raise progress.error()
            iterator = page.following
            if page.records:
                position, was_read = after(page.records[-1].number), True
            yield page
            if iterator is None:
                return


def first_record(pages: ShardPages, position: Position) -> Record | None:
    for page in pages.read(position, lambda: 1):
        if page.records:
            return page.records[0]
        if page.behind_ms == 0 and page.following is not None:
            return None
    return None


def iterator_or_oldest(client: KinesisClient, stream: str, shard: str, position: Position, *, was_read: bool) -> str:
    """Return an iterator at a position, or at the oldest record if the one before the position was trimmed.

    Drop what doesn't lie after the position; `check_trimmed` finds gaps. ``was_read``: the query has read the record,
    so it is one of this shard.
    """
    try:
        return client.iterator(stream, shard, position)
    except ConnectorError as error:
        if error.code != INVALID_ARGUMENT or not was_read or position.kind is not PositionKind.AFTER:
            raise
        _log.warning(
            "[KINESIS_START_TRIMMED] The record %d no longer exists. The query continues at the oldest (%s, %s).",
            position.number,
            stream,
            shard,
        )
        return client.iterator(stream, shard, TRIM)


def report_data_loss(code: str, reason: str, where: str, *, fail: bool) -> None:
    """Raise a `DataLossError` over records that are gone if ``fail``, the option ``failOnDataLoss``; else warn."""
    if fail:
        raise DataLossError(code, reason, where)
    _log.warning("[%s] %s (%s).", code, reason, where)


def check_vanished(state: StreamState, listing: Listing, *, fail: bool) -> None:
    """Raise a `DataLossError` for a shard that was not read to its end and is not listed any more; or only warn."""
    for shard in vanished(state, listing):
        reason = f"The shard no longer exists, and was read only up to {state.shards[shard].position}"
        report_data_loss("KINESIS_DATA_LOSS.SHARD_VANISHED", reason, f"{listing.name}, {shard}", fail=fail)


def check_trimmed(pages: ShardPages, position: Position, complete_ms: int, *, fail: bool) -> None:
    """Report records after a position that may have been trimmed, as ``complete_ms`` is before the retention.

    The record at the position proves that nothing after it is gone. Otherwise it is a loss if the shard has newer
    records, with ``fail`` a `DataLossError`. An empty shard was idle or lost all: nobody can tell, so that is a
    warning. ``complete_ms`` is 0 for a shard older than the retention that was to be read whole.
    """
    if position.kind in {PositionKind.AFTER, PositionKind.AT} and has_record(pages, position.number):
        return
    oldest = first_record(pages, TRIM)
    if oldest is None:
        _log.warning(
            "[KINESIS_IDLE_BEYOND_RETENTION] The shard was last read up to %d ms after 1970, longer ago than the "
            "retention, and it is empty now. Any records that came in between are lost (%s, %s).",
            complete_ms,
            pages.stream,
            pages.shard,
        )
        return
    complete = f"all are known that arrived up to {complete_ms} ms after 1970"
    if complete_ms == 0:
        complete = "nothing of the shard was read before its parents were gone longer than the retention"
    report_data_loss(
        "KINESIS_DATA_LOSS.TRIMMED",
        f"The records after {position} were trimmed: {complete}, and "
        f"the oldest remaining record is {oldest.SequenceNumber}, which arrived at {oldest.arrival_ms}",
        f"{pages.stream}, {pages.shard}",
        fail=fail,
    )


def has_record(pages: ShardPages, number: int) -> bool:
    try:
        record = first_record(pages, at(number))
    except ConnectorError as error:
        if error.code not in {INVALID_ARGUMENT, NOT_FOUND}:
            raise
        return False
    return record is not None and record.number == number
