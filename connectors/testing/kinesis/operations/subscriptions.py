"""SubscribeToShard: a stream of events that are pushed as records arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from connectors.testing.clock import SECOND
from connectors.testing.kinesis.eventstream import CONTENT_TYPE, INITIAL_RESPONSE, event_message, exception_message
from connectors.testing.kinesis.exchange import Exchange
from connectors.testing.kinesis.model.rules import Arguments, ServiceError, not_valid
from connectors.testing.kinesis.model.state import KinesisState
from connectors.testing.kinesis.model.streams import Consumer, Shard, Stream
from connectors.testing.kinesis.operations.consumers import find_consumer
from connectors.testing.kinesis.operations.records import fitting_count, position_of
from connectors.testing.kinesis.operations.shards import find_shard

__all__ = ["Subscription", "SubscriptionOperations"]

_EVENT_RECORDS = 10_000
_EVENT_BYTES = 1 << 20
_BYTES_A_SECOND = 2 << 20
_MILLISECOND = 1_000_000
_MOST_UNSENT_BYTES = 4 << 20
_STALL_CHECK_NS = 50 * _MILLISECOND
_LONGEST_STALL_NS = 30 * SECOND


class Subscription:
    """One SubscribeToShard that is under way."""

    def __init__(
        self, state: KinesisState, stream: Stream, consumer: Consumer, shard: Shard, after: int, now: int
    ) -> None:
        self._state = state
        self._stream = stream
        self.consumer = consumer
        self.shard = shard
        self._after = after
        self.opened_ns = now
        self.events = 0
        """How many were sent."""
        self._next_push: int | None = None
        self._stalled_ns: int | None = None
        self._open = True
        self._exchange: Exchange

    def begin(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        """Take the place of an older subscription, and send the first event; the next ones come as records do."""
        older = self.consumer.subscriptions.get(self.shard.id)
        if older is not None:
            older.fail("ResourceInUseException", "Another active subscription exists for this consumer.")
        self.consumer.subscriptions[self.shard.id] = self
        self._exchange = exchange
        exchange.when_closed = self._close
        exchange.begin(200, {**headers, "content-type": CONTENT_TYPE})
        exchange.send(INITIAL_RESPONSE)
        self.shard.watchers.add(self._record_arrived)
        life = self._state.faults.subscription_life_ns
        self._state.schedule.at(self.opened_ns + life, lambda _now: self._finish())
        self._plan(self.opened_ns)

    def fail(self, kind: str, message: str) -> None:
        """End it with an error inside of the stream."""
        if self._open:
            self._exchange.send(exception_message(kind, message))
            self._finish()

    def cut(self) -> None:
        """Cut its connection."""
        if self._open:
            self._close()
            self._exchange.cut()

    def _record_arrived(self, now: int) -> None:
        self._plan(now + self._state.faults.push_delay_ns)

    def _plan(self, due: int) -> None:
        if self._next_push is None or due < self._next_push:
            self._next_push = due
            self._state.schedule.at(due, partial(self._push_if_planned, due))

    def _push_if_planned(self, due: int, now: int) -> None:
        if self._open and self._next_push == due:
            self._next_push = None
            self._push(now)

    def _push(self, now: int) -> None:
        faults = self._state.faults
        if faults.silent_subscriptions:
            self._plan(now + faults.heartbeat_ns)
            return
        if self._is_stalled(now):
            return
        self._stream.trim(now)
        start = self.shard.place_after(self._after)
        count, size = fitting_count(self.shard.records, start, _EVENT_RECORDS, _EVENT_BYTES)
        end = start + count
        if count:
            self._after = self.shard.sequences[end - 1]
        self.events += 1
        at_end = self.shard.closed_ns is not None and end == len(self.shard.records)
        self._exchange.send(event_message("SubscribeToShardEvent", self._event(start, end, now, at_end=at_end)))
        if at_end:
            self._finish()
        elif end < len(self.shard.records):
            self._plan(now + (size * SECOND // _BYTES_A_SECOND if faults.limits else 0))
        else:
            self._plan(now + faults.heartbeat_ns)

    def _event(self, start: int, end: int, now: int, *, at_end: bool) -> bytes:
        records = self.shard.records
        behind = max(_MILLISECOND, now - records[end].arrival_ns) if end < len(records) else 0
        rest: dict[str, Any] = {"MillisBehindLatest": behind // _MILLISECOND}
        if at_end:
            rest["ChildShards"] = self.shard.described_children()
        else:
            progress = self._after if end < len(records) else max(self._after, self.shard.progress(now))
            rest["ContinuationSequenceNumber"] = str(max(progress, self.shard.starting))
        encoded = b",".join(record.encoded for record in records[start:end])
        return b'{"Records":[%s],%s' % (encoded, json.dumps(rest).encode()[1:])

    def _is_stalled(self, now: int) -> bool:
        """True if the client does not read; after a while that ends the subscription."""
        if self._exchange.unsent_bytes() < _MOST_UNSENT_BYTES:
            self._stalled_ns = None
            return False
        if self._stalled_ns is None:
            self._stalled_ns = now
        if now - self._stalled_ns > _LONGEST_STALL_NS:
            self.cut()
        else:
            self._plan(now + _STALL_CHECK_NS)
        return True

    def _finish(self) -> None:
        if self._open:
            self._close()
            self._exchange.finish()

    def _close(self) -> None:
        self._open = False
        self.shard.watchers.discard(self._record_arrived)
        if self.consumer.subscriptions.get(self.shard.id) is self:
            del self.consumer.subscriptions[self.shard.id]


class SubscriptionOperations:
    """SubscribeToShard."""

    def __init__(self, state: KinesisState) -> None:
        self._state = state

    def subscribe_to_shard(self, arguments: Arguments, now: int) -> Subscription:
        """A subscription that is to be begun; raises `ServiceError` when it is refused."""
        stream = self._state.stream(arguments, now)
        consumer = find_consumer(stream, arguments)
        if consumer.status != "ACTIVE":
            message = f"Consumer {consumer.arn} is not in ACTIVE status: it is {consumer.status}."
            raise ServiceError("ResourceInUseException", message)
        shard = find_shard(stream, arguments.name("ShardId"))
        start = arguments.optional_object("StartingPosition")
        if start is None:
            raise not_valid(None, "startingPosition", "must not be null")
        faults = self._state.faults
        after, _ = position_of(shard, start, "SequenceNumber", now, refuse_trimmed=faults.refuse_trimmed)
        last = consumer.subscribed_ns.get(shard.id)
        if last is not None and now - last < faults.takeover_ns:
            message = f"Another active subscription exists for this consumer: {consumer.arn}"
            raise ServiceError("ResourceInUseException", message)
        consumer.subscribed_ns[shard.id] = now
        return Subscription(self._state, stream, consumer, shard, after, now)
