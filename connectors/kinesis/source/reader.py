"""Reading a range of a shard: what a task does.

A range ends at a record that someone has seen, or at the end of a closed shard, so it gives the same rows each time.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from connectors.core.errors import SourceGoneError
from connectors.kinesis.client.shared import patiently, shared_client
from connectors.kinesis.offsets import Kind, Position, after
from connectors.kinesis.shards import ShardRange
from connectors.kinesis.source.iterators import ShardPages, check_trimmed, report_data_loss
from connectors.kinesis.source.records import aggregates, batches

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.client.responses import Page, Record
    from connectors.kinesis.options.client import KinesisClientOptions

__all__ = ["ReadSettings", "read_range"]

_TIP_PAGES: Final = 5
"""So often in a row nothing must lie ahead before a record that was seen counts as gone."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How tasks read.

    ``page_records`` is the most records of a call, ``period`` the seconds between two calls to a shard, and ``rate``
    the bytes a second that are read from it. ``spool`` is the folder of segments; empty without subscriptions.
    """

    client: KinesisClientOptions
    page_records: int
    period: float
    rate: float
    deaggregate: bool
    fail_on_data_loss: bool
    spool: str = ""


def read_range(
    part: ShardRange,
    settings: ReadSettings,
    client: KinesisClient | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, in batches of a bounded size.

    Raises:
        DataLossError: records of the range are gone, and ``failOnDataLoss`` is set.
        ConnectorError: the service cannot be asked.
    """
    try:
        for records in _RangeReader(part, settings, client or shared_client(settings.client), sleep).records():
            yield from batches(records, aggregates(records) if settings.deaggregate else None, part.name, part.shard)
    except SourceGoneError as error:
        reason = f"The shard cannot be read any more: {error}"
        report_data_loss("SHARD_GONE", reason, f"{part.stream}, {part.shard}", fail=settings.fail_on_data_loss)


class _RangeReader:
    """Reads the records of a range, at a pace that leaves others their share."""

    def __init__(
        self, part: ShardRange, settings: ReadSettings, client: KinesisClient, sleep: Callable[[float], object]
    ) -> None:
        self._part = part
        self._settings = settings
        self._sleep = sleep
        self._pages = ShardPages(client, part.stream, part.shard, self._in_turn)
        self._unpaced = ShardPages(client, part.stream, part.shard)
        self._position: Position = part.begin
        self._complete_ms = part.complete_ms
        self._checked: Position | None = None
        self._next_call = 0.0

    def records(self) -> Iterator[Sequence[Record]]:
        """Yield the records, page by page."""
        part, at_tip = self._part, 0
        limit, was_read = self._settings.page_records, part.complete_ms is not None
        for page in self._pages.read(part.begin, lambda: limit, was_read=was_read, most=None):
            self._check(page)
            records, complete = self._within(page.records)
            if records:
                self._position = after(records[-1].number)
                self._complete_ms = max(records[-1].arrival_ms, self._complete_ms or 0)
                yield records
            if complete or (page.following is None and part.end.kind is Kind.END):
                return
            at_tip = at_tip + 1 if not page.records and page.behind_ms == 0 else 0
            if part.end.kind is not Kind.END and (page.following is None or at_tip >= _TIP_PAGES):
                self._report_end_missing()
                return

    def _within(self, records: Sequence[Record]) -> tuple[Sequence[Record], bool]:
        """Return the records of a page that belong to the range, and whether the range ends with them."""
        position, end = self._position, self._part.end
        if position.kind is Kind.AFTER and records and records[0].number <= position.number:
            records = records[bisect_left(records, position.number + 1, key=_number) :]
        if end.kind is Kind.END or not records or records[-1].number < end.number:
            return records, False
        last = bisect_left(records, end.number, key=_number)
        if records[last].number != end.number:
            self._report_end_missing()
            return records[:last], True
        return records[: last + (end.kind is Kind.AFTER)], True

    def _report_end_missing(self) -> None:
        part = self._part
        reason = f"The batch from {part.begin} ends with the record {part.end.number}, which is not there any more"
        where = f"{part.stream}, {part.shard}"
        report_data_loss("END_MISSING", reason, where, fail=self._settings.fail_on_data_loss)

    def _in_turn(self, call: Callable[[], Page]) -> Page:
        return patiently(partial(self._paced, call), self._settings.client, self._sleep)

    def _paced(self, call: Callable[[], Page]) -> Page:
        if (wait := self._next_call - time.monotonic()) > 0:
            self._sleep(wait)
        self._next_call = time.monotonic() + self._settings.period
        page = call()
        self._next_call = time.monotonic() + max(self._settings.period, page.data_size / self._settings.rate)
        return page

    def _check(self, page: Page) -> None:
        """Report records after the position that are gone; asks once the retention may have passed it."""
        known, position, fail = self._complete_ms, self._position, self._settings.fail_on_data_loss
        if known is None or self._checked == position or not 0 < self._part.retention_ms < page.at_ms - known:
            return
        check = partial(check_trimmed, self._unpaced, position, known, fail=fail)
        patiently(check, self._settings.client, self._sleep)
        self._checked = position
        self._next_call += self._settings.period


def _number(record: Record) -> int:
    return record.number
