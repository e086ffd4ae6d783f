"""One shard's subscriptions, one after the other, and the messages between fetcher and source process.

The service ends each subscription after five minutes or earlier: that is normal. One that cannot be reopened, or is
open and silent, is a failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.core.retry import Backoff
from connectors.kinesis.client.client import (
    Event,
    KinesisClient,
    MessageBuffer,
    Record,
    SignedRequest,
    body_error,
    event_error,
    parse_event,
    service_time_ms,
)
from connectors.kinesis.client.errors import CREDENTIALS, IN_USE, INVALID_ARGUMENT, NOT_FOUND
from connectors.kinesis.client.http2 import Http2Client, Response
from connectors.kinesis.offsets import Position, PositionKind, after
from connectors.kinesis.options.client import KinesisClientOptions
from connectors.kinesis.shards import ShardKey
from connectors.spool.fetching.contract import FetchContext, Intake
from connectors.spool.fetching.messages import from_json, malformed, to_json

# Orders


@dataclass(frozen=True, slots=True)
class Order:
    """Follow a shard, by the ARN of a consumer, from a position on."""

    key: ShardKey
    consumer: str
    created_ms: int
    position: Position


@dataclass(frozen=True, slots=True)
class Deregister:
    """Deregister a consumer, by its ARN, when the fetcher ends."""

    consumer: str


def order_name(order: Order | Deregister | ShardKey) -> str:
    match order:
        case Deregister():
            return f"deregister {order.consumer}"
        case Order():
            return order_name(order.key)
    return "follow " + " ".join(order)


# Notes


@dataclass(frozen=True, slots=True)
class Live:
    """Whether the subscription of a shard works has changed."""

    key: ShardKey
    live: bool


@dataclass(frozen=True, slots=True)
class UpToDate:
    """Until a time, in milliseconds since 1970, nothing came after a position."""

    key: ShardKey
    position: Position
    until_ms: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The service takes no subscription from the position that was ordered."""

    key: ShardKey


@dataclass(frozen=True, slots=True)
class Gone:
    """The consumer that was to be used for a shard does not exist."""

    key: ShardKey


@dataclass(frozen=True, slots=True)
class Ended:
    """A closed shard was read to its end."""

    key: ShardKey


@dataclass(frozen=True, slots=True)
class NotSubscribed:
    """A subscription could not be opened."""

    error: ConnectorError


@dataclass(frozen=True, slots=True)
class NotDeregistered:
    """A consumer could not be deregistered."""

    reason: str


Note: TypeAlias = Live | UpToDate | Refused | Gone | Ended | NotSubscribed | NotDeregistered
_ORDERS: Final = {kind.__name__: kind for kind in (Order, Deregister)}
_NOTES: Final = {kind.__name__: kind for kind in (Live, UpToDate, Refused, Gone, Ended, NotSubscribed, NotDeregistered)}


def message_to_json(message: Order | Deregister | Note) -> dict[str, Any]:
    return {type(message).__name__: to_json(message)}


def order_from_json(value: object) -> Order | Deregister:
    """Read an order that `message_to_json` wrote; a `ConnectorError` for anything else."""
    return _from_json(value, _ORDERS)  # type: ignore[no-any-return]  # one of these


def note_from_json(value: object) -> Note:
    """Read a note that `message_to_json` wrote; a `ConnectorError` for anything else."""
    return _from_json(value, _NOTES)  # type: ignore[no-any-return]  # one of these


def _from_json(value: object, kinds: Mapping[str, Any]) -> Any:
    if not isinstance(value, dict) or len(value) != 1 or not kinds.keys() >= value.keys():
        raise malformed("what it says of a shard has another shape")
    ((name, content),) = value.items()
    return from_json(content, kinds[name], name)


_log = logging.getLogger(__name__)
_ANSWER_SECONDS: Final = 20.0
_TAKEOVER_SECONDS: Final = 5.0
"""So soon after the last one the service refuses another subscription to a shard."""
_OK: Final = 200
_ROOM_SECONDS: Final = 0.05
_SIGNERS: Final = 4
_FAILURES: Final = 2
"""A subscription that ends and is not opened again at the second try is none any more."""
_SERVICE_CLOCK_MS: Final = 1000
"""The service gives its time in whole seconds."""


@dataclass(frozen=True, slots=True)
class SubscribedRecords:
    """At least one record: everything after a position, up to the end of the shard if ``ended``."""

    order: Order
    after: Position
    records: list[Record]
    ended: bool


Begins: TypeAlias = list[tuple[Order, Position]]
"""Stands for deliveries while their rows are written: where each shard began."""
RecordsIntake: TypeAlias = Intake[SubscribedRecords, Begins]


class SubscriptionHost:
    """What the subscriptions of a fetcher share: connections, signatures, room, and reports; used in one event loop."""

    def __init__(self, options: KinesisClientOptions, context: FetchContext, stall_seconds: float) -> None:
        self.client = KinesisClient(options, _SIGNERS)
        self.stall_seconds = stall_seconds
        self.signers = ThreadPoolExecutor(_SIGNERS, "sign")
        self.http = Http2Client()
        self.intake: RecordsIntake | None = None
        self.error: ConnectorError | None = None
        self._context = context

    async def sign(self, consumer: str, shard: str, position: Position) -> SignedRequest:
        """Return a signed request, from a thread: credentials may have to be refreshed."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.signers, self.client.subscription, consumer, shard, position)

    def has_room(self) -> bool:
        return self.intake is not None and self.intake.wait(0.0, lambda: False)

    async def room(self) -> None:
        while not self.has_room():  # noqa: ASYNC110 - the intake wakes threads, not this loop
            await asyncio.sleep(_ROOM_SECONDS)

    def put(self, fetched: SubscribedRecords, size: int) -> None:
        if self.intake is not None:
            self.intake.put(fetched, size, len(fetched.records))

    def note(self, note: Note) -> None:
        self._context.note(message_to_json(note))
        self._context.changed()

    def responded(self) -> None:
        self.error = None

    def failed(self, error: ConnectorError) -> None:
        """Report that a subscription could not be opened; a retry may help, or not."""
        self.error = error
        self._context.note(message_to_json(NotSubscribed(error)))


class ShardSubscription:
    """Follows one shard for a fetcher."""

    def __init__(self, order: Order, host: SubscriptionHost) -> None:
        self.order = order
        self.position = order.position
        """Everything up to here was put."""
        self.ended = False
        self.is_live = False
        self._host = host
        self._where = f"{order.consumer}, {order.key[1]}"
        self._resume = order.position
        self._opened = 0.0
        self._served = False
        self._keys = 0
        self._renewed = False
        self._up_to_date_reported = False
        self._backoff = Backoff()
        self._last_event = 0.0

    def go_back(self, position: Position) -> None:
        """Fetch again what was put after a position, as it was not stored."""
        self.position = self._resume = position
        self.ended = False

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Follow the shard to its end, or until this is cancelled."""
        try:
            while not self.ended:
                await self._host.room()
                try:
                    await self._read_one()
                except ConnectorError as error:
                    await sleep(self._after_failure(error))
                else:
                    await sleep(0.0 if self._served else self._backoff.next_delay_seconds())
        finally:
            self._set_live(live=False)

    def _after_failure(self, error: ConnectorError) -> float:
        delay = self._backoff.next_delay_seconds(error)
        _log.debug("a subscription ended: %s", error)
        if error.code == CREDENTIALS and not self._renewed and self._host.client.renew(self._keys):
            self._renewed = True
            return delay
        if error.code == INVALID_ARGUMENT:
            if self._resume != self.position:
                self._resume = self.position  # a continuation is no record's number, and not valid for ever
                return delay
            self._host.note(Refused(self.order.key))
        elif error.code == NOT_FOUND:
            self._host.note(Gone(self.order.key))
        elif error.code == IN_USE and not self._served:
            delay += max(0.0, self._opened + _TAKEOVER_SECONDS - time.monotonic())
        if not self._served:
            self._host.failed(error)
        if self._backoff.failures >= _FAILURES:
            self._set_live(live=False)
        return delay

    async def _read_one(self) -> None:
        """Read one subscription to its end; raises when it cannot be opened, failed, was cut, or is silent."""
        self._served = self._up_to_date_reported = False
        order, host = self.order, self._host
        signed = await host.sign(order.consumer, order.key[1], self._resume)
        self._keys = signed.keys
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                response = await host.http.post(signed.url, signed.headers, signed.body, signed.certificates)
        except TimeoutError:
            raise self._silent("no connection in time") from None
        async with response:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await response.begin()
                    if response.status != _OK:
                        body = bytearray()
                        while piece := await response.read():
                            body += piece
                        raise body_error(body, response.status, self._where)
            except TimeoutError:
                response.retire_connection()
                raise self._silent("there is no response") from None
            self._opened = time.monotonic()
            await self._read_events(response)

    async def _read_events(self, response: Response) -> None:
        buffer = MessageBuffer()
        at_ms = service_time_ms(response.headers.get("date"))
        self._last_event = time.monotonic()
        while not self.ended:
            if not self._host.has_room():
                # What is not read fills the window, and then the service waits; not for long.
                await self._host.room()
                self._last_event = time.monotonic()
            silent = time.monotonic() - self._last_event
            try:
                async with asyncio.timeout(max(self._host.stall_seconds - silent, 0.0)):
                    data = await response.read()
            except TimeoutError:
                self._set_live(live=False)
                response.retire_connection()
                _log.warning(
                    "[KINESIS_SUBSCRIPTION_SILENT] A subscription sent nothing for %g s. It is opened again (%s, %s).",
                    self._host.stall_seconds,
                    *self.order.key,
                )
                raise self._silent("it sends nothing") from None
            if not data:
                return
            for message in buffer.feed(data):
                self._take(message.headers, message.payload, at_ms)

    def _take(self, headers: Mapping[str, Any], payload: bytes, at_ms: int) -> None:
        self._host.responded()
        if (error := event_error(headers, payload, self._where)) is not None:
            raise error
        if headers.get(":event-type") != "SubscribeToShardEvent" or self.ended:
            return
        event = parse_event(payload, self._where)
        self._last_event = time.monotonic()
        self._put(event, len(payload))
        if not self._served:
            self._served, self._renewed = True, False
            self._backoff.reset()
            self._set_live(live=True)
        if event.ended:
            self.ended = True
            self._host.note(Ended(self.order.key))
        elif not event.records and event.behind_ms == 0 and not self._up_to_date_reported:
            self._up_to_date_reported = True
            self._host.note(UpToDate(self.order.key, self.position, at_ms - _SERVICE_CLOCK_MS))

    def _put(self, event: Event, size: int) -> None:
        records = event.records
        if self.position.kind is PositionKind.AFTER and records and records[0].number <= self.position.number:
            records = [record for record in records if record.number > self.position.number]
        if records:
            self._host.put(SubscribedRecords(self.order, self.position, records, event.ended), size)
            self.position = after(records[-1].number)
            self._resume = self.position
        if event.continuation is not None and (
            self._resume.kind is not PositionKind.AFTER or event.continuation >= self._resume.number
        ):
            self._resume = after(event.continuation)

    def _set_live(self, *, live: bool) -> None:
        if live != self.is_live:
            self.is_live = live
            self._host.note(Live(self.order.key, live))

    def _silent(self, what: str) -> ServiceUnavailableError:
        what = f"A subscription is given up: {what}"
        return ServiceUnavailableError("KINESIS_SUBSCRIPTION_SILENT", what, self._where)
