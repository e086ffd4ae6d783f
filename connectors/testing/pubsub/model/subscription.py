"""One subscription: its backlog, who holds what until when, and what goes out next.

A pure state machine: time comes as an argument, no thread, no I/O. `pubsub_runtime` holds the lock around it.

The life of a message here::

    publish --> fresh --> leased --ack--> acked (kept a while, for `bring_back`)
                             |  ^
                  deadline,  |  |
                      nack   v  |
                            again                 retention over: dropped, wherever it stands

Messages with an ordering key, where the subscription keeps an order, wait in `KeyOrder` instead. A message that does
not match the filter never gets here; one that was handed out often enough goes to the dead-letter topic instead of
coming again; `seek` replaces the whole backlog.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from connectors.testing.clock import SECOND
from connectors.testing.pubsub.faults.events import EventKind
from connectors.testing.pubsub.model.filter import parse_filter
from connectors.testing.pubsub.model.messages import AckedMessages, Entry, Lease, Machinery, Message
from connectors.testing.pubsub.model.ordering import KeyOrder
from connectors.testing.pubsub.model.queues import Queues
from connectors.testing.pubsub.model.rules import DELETED_TOPIC, ProtoMessage, StatusError

__all__ = ["INVALID_ACK_ID", "Subscription"]

_ACK_KINDS = (EventKind.ACK, EventKind.ACK_LOST, EventKind.ACK_STALE, EventKind.ACK_REFUSED)

INVALID_ACK_ID = "PERMANENT_FAILURE_INVALID_ACK_ID"
"""What the service says of the ack id of a delivery that is over."""


class Subscription(Queues):
    """The state of one subscription; not thread-safe.

    Args:
        config: the ``Subscription`` message, complete and checked; this object owns it.
        machinery: what it shares with the others.
        wake: called when there may be something new for a consumer that waits.
    """

    def __init__(self, config: ProtoMessage, machinery: Machinery, wake: Callable[[], None]) -> None:
        super().__init__(config, machinery, wake)
        self.acked = AckedMessages(machinery.keep_acked_messages, machinery.keep_acked_bytes)
        self._wants = parse_filter(config.filter)
        self._archive: deque[Message] = deque()

    # -- messages in --

    def publish(self, now: int, messages: Iterable[Message]) -> None:
        """Add messages to the backlog."""
        wanted = [message for message in messages if self._wants(message.attributes)]
        if self._keeps_acked():
            self._archive.extend(wanted)
            while self._archive and self._archive[0].published_ns <= now - self._retention_ns():
                self._archive.popleft()
        self._add(now, wanted)

    def _keeps_acked(self) -> bool:
        return bool(self.config.retain_acked_messages or self.config.HasField("topic_message_retention_duration"))

    # -- what consumers say --

    def acknowledge(self, now: int, numbers: Sequence[int], stream: str = "") -> dict[int, str]:
        """Take acks of deliveries; one for a delivery that is over changes nothing, or little (`late_acks`).

        Returns:
            With exactly-once delivery, why some of them have no effect; else nothing.
        """
        delay = self._faults.ack_delay_ns(self.name)
        if not delay:
            return self._acknowledge(numbers, stream, now)
        ids = self.message_ids(numbers)
        self._events.record(EventKind.ACK_DEFERRED, now, ids, subscription=self.name, stream=stream)
        self._schedule.at(now + delay, partial(self._acknowledge_late, numbers, stream))
        return {}

    def _acknowledge_late(self, numbers: Sequence[int], stream: str, now: int) -> None:
        self._acknowledge(numbers, stream, now)

    def _acknowledge(self, numbers: Sequence[int], stream: str, now: int) -> dict[int, str]:
        found: dict[EventKind, list[str]] = {kind: [] for kind in _ACK_KINDS}
        failures: dict[int, str] = {}
        is_lost = self._faults.loss_of_acks(self.name)
        exactly_once = self.config.enable_exactly_once_delivery
        for number in numbers:
            lease = self._leases.get(number)
            entry = lease.entry if lease else self._late_entry(number)
            refusal = self._refusal(lease) if exactly_once else ""
            if refusal:
                failures[number] = refusal
                found[EventKind.ACK_REFUSED].append(entry.message.id if entry else "")
            elif entry is None:
                found[EventKind.ACK_STALE].append("")
            elif is_lost is not None and is_lost(entry.sequence, entry.deliveries):
                found[EventKind.ACK_LOST].append(entry.message.id)
            else:
                found[EventKind.ACK].append(entry.message.id)
                self._finish(now, entry)
        for kind, ids in found.items():
            self._events.record(kind, now, ids, subscription=self.name, stream=stream)
        self.wake()
        return failures

    def _refusal(self, lease: Lease | None) -> str:
        """Why an ack has no effect with exactly-once delivery: only the ack id of a delivery under way is valid."""
        if lease is None:
            return INVALID_ACK_ID
        return self._faults.ack_refusal(self.name, lease.entry.sequence, lease.entry.deliveries)

    def _late_entry(self, number: int) -> Entry | None:
        return self._late.get(number) if self._faults.honour_late_acks else None

    def _finish(self, now: int, entry: Entry) -> None:
        self._drop(entry)
        self.acked.add(entry)
        rule = self._faults.redelivery(self.name)
        if rule and self._faults.returns(rule, entry.message.id, entry.sequence, entry.returned):
            action = partial(self.bring_back, entry, rule.to_other_stream)
            self._schedule.at(now + rule.delay_ns, action)

    def modify_deadline(self, now: int, numbers: Sequence[int], seconds: int, stream: str = "") -> dict[int, str]:
        """Move the deadlines of deliveries to ``seconds`` from now; 0 gives the messages back at once.

        Returns:
            As `acknowledge` does.
        """
        ids: list[str] = []
        over = [number for number in numbers if number not in self._leases]
        due = now + seconds * SECOND
        for number in numbers:
            lease = self._leases.get(number)
            if lease is None:
                continue
            ids.append(lease.entry.message.id)
            if seconds:
                lease.deadline = due
            else:
                self._give_up(now, number, lease)
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
        return dict.fromkeys(over, INVALID_ACK_ID) if self.config.enable_exactly_once_delivery else {}

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

    # -- seek, and the end --

    def kept_since(self, now: int, published_ns: int) -> list[Message]:
        """What a seek to a time leaves unacked: what was published since, acked ones only where these are kept."""
        source = self._archive if self._keeps_acked() else self.backlog()
        oldest = max(published_ns, now - self._retention_ns() + 1)
        return [message for message in source if message.published_ns >= oldest]

    def seek(self, now: int, messages: Iterable[Message], detail: str) -> None:
        """Replace the backlog: these messages are unacked now, and every delivery that is under way is over."""
        for entry in list(self._backlog.values()):
            self._drop(entry)
        for queue in (self._fresh, self._again, self._forced):
            queue.clear()
        self._order = KeyOrder()
        self.acked.clear()
        found = [message for message in messages if self._wants(message.attributes)]
        ids = [message.id for message in found]
        self._events.record(EventKind.SEEK, now, ids or [""], subscription=self.name, detail=detail)
        self._add(now, found)

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
