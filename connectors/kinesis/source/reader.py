"""Reading a range of a shard: what a task does.

A range ends at a record that someone has seen, or at the end of a closed shard, so it gives the same rows each time.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from connectors.core.errors import ConnectorError, SourceGoneError
from connectors.kinesis.client.errors import EXPIRED_ITERATOR
from connectors.kinesis.client.shared import patiently, shared_client
from connectors.kinesis.offsets import Kind, Position, after
from connectors.kinesis.shards import ShardRange
from connectors.kinesis.source.iterators import ShardLook, check_kept, kept_iterator, report_loss
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

    Attributes:
        client: where the service is, and by which credentials.
        page_records: the most records of a call.
        period: seconds between two calls to a shard.
        rate: bytes a second that are read from a shard.
        deaggregate: take aggregates of the KPL apart.
        fail_on_data_loss: the option.
        spool: the folder of segments; empty without subscriptions.
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
    pages = _Pages(part, settings, client or shared_client(settings.client), sleep)
    try:
        for records in _records(part, settings, pages):
            yield from batches(records, aggregates(records) if settings.deaggregate else None, part.name, part.shard)
    except SourceGoneError as error:
        reason = f"The shard cannot be read any more: {error}"
        report_loss("SHARD_GONE", reason, f"{part.stream}, {part.shard}", fail=settings.fail_on_data_loss)


def _records(part: ShardRange, settings: ReadSettings, pages: _Pages) -> Iterator[Sequence[Record]]:
    """The records of a range, page by page."""
    at_tip = 0
    while True:
        page = pages.next()
        records, complete = _within(page.records, pages.position, part, settings)
        if records:
            pages.read_up_to(records[-1])
            yield records
        if complete or (page.following is None and part.end.kind is Kind.END):
            return
        at_tip = at_tip + 1 if not page.records and page.behind_ms == 0 else 0
        if part.end.kind is not Kind.END and (page.following is None or at_tip >= _TIP_PAGES):
            _end_is_gone(part, settings)
            return


def _within(
    records: Sequence[Record], position: Position, part: ShardRange, settings: ReadSettings
) -> tuple[Sequence[Record], bool]:
    """The records of a page that belong to a range, and whether the range ends with them."""
    if position.kind is Kind.AFTER and records and records[0].number <= position.number:
        records = records[bisect_left(records, position.number + 1, key=_number) :]
    if part.end.kind is Kind.END or not records or records[-1].number < part.end.number:
        return records, False
    here = bisect_left(records, part.end.number, key=_number)
    if records[here].number != part.end.number:
        _end_is_gone(part, settings)
        return records[:here], True
    return records[: here + (part.end.kind is Kind.AFTER)], True


def _number(record: Record) -> int:
    return record.number


def _end_is_gone(part: ShardRange, settings: ReadSettings) -> None:
    report_loss(
        "END_MISSING",
        f"The batch from {part.begin} ends with the record {part.end.number}, which is not there any more",
        f"{part.stream}, {part.shard}",
        fail=settings.fail_on_data_loss,
    )


class _Pages:
    """The pages of a shard from a position on, at a pace that leaves others their share."""

    def __init__(
        self, part: ShardRange, settings: ReadSettings, client: KinesisClient, sleep: Callable[[float], object]
    ) -> None:
        self._part = part
        self._settings = settings
        self._client = client
        self._sleep = sleep
        self.position: Position = part.begin
        """Up to here all has been read."""
        self._iterator: str | None = None
        self._known_ms = part.known_ms
        self._checked: Position | None = None
        self._next_call = 0.0

    def next(self) -> Page:
        """The next page.

        Raises:
            ConnectorError: the service cannot be asked.
        """
        page = patiently(self._page, self._settings.client, self._sleep)
        self._iterator = page.following
        return page

    def read_up_to(self, record: Record) -> None:
        """Note where to go on when the iterator has expired."""
        self.position = after(record.number)
        self._known_ms = max(record.arrival_ms, self._known_ms or 0)

    def _page(self) -> Page:
        settings, part = self._settings, self._part
        is_new = self._iterator is None
        if self._iterator is None:
            known = self._known_ms is not None
            self._iterator = kept_iterator(self._client, part.stream, part.shard, self.position, was_read=known)
        if (wait := self._next_call - time.monotonic()) > 0:
            self._sleep(wait)
        self._next_call = time.monotonic() + settings.period
        try:
            page = self._client.records(self._iterator, settings.page_records, part.stream, part.shard)
        except ConnectorError as error:
            if error.code != EXPIRED_ITERATOR:
                raise
            self._iterator = None
            if is_new:
                raise
            # It lives five minutes; a sink that takes longer for a page is no failure that ``numRetries`` counts.
            return self._page()
        self._next_call = time.monotonic() + max(settings.period, page.data_size / settings.rate)
        self._check(page)
        return page

    def _check(self, page: Page) -> None:
        """Whether what comes behind all that was read is still there; asked once the retention may have passed it."""
        part, known_ms = self._part, self._known_ms
        if known_ms is None or self._checked == self.position or not 0 < part.retention_ms < page.at_ms - known_ms:
            return
        look = ShardLook(self._client, part.stream, part.shard)
        check_kept(look, self.position, known_ms, fail=self._settings.fail_on_data_loss)
        self._checked = self.position
        self._next_call += self._settings.period
