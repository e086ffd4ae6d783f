"""One subscription: its backlog, who holds what until when, and what goes out next.

A pure state machine: time comes as an argument, no thread, no I/O. `pubsub_runtime` holds the lock around it.

The life of a message here::

    publish --> fresh --> leased --ack--> acked (kept a while, for `bring_back`)
                             |  ^
                  deadline,  |  |
                      nack   v  |
                            again                 retention over: dropped, wherever it stands

Later stages find their places: ordering, filters and dead letters are decisions of `publish`, `_place` and `_give_up`;
exactly-once delivery decides which deliveries `acknowledge` accepts; seek brings acked messages back.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from connectors.testing.pubsub_events import EventKind
from connectors.testing.pubsub_faults import Duplication
from connectors.testing.pubsub_model import SECOND, AckedMessages, Consumer, Delivery, Entry, Lease, Machinery, Message
from connectors.testing.pubsub_rules import DELETED_TOPIC, ProtoMessage, StatusError

__all__ = ["Subscription"]

_RETENTION_PAUSE = SECOND // 10


class Subscription:
    """The state of one subscription; not thread-safe.

    Args:
        config: the ``Subscription`` message, complete and checked; this object owns it.
        machinery: what it shares with the others.
        wake: called when there may be something new for a consumer that waits.
    """

    def __init__(self, config: ProtoMessage, machinery: Machinery, wake: Callable[[], None]) -> None:
        self.config = config
        self.name: str = config.name
        self.wake = wake
        self.streams: dict[str, Consumer] = {}
        """The open streams by id."""
        self.gone: StatusError | None = None
        """Why nothing can be had from it any more: it was deleted or detached."""
        self.acked = AckedMessages(machinery.keep_acked_messages, machinery.keep_acked_bytes)
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

    def publish(self, now: int, messages: Iterable[Message]) -> None:
        """Add messages to the backlog."""
        for message in messages:
            entry = Entry(message, next(self._sequences))
            self._backlog[entry.sequence] = entry
            self._fresh.append(entry)
        self._plan_retention(now)
        self.wake()

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
        entry.holder = consumer.id

    # -- what consumers say --

    def acknowledge(self, now: int, numbers: Sequence[int], stream: str = "") -> None:
        """Take acks of deliveries; one for a delivery that is over changes nothing, or little (`late_acks`)."""
        delay = self._faults.ack_delay_ns(self.name)
        if not delay:
            self._acknowledge(numbers, stream, now)
            return
        ids = self.message_ids(numbers)
        self._events.record(EventKind.ACK_DEFERRED, now, ids, subscription=self.name, stream=stream)
        self._schedule.at(now + delay, partial(self._acknowledge, numbers, stream))

    def _acknowledge(self, numbers: Sequence[int], stream: str, now: int) -> None:
        acked: list[str] = []
        lost: list[str] = []
        stale = 0
        is_lost = self._faults.loss_of_acks(self.name)
        for number in numbers:
            lease = self._leases.get(number)
            entry = lease.entry if lease else self._late_entry(number)
            if entry is None:
                stale += 1
            elif is_lost is not None and is_lost(entry.sequence, entry.deliveries):
                lost.append(entry.message.id)
            else:
                acked.append(entry.message.id)
                self._finish(now, entry)
        self._events.record(EventKind.ACK, now, acked, subscription=self.name, stream=stream)
        self._events.record(EventKind.ACK_LOST, now, lost, subscription=self.name, stream=stream)
        self._events.record(EventKind.ACK_STALE, now, [""] * stale, subscription=self.name, stream=stream)
        self.wake()

    def _late_entry(self, number: int) -> Entry | None:
        return self._late.get(number) if self._faults.honour_late_acks else None

    def _finish(self, now: int, entry: Entry) -> None:
        self._drop(entry)
        self.acked.add(entry)
        rule = self._faults.redelivery(self.name)
        if rule and self._faults.returns(rule, entry.message.id, entry.sequence, entry.returned):
            action = partial(self.bring_back, entry, rule.to_other_stream)
            self._schedule.at(now + rule.delay_ns, action)

    def modify_deadline(self, now: int, numbers: Sequence[int], seconds: int, stream: str = "") -> None:
        """Move the deadlines of deliveries to ``seconds`` from now; 0 gives the messages back at once."""
        ids: list[str] = []
        due = now + seconds * SECOND
        for number in numbers:
            lease = self._leases.get(number)
            if lease is None:
                continue
            ids.append(lease.entry.message.id)
            if seconds:
                lease.deadline = due
            else:
                self._give_up(number, lease)
        if seconds and ids:
            self._schedule.at(due, partial(self._expire, numbers))
        kind = EventKind.MODACK if seconds else EventKind.NACK
        stale = [""] * (len(numbers) - len(ids))
        self._events.record(kind, now, ids, subscription=self.name, stream=stream, detail=str(seconds))
        self._events.record(
            EventKind.MODACK_STALE, now, stale, subscription=self.name, stream=stream, detail=str(seconds)
        )
        if not seconds:
            self.wake()

    # -- what time and faults do --

    def expire_now(self, now: int) -> int:
        """Let every delivery that is under way expire before its deadline; gives how many there were."""
        numbers = list(self._leases)
        for lease in self._leases.values():
            lease.deadline = now
        self._expire(numbers, now)
        return len(numbers)

    def bring_back(self, entry: Entry, to_other_stream: bool, now: int) -> None:  # noqa: FBT001 - bound by partial
        """Hand out an entry once more, also when it is acked: then it is to be acked again."""
        if self.gone:
            return
        entry.returned += 1
        self._forced.append((entry, entry.holder if to_other_stream else ""))
        self._events.record(EventKind.REDELIVER, now, [entry.message.id], subscription=self.name)
        self.wake()

    def close(self, now: int, reason: StatusError) -> None:
        """Drop everything: the subscription was deleted or detached, and its consumers get ``reason``."""
        self.gone = reason
        dropped = list(self._backlog.values())
        for entry in dropped:
            self._drop(entry)
        ids = [entry.message.id for entry in dropped]
        self._events.record(EventKind.DROP, now, ids, subscription=self.name)
        self.wake()

    def lose_topic(self) -> None:
        """The topic was deleted; what is in the backlog stays."""
        self.config.topic = DELETED_TOPIC
        self.config.ClearField("topic_message_retention_duration")

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

    def _expire(self, numbers: Iterable[int], now: int) -> None:
        ids: list[str] = []
        for number in numbers:
            lease = self._leases.get(number)
            if lease is not None and lease.deadline <= now:
                ids.append(lease.entry.message.id)
                self._give_up(number, lease)
                lease.entry.late_numbers += (number,)
                self._late[number] = lease.entry
        self._events.record(EventKind.EXPIRE, now, ids, subscription=self.name)
        if ids:
            self.wake()

    def _give_up(self, number: int, lease: Lease) -> None:
        del self._leases[number]
        lease.release()
        entry = lease.entry
        entry.numbers = tuple(other for other in entry.numbers if other != number)
        if not entry.numbers:
            self._again.append(entry)

    def _drop(self, entry: Entry) -> None:
        for number in entry.numbers:
            self._leases.pop(number).release()
        entry.numbers = ()
        self._forget_late(entry)
        entry.live = False
        self._backlog.pop(entry.sequence, None)

    def _forget_late(self, entry: Entry) -> None:
        for number in entry.late_numbers:
            self._late.pop(number, None)
        entry.late_numbers = ()
