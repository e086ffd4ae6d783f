"""Reading shards page by page, also from a record that was trimmed, and what becomes of records that are gone.

A task reads a range. That ends at a record that someone has seen, or at the end of a closed shard, so it gives the same
rows each time.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from connectors.core.errors import ConnectorError, DataLossError, ServiceUnavailableError, SourceGoneError
from connectors.core.retry import WaitLog
from connectors.kinesis.client.errors import EXPIRED_ITERATOR, INVALID_ARGUMENT, NOT_FOUND
from connectors.kinesis.client.shared import patiently, shared_client
from connectors.kinesis.offsets import TRIM, Kind, Position, StreamState, after, at
from connectors.kinesis.shards import Listing, ShardRange, vanished
from connectors.kinesis.source.pace import Pace
from connectors.kinesis.source.records import aggregates, batches

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.client.responses import Page, Record
    from connectors.kinesis.options.client import KinesisClientOptions

_log = logging.getLogger(__name__)

_FEW_PAGES: Final = 1000
"""Of a shard that takes records again after a week; an empty page passes over some time."""
_NUMBER: Final = attrgetter("number")
_TIP_PAGES: Final = 5
"""So often in a row nothing must lie ahead before a record that was seen counts as gone."""
_READ_SECONDS: Final = 900.0
"""Some thousand responses: a gap of months may take many, and need not show in how far behind the shard says it is."""
_END_SECONDS: Final = 10.0
_PROGRESS_MS: Final = 1000
_LATE_CALLS: Final = 2
"""A task that was late for a call makes up for it with one of the next."""
_CHECK_CALLS: Final = 2
"""Of a check for trimmed records: at the position, and at the oldest."""
_PAGE_SECONDS: Final = 0.75
"""At the rate of a shard, what a page brings: with more than a second's the service blocks the shard for everybody."""
_USUAL_BYTES: Final = 1000
"""Of a record, before any was seen."""
_LONGEST_CALL_SECONDS: Final = 5.0
"""What a page counts for at most: a call that was retried for long is no sign of a shard that leads nowhere."""


class Progress:
    """Whether the pages of a shard lead anywhere: to records, or at least a second nearer to the newest.

    ``patience`` is in seconds; between two pages at most 5 count.
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
        """Return what the shard says of itself."""
        return f"{self._where}, {self._behind_ms} ms behind its newest record"

    def restart(self) -> None:
        """Begin again."""
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
        """Build the error for a shard that leads nowhere."""
        return ServiceUnavailableError(
            "KINESIS_SHARD_STALLED",
            f"For {self._patience:g} s the shard has brought no record and said that it is {self._behind_ms} ms behind "
            "its newest, no less each time",
            self._where,
            "Ask whoever runs the service at endpointUrl; AWS passes over time without records in each response.",
        )


@dataclass(frozen=True, slots=True)
class ShardPages:
    """The pages of a shard; ``in_turn`` makes a call when the shard may be asked, and again when that may help."""

    client: KinesisClient
    stream: str
    shard: str
    in_turn: Callable[[Callable[[], Page]], Page] = lambda call: call()
    patience: float = _READ_SECONDS

    def read(
        self, position: Position, limit: Callable[[], int], *, was_read: bool = False, most: int | None = _FEW_PAGES
    ) -> Iterator[Page]:
        """Yield at most ``most`` pages from a position on, up to the end of a closed shard.

        ``limit`` returns the most records of the next page; ``was_read`` is that of `iterator_or_oldest`. Raises a
        `ServiceUnavailableError` when pages have led nowhere for ``patience`` seconds.
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
    """Return the first record of a shard from a position on; None when there is none."""
    for page in pages.read(position, lambda: 1):
        if page.records:
            return page.records[0]
        if page.behind_ms == 0 and page.following is not None:
            return None
    return None


def iterator_or_oldest(client: KinesisClient, stream: str, shard: str, position: Position, *, was_read: bool) -> str:
    """Return an iterator at a position, or at the oldest record where the one before the position was trimmed.

    The caller drops what does not lie after the position; `check_trimmed` finds whether something between is gone. With
    ``was_read`` a query has read the record, so that it is one of this shard.
    """
    try:
        return client.iterator(stream, shard, position)
    except ConnectorError as error:
        if error.code != INVALID_ARGUMENT or not was_read or position.kind is not Kind.AFTER:
            raise
        _log.warning(
            "[KINESIS_START_TRIMMED] The record %d is not there any more; reading on from the oldest (%s, %s).",
            position.number,
            stream,
            shard,
        )
        return client.iterator(stream, shard, TRIM)


def _report_data_loss(code: str, reason: str, where: str, *, fail: bool) -> None:
    """Raise a `DataLossError` over records that are gone if ``fail``, the option ``failOnDataLoss``; else warn."""
    if fail:
        action = "If the query may go on without them, set the option failOnDataLoss to false."
        raise DataLossError(code, reason, where, action)
    _log.warning("[%s] %s (%s).", code, reason, where)


def check_vanished(state: StreamState, listing: Listing, *, fail: bool) -> None:
    """Raise a `DataLossError` for a shard that was not read to its end and is not listed any more; or only warn."""
    for shard in vanished(state, listing):
        reason = f"The shard is not there any more and was read up to {state.shards[shard].position} only"
        _report_data_loss("KINESIS_DATA_LOSS.SHARD_VANISHED", reason, f"{listing.name}, {shard}", fail=fail)


def check_trimmed(pages: ShardPages, position: Position, complete_ms: int, *, fail: bool) -> None:
    """Report records after a position that may have been trimmed, as ``complete_ms`` is before the retention.

    The record at the position proves that nothing after it is gone. If that is gone too, what came after it may have
    been: that is a loss if the shard has newer records: with ``fail`` a `DataLossError`. A shard without any was idle,
    or all of its records are gone, which nobody can tell: that is a warning. ``complete_ms`` is 0 for a shard that is
    older than the retention, and of which nothing was read, though all of it was to be.
    """
    if position.kind in {Kind.AFTER, Kind.AT} and _has(pages, position.number):
        return
    oldest = first_record(pages, TRIM)
    if oldest is None:
        _log.warning(
            "[KINESIS_IDLE_BEYOND_RETENTION] Nothing is known of the shard since %d ms after 1970, which is longer ago "
            "than the retention, and it is empty now: what came meanwhile, if anything did, is gone (%s, %s).",
            complete_ms,
            pages.stream,
            pages.shard,
        )
        return
    known = f"all are known that arrived up to {complete_ms} ms after 1970"
    if complete_ms == 0:
        known = "nothing of the shard was read before its parents were gone longer than the retention"
    _report_data_loss(
        "KINESIS_DATA_LOSS.TRIMMED",
        f"The records after {position} were trimmed: {known}, and "
        f"the oldest that is left is {oldest.SequenceNumber}, which arrived at {oldest.arrival_ms}",
        f"{pages.stream}, {pages.shard}",
        fail=fail,
    )


def _has(pages: ShardPages, number: int) -> bool:
    try:
        record = first_record(pages, at(number))
    except ConnectorError as error:
        if error.code not in {INVALID_ARGUMENT, NOT_FOUND}:
            raise
        return False
    return record is not None and record.number == number


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How tasks read.

    ``page_records`` is the most records of a call, ``period`` the seconds between the starts of two calls to a shard,
    and ``rate`` the bytes a second that are read from it. ``spool`` is the folder of segments; empty without
    subscriptions.

    A shard that is behind and leads nowhere is an error after ``patience`` seconds. A closed shard with nothing ahead
    counts as read after ``end_patience`` seconds, though no response ends it.
    """

    client: KinesisClientOptions
    page_records: int
    period: float
    rate: float
    deaggregate: bool
    fail_on_data_loss: bool
    spool: str = ""
    patience: float = _READ_SECONDS
    end_patience: float = _END_SECONDS


def read_range(
    part: ShardRange,
    settings: ReadSettings,
    client: KinesisClient | None = None,
    sleep: Callable[[float], object] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, in batches of a bounded size; ``sleep`` waits, and returns True to give up.

    Raises a `DataLossError` when records of the range are gone, and ``failOnDataLoss`` is set.
    """
    try:
        for records in _RangeReader(part, settings, client or shared_client(settings.client), sleep).records():
            yield from batches(records, aggregates(records) if settings.deaggregate else None, part.name, part.shard)
    except SourceGoneError as error:
        reason = f"The shard cannot be read any more: {error}"
        where = f"{part.stream}, {part.shard}"
        _report_data_loss("KINESIS_DATA_LOSS.SHARD_GONE", reason, where, fail=settings.fail_on_data_loss)


class _RangeReader:
    """Reads the records of a range, at a pace that leaves others their share."""

    def __init__(
        self, part: ShardRange, settings: ReadSettings, client: KinesisClient, sleep: Callable[[float], object] | None
    ) -> None:
        self._part = part
        self._settings = settings
        self._closed = threading.Event()
        self._sleep = sleep or self._closed.wait
        self._pages = ShardPages(client, part.stream, part.shard, self._in_turn, settings.patience)
        self._tip_since = 0.0
        self._unpaced = ShardPages(client, part.stream, part.shard)
        self._position: Position = part.begin
        self._complete_ms = part.complete_ms
        self._checked: Position | None = None
        self._pace = Pace(settings.period, settings.rate, _LATE_CALLS, rested=False)
        self._record_bytes = float(_USUAL_BYTES)

    def records(self) -> Iterator[Sequence[Record]]:
        """Yield the records of each page that has any; meanwhile a thread asks for the next page, if there is one."""
        part, at_tip = self._part, 0
        was_read = part.complete_ms is not None
        pages = self._pages.read(part.begin, self._page_limit, was_read=was_read, most=None)
        page = next(pages, None)
        with ThreadPoolExecutor(1, "kinesis-read-ahead") as ahead:
            try:
                while page is not None:
                    self._check(page)
                    records, complete = self._within(page.records)
                    if records:
                        self._position = after(records[-1].number)
                        self._complete_ms = max(records[-1].arrival_ms, self._complete_ms or 0)
                    at_tip = at_tip + 1 if not page.records and page.behind_ms == 0 else 0
                    complete = complete or (part.end.kind is Kind.END and self._is_end(page, at_tip))
                    missing = part.end.kind is not Kind.END and (page.following is None or at_tip >= _TIP_PAGES)
                    following = None if complete or missing else ahead.submit(next, pages, None)
                    if records:
                        yield records
                    if missing and not complete:
                        self._report_end_missing()
                    page = None if following is None else following.result()
            finally:
                self._closed.set()

    def _within(self, records: Sequence[Record]) -> tuple[Sequence[Record], bool]:
        """Return the records of a page that belong to the range, and whether the range ends with them."""
        position, end = self._position, self._part.end
        if position.kind is Kind.AFTER and records and records[0].number <= position.number:
            records = records[bisect_left(records, position.number + 1, key=_NUMBER) :]
        if end.kind is Kind.END or not records or records[-1].number < end.number:
            return records, False
        last = bisect_left(records, end.number, key=_NUMBER)
        if records[last].number != end.number:
            self._report_end_missing()
            return records[:last], True
        return records[: last + (end.kind is Kind.AFTER)], True

    def _is_end(self, page: Page, at_tip: int) -> bool:
        """Return whether a closed shard was read to its end; ``at_tip`` counts pages in a row with nothing ahead.

        A server other than AWS may give pages for ever (moto does). Nothing is added to a closed shard, so those that
        say that nothing lies ahead are believed after some seconds.
        """
        if page.following is None:
            return True
        if at_tip <= 1:
            self._tip_since = time.monotonic()
        if at_tip < _TIP_PAGES or time.monotonic() - self._tip_since < self._settings.end_patience:
            return False
        _log.warning(
            "[KINESIS_SHARD_NOT_ENDED] The shard is closed, and for %g s said that nothing lies ahead, but no response "
            "ends it: it counts as read (%s, %s).",
            self._settings.end_patience,
            self._part.stream,
            self._part.shard,
        )
        return True

    def _report_end_missing(self) -> None:
        part = self._part
        reason = f"The batch from {part.begin} ends with the record {part.end.number}, which is not there any more"
        where = f"{part.stream}, {part.shard}"
        _report_data_loss("KINESIS_DATA_LOSS.END_MISSING", reason, where, fail=self._settings.fail_on_data_loss)

    def _in_turn(self, call: Callable[[], Page]) -> Page:
        return patiently(partial(self._paced, call), self._settings.client, self._sleep)

    def _paced(self, call: Callable[[], Page]) -> Page:
        if (wait := self._pace.wait_seconds()) > 0:
            self._sleep(wait)
        self._pace.begin()
        page = call()
        size = page.data_size
        self._pace.add_bytes(size)
        if page.records:
            self._record_bytes = max(1.0, size / len(page.records))
        return page

    def _page_limit(self) -> int:
        return max(1, min(self._settings.page_records, int(self._settings.rate * _PAGE_SECONDS / self._record_bytes)))

    def _check(self, page: Page) -> None:
        """Report records after the position that are gone; asks once the retention may have passed it."""
        known, position, fail = self._complete_ms, self._position, self._settings.fail_on_data_loss
        if known is None or self._checked == position or not 0 < self._part.retention_ms < page.at_ms - known:
            return
        check = partial(check_trimmed, self._unpaced, position, known, fail=fail)
        patiently(check, self._settings.client, self._sleep)
        self._checked = position
        self._pace.begin(_CHECK_CALLS)
