"""The messages of one subscription: which wait, who holds what until when, and what goes out next.

`connectors.testing.pubsub.model.subscription` says how it fits together; this is the part below acks and seeks.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from connectors.testing.clock import SECOND
from connectors.testing.pubsub.faults.events import EventKind
from connectors.testing.pubsub.faults.plan import Duplication
from connectors.testing.pubsub.model.messages import Consumer, Delivery, Entry, Lease, Machinery, Message
from connectors.testing.pubsub.model.ordering import KeyOrder
from connectors.testing.pubsub.model.rules import ProtoMessage, StatusError

__all__ = ["Queues"]

_RETENTION_PAUSE = SECOND // 10
_DEFAULT_ATTEMPTS = 5


class Queues:
    """See the top; not thread-safe. The arguments are those of `Subscription`."""

    def __init__(self, config: ProtoMessage, machinery: Machinery, wake: Callable[[], None]) -> None:
        self.config = config
        self.name: str = config.name
        self.wake = wake
        self.streams: dict[str, Consumer] = {}
        """The open streams by id."""
        self.gone: StatusError | None = None
        """Why nothing can be had from it any more: it was deleted or detached."""
        self._machinery = machinery
        self._events = machinery.events
        self._faults = machinery.faults
        self._schedule = machinery.schedule
        self._sequences = itertools.count()
        self._backlog: dict[int, Entry] = {}
        self._leases: dict[int, Lease] = {}
        self._late: dict[int, Entry] = {}
        self._fresh: deque[Entry] = deque()
        self._again: deque[Entry] = deque()
        self._forced: deque[tuple[Entry, str]] = deque()
        self._order = KeyOrder()
        self._retention_planned = False

    # -- what is there --

    def backlog(self) -> list[Message]:
        """Messages that are not acked, delivered or not, in the order of publishing; those brought back come last."""
        return [entry.message for entry in self._backlog.values()]

    def backlog_size(self) -> int:
        """How many messages are not acked."""
        return len(self._backlog)

    def outstanding(self) -> list[Message]:
        """Messages that a consumer holds now; one that was handed out twice stands there twice."""
        return [lease.entry.message for lease in self._leases.values()]

    def outstanding_size(self) -> int:
        """How many deliveries are under way."""
        return len(self._leases)

    def message_ids(self, numbers: Iterable[int]) -> list[str]:
        """The messages of deliveries, "" for those that are over."""
        leases = (self._leases.get(number) for number in numbers)
        return [lease.entry.message.id if lease else "" for lease in leases]

    # -- messages in and out --

    def _add(self, now: int, messages: Iterable[Message]) -> None:
        for message in messages:
            entry = Entry(message, next(self._sequences))
            self._backlog[entry.sequence] = entry
            if self._is_ordered(message):
                self._order.add(entry)
            else:
                self._fresh.append(entry)
        self._plan_retention(now)
        self.wake()

    def _is_ordered(self, message: Message) -> bool:
        return bool(message.ordering_key and self.config.enable_message_ordering)

    def take(self, now: int, consumer: Consumer, max_messages: int, max_bytes: int) -> Delivery:
        """Lease the next messages to a consumer: as many as there are, its flow control allows and the limits say.

        Messages that come again go before fresh ones. A message larger than ``max_bytes`` goes out alone.
        """
        delivery = Delivery(consumer, max_messages, max_bytes, self._faults.ignore_flow_control)
        if self.gone or self._faults.is_paused(self.name):
            return delivery
        if self._forced:
            self._take_forced(now, delivery)
        self._take_queued(self._again, now, delivery)
        self._take_queued(self._fresh, now, delivery)
        self._take_in_order(now, delivery)
        if delivery.messages:
            numbers = range(delivery.first_number, delivery.first_number + len(delivery.messages))
            self._schedule.at(now + consumer.deadline_ns, partial(self._expire, numbers))
            ids = [message.id for message in delivery.messages]
            self._events.record(EventKind.DELIVER, now, ids, subscription=self.name, stream=consumer.id)
        return delivery

    def _take_queued(self, queue: deque[Entry], now: int, delivery: Delivery) -> None:
        doubling = self._faults.duplication(self.name)
        oldest_kept = now - self._retention_ns()
        while queue:
            entry = queue[0]
            # Not wanted any more: acked late or dropped, under way by another route, or past its retention.
            if entry.live and not entry.numbers and entry.message.published_ns > oldest_kept:
                if not delivery.fits(entry.message):
                    return
                self._lease(now, entry, delivery)
                if doubling and self._faults.is_doubled(doubling, entry.sequence, entry.deliveries):
                    self._double(now, entry, delivery, doubling)
            queue.popleft()

    def _take_in_order(self, now: int, delivery: Delivery) -> None:
        doubling = self._faults.duplication(self.name)
        for entry in self._order.next_for(delivery.consumer):
            if not delivery.fits(entry.message):
                return
            self._order.went_out(entry, delivery.consumer)
            self._lease(now, entry, delivery)
            if doubling and self._faults.is_doubled(doubling, entry.sequence, entry.deliveries):
                self._double(now, entry, delivery, doubling)

    def _take_forced(self, now: int, delivery: Delivery) -> None:
        oldest_kept = now - self._retention_ns()
        waiting: deque[tuple[Entry, str]] = deque()
        for entry, avoided in self._forced:
            is_for_others = avoided == delivery.consumer.id and len(self.streams.keys() - {avoided}) > 0
            if is_for_others or not delivery.fits(entry.message):
                waiting.append((entry, avoided))
            elif entry.message.published_ns > oldest_kept:
                self._lease(now, entry, delivery)
        self._forced = waiting

    def _double(self, now: int, entry: Entry, delivery: Delivery, rule: Duplication) -> None:
        if rule.to_other_stream:
            self._forced.append((entry, delivery.consumer.id))
            self.wake()
        elif delivery.fits(entry.message):
            self._lease(now, entry, delivery)

    def _lease(self, now: int, entry: Entry, delivery: Delivery) -> None:
        number = next(self._machinery.delivery_numbers)
        consumer = delivery.consumer
        if not delivery.messages:
            delivery.first_number = number
        delivery.messages.append(entry.message)
        delivery.size += entry.message.size
        self._leases[number] = Lease(entry, consumer, now + consumer.deadline_ns)
        if entry.late_numbers:
            self._forget_late(entry)
        if not entry.live:
            entry.live = True
            self._backlog[entry.sequence] = entry
        entry.numbers += (number,)
        entry.deliveries += 1
        if self.config.HasField("dead_letter_policy"):
            delivery.attempts.append(entry.deliveries)
        entry.holder = consumer.id

    def _expire(self, numbers: Iterable[int], now: int) -> None:
        ids: list[str] = []
        for number in numbers:
            lease = self._leases.get(number)
            if lease is not None and lease.deadline <= now:
                ids.append(lease.entry.message.id)
                self._give_up(now, number, lease)
                if lease.entry.live:
                    lease.entry.late_numbers += (number,)
                    self._late[number] = lease.entry
        self._events.record(EventKind.EXPIRE, now, ids, subscription=self.name)
        if ids:
            self.wake()

    def _give_up(self, now: int, number: int, lease: Lease) -> None:
        del self._leases[number]
        lease.release()
        entry = lease.entry
        entry.numbers = tuple(other for other in entry.numbers if other != number)
        if entry.numbers or not entry.live:
            return
        policy = self.config.dead_letter_policy
        attempts = policy.max_delivery_attempts or _DEFAULT_ATTEMPTS
        if policy.dead_letter_topic and entry.deliveries >= attempts and self._machinery.forward(now, entry, self.name):
            self._drop(entry)
            self._events.record(EventKind.DEAD_LETTER, now, [entry.message.id], subscription=self.name)
            return
        later = self._order.comes_again(entry) if self._is_ordered(entry.message) else None
        if later is None:
            self._again.append(entry)
        for each in later or ():
            self._comes_again(each)

    def _comes_again(self, entry: Entry) -> None:
        """It stands behind one of its key that comes again: who holds it loses it, and an ack counts no more."""
        for number in entry.numbers:
            self._leases.pop(number).release()
        entry.numbers = ()
        if not entry.live:
            entry.live = True
            self._backlog[entry.sequence] = entry

    def _drop(self, entry: Entry) -> None:
        for number in entry.numbers:
            self._leases.pop(number).release()
        entry.numbers = ()
        self._forget_late(entry)
        entry.live = False
        self._backlog.pop(entry.sequence, None)
        if self._is_ordered(entry.message):
            self._order.settled(entry)

    def _forget_late(self, entry: Entry) -> None:
        for number in entry.late_numbers:
            self._late.pop(number, None)
        entry.late_numbers = ()

    # -- retention --

    def check_retention(self, now: int) -> None:
        """Drop what is past its retention, and plan when to look again; to be called when the retention was changed.

        One that was brought back stands behind younger ones and is dropped with them; it is not handed out meanwhile.
        """
        oldest_kept = now - self._retention_ns()
        in_order = self._backlog.values()
        is_over = list(itertools.takewhile(lambda entry: entry.message.published_ns <= oldest_kept, in_order))
        for entry in is_over:
            self._drop(entry)
        dropped = [entry.message.id for entry in is_over]
        self._events.record(EventKind.DROP, now, dropped, subscription=self.name)
        self._retention_planned = False
        self._plan_retention(now)
        if is_over:
            self.wake()

    def _plan_retention(self, now: int) -> None:
        # The oldest entry tells when there can be something to drop: no need to plan for each message. The pause
        # keeps a stream of single messages from being dropped one by one, with a search for the oldest each time.
        if self._backlog and not self._retention_planned:
            self._retention_planned = True
            oldest = next(iter(self._backlog.values())).message.published_ns
            self._schedule.at(max(now + _RETENTION_PAUSE, oldest + self._retention_ns()), self.check_retention)

    def _retention_ns(self) -> int:
        duration = self.config.message_retention_duration
        return int(duration.seconds) * SECOND + int(duration.nanos)
