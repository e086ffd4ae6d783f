"""One shard's subscriptions, one after the other: open, read, renew, go on behind what was read.

The service ends each after five minutes, and any at any time; that is no trouble. One that cannot be opened again, or
that is open and silent, is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, Self

import msgspec

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.core.retry import Backoff, RetryPolicy
from connectors.kinesis.cached_ranges import ShardKey
from connectors.kinesis.client.errors import CREDENTIALS, IN_USE, INVALID_ARGUMENT, NOT_FOUND, service_error
from connectors.kinesis.client.eventstream import Message, MessageBuffer
from connectors.kinesis.client.http2 import Http2Client, Response
from connectors.kinesis.client.responses import Event, Record, parse_event, service_time_ms
from connectors.kinesis.client.session import SignedRequest
from connectors.kinesis.offsets import Kind, Position, after

__all__ = ["Fetched", "Order", "ShardSubscription", "SubscriptionHost"]

_log = logging.getLogger(__name__)
_REOPEN: Final = RetryPolicy(initial_seconds=0.1, cap_seconds=10.0, deadline_seconds=None)
_ANSWER_SECONDS: Final = 20.0
_TAKEOVER_SECONDS: Final = 5.0
"""So soon after the last one the service refuses another subscription to a shard."""
_OK: Final = 200
_FAILURES: Final = 2
"""A subscription that ends and is not opened again at the second try is none any more."""
_CLEAN_SLACK_MS: Final = 1000
"""The service tells its time in whole seconds."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the reader wants: follow a shard.

    Attributes:
        consumer: ARN of the consumer.
        key: the shard.
        created_ms: when its stream was made.
        position: what to begin after.
    """

    consumer: str
    key: ShardKey
    created_ms: int
    position: Position

    def to_json(self) -> dict[str, Any]:
        """The order as a JSON object."""
        return {**asdict(self), "key": list(self.key), "position": str(self.position)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The order that `to_json` wrote."""
        stream, shard = value["key"]
        return cls(value["consumer"], (stream, shard), value["created_ms"], Position.parse(value["position"]))


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records as they came.

    Attributes:
        order: what they were fetched for.
        after: what they came after: all between is here.
        records: at least one.
        ended: the shard ends with them.
    """

    order: Order
    after: Position
    records: list[Record]
    ended: bool


class SubscriptionHost(Protocol):
    """What the fetcher does for a subscription."""

    http: Http2Client
    stall_seconds: float

    def sign(self, consumer: str, shard: str, position: Position) -> Awaitable[SignedRequest]:
        """A signed request."""

    def renew(self, keys: int) -> bool:
        """Have the next request signed with keys read anew; see `KinesisClient.renew`."""

    def has_room(self) -> bool:
        """Whether reading may go on."""

    def room(self) -> Awaitable[None]:
        """Wait until reading may go on."""

    def put(self, fetched: Fetched, size: int) -> None:
        """Take records."""

    def note(self, order: Order, **more: Any) -> None:
        """Tell the reader."""

    def answered(self) -> None:
        """The service has answered."""

    def failed(self, error: ConnectorError) -> None:
        """A subscription could not be opened; a retry may help, or not."""


class ShardSubscription:
    """Follows one shard.

    Args:
        order: what the reader wants.
        host: the fetcher.
    """

    def __init__(self, order: Order, host: SubscriptionHost) -> None:
        self.order = order
        self.position = order.position
        """All up to here was handed on."""
        self.ended = False
        self.is_live = False
        self._host = host
        self._resume = order.position
        self._opened = 0.0
        self._served = False
        self._keys = 0
        self._renewed = False
        self._clean_told = False
        self._backoff = Backoff(_REOPEN)
        self._last_event = 0.0

    def go_back(self, position: Position) -> None:
        """What was handed on after a position was not kept: it is fetched again."""
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
        """Take note of the end of a subscription; how long to wait."""
        delay = self._backoff.next_delay_seconds(error)
        _log.debug("a subscription ended: %s", error)
        if error.code == CREDENTIALS and not self._renewed and self._host.renew(self._keys):
            self._renewed = True
            return delay
        if error.code == INVALID_ARGUMENT:
            if self._resume != self.position:
                self._resume = self.position  # a continuation is no record's number, and not taken for ever
                return delay
            self._host.note(self.order, refused=str(self.position))
        elif error.code == NOT_FOUND:
            self._host.note(self.order, gone=True)
        elif error.code == IN_USE and not self._served:
            delay += max(0.0, self._opened + _TAKEOVER_SECONDS - time.monotonic())
        if not self._served:
            self._host.failed(error)
        if self._backoff.failures >= _FAILURES:
            self._set_live(live=False)
        return delay

    async def _read_one(self) -> None:
        """Read one subscription to its end.

        Raises:
            ConnectorError: it cannot be opened, failed, was cut, or is silent.
        """
        self._served = self._clean_told = False
        order, host = self.order, self._host
        signed = await host.sign(order.consumer, order.key[1], self._resume)
        self._keys = signed.keys
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await host.http.post(signed.url, signed.headers, signed.body, signed.certificates)
        except TimeoutError:
            raise _silent("no connection in time", order) from None
        async with answer:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await answer.begin()
                    if answer.status != _OK:
                        raise await _refusal(answer, order)
            except TimeoutError:
                answer.retire_connection()
                raise _silent("it is not answered", order) from None
            self._opened = time.monotonic()
            await self._read_events(answer)

    async def _read_events(self, answer: Response) -> None:
        buffer = MessageBuffer()
        at_ms = service_time_ms(answer.headers.get("date"))
        self._last_event = time.monotonic()
        while not self.ended:
            if not self._host.has_room():
                # What is not read fills the window, and then the service waits; for long it does not.
                await self._host.room()
                self._last_event = time.monotonic()
            silent = time.monotonic() - self._last_event
            try:
                async with asyncio.timeout(max(self._host.stall_seconds - silent, 0.0)):
                    data = await answer.read()
            except TimeoutError:
                self._set_live(live=False)
                answer.retire_connection()
                _log.warning(
                    "[KINESIS_SUBSCRIPTION_SILENT] A subscription sent nothing for %g s; it is opened anew (%s, %s).",
                    self._host.stall_seconds,
                    *self.order.key,
                )
                raise _silent("it sends nothing", self.order) from None
            if not data:
                return
            for message in buffer.feed(data):
                self._take(message, at_ms)

    def _take(self, message: Message, at_ms: int) -> None:
        headers = message.headers
        self._host.answered()
        if headers.get(":message-type") == "exception":
            raise _error_inside(headers.get(":exception-type", ""), message.payload, self.order)
        if headers.get(":message-type") == "error":
            error = {"Error": {"Code": headers.get(":error-code", ""), "Message": headers.get(":error-message", "")}}
            raise service_error("SubscribeToShard", _where(self.order), error)
        if headers.get(":event-type") != "SubscribeToShardEvent" or self.ended:
            return
        event = parse_event(message.payload, _where(self.order))
        self._last_event = time.monotonic()
        self._hand_on(event, len(message.payload))
        if not self._served:
            self._served, self._renewed = True, False
            self._backoff.reset()
            self._set_live(live=True)
        if event.ended:
            self.ended = True
            self._host.note(self.order, ended=True)
        elif not event.records and event.behind_ms == 0 and not self._clean_told:
            self._clean_told = True
            self._host.note(self.order, clean=[str(self.position), at_ms - _CLEAN_SLACK_MS])

    def _hand_on(self, event: Event, size: int) -> None:
        records = event.records
        if self.position.kind is Kind.AFTER and records and records[0].number <= self.position.number:
            records = [each for each in records if each.number > self.position.number]
        if records:
            self._host.put(Fetched(self.order, self.position, records, event.ended), size)
            self.position = after(records[-1].number)
            self._resume = self.position
        if event.continuation is not None and (
            self._resume.kind is not Kind.AFTER or event.continuation >= self._resume.number
        ):
            self._resume = after(event.continuation)

    def _set_live(self, *, live: bool) -> None:
        if live != self.is_live:
            self.is_live = live
            self._host.note(self.order, live=live)


async def _refusal(answer: Response, order: Order) -> ConnectorError:
    """Our error for an answer that is no stream of events."""
    body = bytearray()
    while piece := await answer.read():
        body += piece
    try:
        said = msgspec.json.decode(bytes(body))
    except msgspec.DecodeError:
        said = {}
    named = said if isinstance(said, dict) else {}
    kind = str(named.get("__type", "")).rpartition("#")[2]
    error = {"Code": kind, "Message": str(named.get("message") or named.get("Message") or "")}
    answered = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": answer.status}}
    return service_error("SubscribeToShard", _where(order), answered)


def _error_inside(kind: str, payload: bytes, order: Order) -> ConnectorError:
    """Our error for one that came as an event."""
    try:
        said = msgspec.json.decode(payload)
    except msgspec.DecodeError:
        said = {}
    text = str(said.get("message") or said.get("Message") or "") if isinstance(said, dict) else ""
    answered = {"Error": {"Code": kind, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": 500}}
    return service_error("SubscribeToShard", _where(order), answered)


def _where(order: Order) -> str:
    return f"{order.consumer}, {order.key[1]}"


def _silent(what: str, order: Order) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "KINESIS_SUBSCRIPTION_SILENT",
        f"A subscription is given up: {what}",
        _where(order),
        "It is opened again by itself; if that goes on, check the network and proxies.",
    )
