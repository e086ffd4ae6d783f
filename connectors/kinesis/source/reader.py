"""How a task reads its ranges of shards.

A range ends at a record that was seen, or at the end of a closed shard, so it gives the same rows each time. Several
ranges take turns: while one waits for the service, others give rows. A turn has a number of rows and bytes, about half
a second of a shard, so the order of rows follows from the rows alone, and each attempt repeats it. Of each range that
is being read, the rest of a batch, the next batch and one page ahead are in memory.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from connectors.core.errors import SourceGoneError
from connectors.core.retry import wait_out
from connectors.kinesis.offsets import Position, PositionKind, after
from connectors.kinesis.shards import ShardRange
from connectors.kinesis.source.pages import READ_SECONDS, Pace, ShardPages, check_trimmed, report_data_loss
from connectors.kinesis.source.records import aggregates, batches

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient, Page, Record
    from connectors.kinesis.options.client import KinesisClientOptions
    from connectors.kinesis.options.source import KinesisReadOptions

_log = logging.getLogger(__name__)

_NUMBER: Final = attrgetter("number")
_TIP_PAGES: Final = 5
"""Empty responses at the tip, in a row, before a record that was seen counts as gone."""
_END_SECONDS: Final = 10.0
_LATE_CALLS: Final = 2
"""A task that was late for a call makes up for it with one of the next."""
_CHECK_CALLS: Final = 2
"""Of a check for trimmed records: at the position, and at the oldest."""
_PAGE_SECONDS: Final = 0.75
"""At the rate of a shard, what a page brings: with more than a second's the service blocks the shard for everybody."""
_USUAL_BYTES: Final = 1000
"""Of a record, before any was seen."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How tasks read: calls of ``page_records``, ``period`` seconds apart, and ``rate`` bytes a second from a shard.

    ``spool`` is the folder of segments; empty without subscriptions. A shard without progress fails after ``patience``
    seconds. A closed shard with nothing ahead counts as read after ``end_patience`` seconds, though no response ends
    it.
    """

    client: KinesisClientOptions
    page_records: int
    period: float
    rate: float
    deaggregate: bool
    fail_on_data_loss: bool
    spool: str = ""
    patience: float = READ_SECONDS
    end_patience: float = _END_SECONDS


def read_range(
    part: ShardRange,
    settings: ReadSettings,
    client: KinesisClient | None = None,
    sleep: Callable[[float], object] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a range's rows in bounded batches; ``sleep`` waits, and returns True to give up.

    Raises a `DataLossError` when records are gone, and ``failOnDataLoss`` is set.
    """
    from connectors.kinesis.client.client import shared_client  # noqa: PLC0415 - botocore takes 0.2 s

    try:
        for records in _RangeReader(part, settings, client or shared_client(settings.client), sleep).records():
            yield from batches(records, aggregates(records) if settings.deaggregate else None, part.name, part.shard)
    except SourceGoneError as error:
        reason = f"The shard can no longer be read: {error}"
        where = f"{part.stream}, {part.shard}"
        report_data_loss("KINESIS_DATA_LOSS.SHARD_GONE", reason, where, fail=settings.fail_on_data_loss)


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
                    complete = complete or (part.end.kind is PositionKind.END and self._is_end(page, at_tip))
                    missing = part.end.kind is not PositionKind.END and (page.following is None or at_tip >= _TIP_PAGES)
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
        if position.kind is PositionKind.AFTER and records and records[0].number <= position.number:
            records = records[bisect_left(records, position.number + 1, key=_NUMBER) :]
        if end.kind is PositionKind.END or not records or records[-1].number < end.number:
            return records, False
        last = bisect_left(records, end.number, key=_NUMBER)
        if records[last].number != end.number:
            self._report_end_missing()
            return records[:last], True
        return records[: last + (end.kind is PositionKind.AFTER)], True

    def _is_end(self, page: Page, at_tip: int) -> bool:
        """Return whether a closed shard was read to its end; ``at_tip`` counts empty pages in a row with nothing ahead.

        Servers other than AWS may send pages for ever (moto does). Nothing is added to a closed shard, so they are
        believed after some seconds.
        """
        if page.following is None:
            return True
        if at_tip <= 1:
            self._tip_since = time.monotonic()
        if at_tip < _TIP_PAGES or time.monotonic() - self._tip_since < self._settings.end_patience:
            return False
        _log.warning(
            "[KINESIS_SHARD_NOT_ENDED] The shard is closed and has returned nothing for %g s, but no response marks "
            "its end. The query treats it as read (%s, %s).",
            self._settings.end_patience,
            self._part.stream,
            self._part.shard,
        )
        return True

    def _report_end_missing(self) -> None:
        part = self._part
        reason = f"The batch from {part.begin} ends with the record {part.end.number}, which no longer exists"
        where = f"{part.stream}, {part.shard}"
        report_data_loss("KINESIS_DATA_LOSS.END_MISSING", reason, where, fail=self._settings.fail_on_data_loss)

    def _in_turn(self, call: Callable[[], Page]) -> Page:
        return wait_out(partial(self._paced, call), self._settings.client.outage_rule, sleep=self._sleep)

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
        complete_ms, position, fail = self._complete_ms, self._position, self._settings.fail_on_data_loss
        if complete_ms is None or self._checked == position:
            return
        if not 0 < self._part.retention_ms < page.at_ms - complete_ms:
            return
        check = partial(check_trimmed, self._unpaced, position, complete_ms, fail=fail)
        wait_out(check, self._settings.client.outage_rule, sleep=self._sleep)
        self._checked = position
        self._pace.begin(_CHECK_CALLS)


_TASK_RATE: Final = 30.0
"""MB a second, of ranges that each give ``maxFetchRate``."""
_RANGES_AT_A_TIME: Final = 16
_TURN_ROWS: Final = 10_000
_TURN_BYTES: Final = 1_000_000


def task_count(ranges: int, options: KinesisReadOptions) -> int:
    """Return how many tasks read that many ranges: as few as can keep up with their shards on a core each."""
    return min(ranges, max(math.ceil(ranges * options.max_fetch_rate / _TASK_RATE), options.min_partitions or 1))


def interleaved(
    ranges: Sequence[Callable[[], Iterator[pa.RecordBatch]]], closed: threading.Event
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of up to 16 ranges at a time, each in its order.

    ``closed`` is set when no more rows are wanted, and ends waits.
    """
    waiting = iter(ranges)
    with ThreadPoolExecutor(min(len(ranges), _RANGES_AT_A_TIME), "kinesis-range") as pool:
        active = [_Range(pool, read()) for _, read in zip(range(_RANGES_AT_A_TIME), waiting, strict=False)]
        try:
            while active:
                following = []
                for one in active:
                    yield from one.turn()
                    if not one.ended:
                        following.append(one)
                    elif (read := next(waiting, None)) is not None:
                        following.append(_Range(pool, read()))
                active = following
        finally:
            closed.set()


class _Range:
    """The rows of one range; the next batch is made ahead."""

    def __init__(self, pool: ThreadPoolExecutor, batches: Iterator[pa.RecordBatch]) -> None:
        self._pool = pool
        self._batches = batches
        self._next: Future[pa.RecordBatch | None] = pool.submit(next, batches, None)
        self._rest: pa.RecordBatch | None = None
        self.ended = False

    def turn(self) -> Iterator[pa.RecordBatch]:
        rows, size = _TURN_ROWS, _TURN_BYTES
        while rows > 0 and size > 0:
            batch = self._rest if self._rest is not None else self._take()
            if batch is None:
                return
            ends = _ends(batch)
            count = min(rows, int(np.searchsorted(ends, size)) + 1, len(batch))
            rows, size = rows - count, size - int(ends[count - 1])
            self._rest = batch.slice(count) if count < len(batch) else None
            yield batch.slice(0, count)

    def _take(self) -> pa.RecordBatch | None:
        batch = self._next.result()
        if batch is None:
            self.ended = True
        else:
            self._next = self._pool.submit(next, self._batches, None)
        return batch


def _ends(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the bytes of data and keys up to the end of each row."""
    import pyarrow.compute as pc  # noqa: PLC0415 - it takes 30 ms, and a task that reads one range does without

    sizes = pc.add(pc.binary_length(batch.column("data")), pc.binary_length(batch.column("partitionKey")))
    return np.cumsum(np.asarray(sizes, np.int64))
