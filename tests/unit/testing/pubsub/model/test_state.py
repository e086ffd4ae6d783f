"""The Pub/Sub server loses nothing and miscounts nothing, whatever is done to it and in whatever order."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from google.pubsub_v1 import types

from connectors.testing.clock import SECOND, Schedule
from connectors.testing.pubsub import PubSubServer
from connectors.testing.pubsub.faults.events import EventLog
from connectors.testing.pubsub.faults.plan import AckLoss, Duplication, FaultPlan, RedeliveryRule
from connectors.testing.pubsub.model.messages import Consumer, Machinery
from connectors.testing.pubsub.model.state import PubSubState
from connectors.testing.pubsub.wire import MessageIds
from tests.support.pubsub_calls import PubSubCalls

TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/orders"
DEADLINE = 10 * SECOND
DAY = 86_400 * SECOND


class SubscriptionUnderFaults:
    """One subscription with three consumers, and the steps that random numbers choose from."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_795_000_000 * SECOND
        self.schedule = Schedule()
        self.events = EventLog(1_000_000)
        self.faults = FaultPlan(seed)
        machinery = Machinery(self.schedule, self.events, self.faults)
        self.state = PubSubState(machinery, MessageIds(random.Random(1), self.now), lambda _: _nothing)
        self.state.create_topic(types.Topic.pb()(name=TOPIC))
        self.state.create_subscription(types.Subscription.pb()(name=SUBSCRIPTION, topic=TOPIC))
        self.subscription = self.state.subscription(SUBSCRIPTION)
        self.consumers = [
            Consumer("free", DEADLINE),
            Consumer("few messages", DEADLINE, max_messages=3),
            Consumer("few bytes", DEADLINE, max_bytes=100),
        ]
        self.subscription.streams = {consumer.id: consumer for consumer in self.consumers}
        self.published: set[str] = set()
        self.numbers: list[int] = []

    def step(self) -> None:
        """Do one thing, then check what must always hold."""
        steps = [
            *[self.publish] * 2,
            *[self.take] * 5,
            *[self.acknowledge] * 3,
            *[self.modify_deadline] * 3,
            *[self.pass_time] * 3,
            self.expire,
            self.bring_back,
            self.change_duplication,
            self.change_faults,
        ]
        self.random.choice(steps)()
        self.check()

    def publish(self) -> None:
        request = types.PublishRequest.pb()(topic=TOPIC, messages=[{"data": b"x"}] * self.random.randint(1, 4))
        self.published |= set(self.state.publish(self.now, request))

    def take(self) -> None:
        count = self.random.randint(1, 8)
        held_before = {message.id for message in self.subscription.outstanding()}
        twice_on_purpose = self.subscription._forced or self.faults.duplications
        delivery = self.subscription.take(self.now, self.random.choice(self.consumers), count, 300)
        assert len(delivery.messages) <= count
        if not twice_on_purpose:
            ids = [message.id for message in delivery.messages]
            assert len(set(ids)) == len(ids)
            assert not held_before & set(ids)
        self.numbers += range(delivery.first_number, delivery.first_number + len(delivery.messages))

    def acknowledge(self) -> None:
        self.subscription.acknowledge(self.now, self.some_numbers())

    def modify_deadline(self) -> None:
        self.subscription.modify_deadline(self.now, self.some_numbers(), self.random.choice([0, 5, 20]))

    def some_numbers(self) -> list[int]:
        """Some deliveries, mostly of the newest ones; one may come twice."""
        return self.random.choices(self.numbers[-20:], k=self.random.randint(1, 6)) if self.numbers else []

    def pass_time(self) -> None:
        self.now += self.random.choice([1, 4, 11]) * SECOND
        leases = dict(self.subscription._leases)
        self.schedule.run_due(self.now)
        for number, lease in leases.items():
            if lease.deadline <= self.now:
                assert number not in self.subscription._leases
            else:
                # Only an ack that took effect late ends it before its time.
                assert number in self.subscription._leases or not lease.entry.live

    def expire(self) -> None:
        self.subscription.expire_now(self.now)

    def bring_back(self) -> None:
        acked = [entry for entry in self.subscription.acked if not entry.live]
        if acked:
            self.subscription.bring_back(self.random.choice(acked), self.random.random() < 0.5, self.now)

    def change_duplication(self) -> None:
        self.faults.duplications.clear()
        if fraction := self.random.choice([0.0, 0.0, 0.3, 1.0]):
            self.faults.duplications[""] = Duplication(fraction, self.random.random() < 0.5)

    def change_faults(self) -> None:
        fraction, delay = self.random.choice([0.0, 0.4]), self.random.choice([0, 3])
        self.faults.redeliveries[""] = RedeliveryRule(fraction, delay * SECOND, True, 2, None)
        self.faults.ack_losses[""] = AckLoss(None, fraction)
        self.faults.ack_delays[""] = delay * SECOND
        self.faults.honour_late_acks = self.random.random() < 0.5

    def acked(self) -> set[str]:
        return {event.message_id for event in self.events.select(kinds={"ack"})}

    def check(self) -> None:
        outstanding = self.subscription.outstanding()
        assert sum(consumer.held_messages for consumer in self.consumers) == len(outstanding)
        assert sum(consumer.held_bytes for consumer in self.consumers) == sum(each.size for each in outstanding)
        assert self.consumers[1].held_messages <= 3
        backlog = [message.id for message in self.subscription.backlog()]
        assert len(set(backlog)) == len(backlog)
        assert self.published - self.acked() <= set(backlog) <= self.published
        assert {message.id for message in outstanding} <= set(backlog)
        assert len(self.subscription._late) == sum(
            len(entry.late_numbers) for entry in self.subscription._backlog.values()
        )

    def drain(self) -> None:
        """Once the faults end, a consumer without limits gets and acks everything, and nothing is left."""
        self.faults.clear()
        self.subscription.streams = {}
        self.now += DAY
        self.schedule.run_due(self.now)
        last = Consumer("last", DEADLINE)
        while (delivery := self.subscription.take(self.now, last, 100, 100_000)).messages:
            numbers = range(delivery.first_number, delivery.first_number + len(delivery.messages))
            self.subscription.acknowledge(self.now, numbers)
        assert self.subscription.backlog() == []
        assert self.acked() == self.published
        assert not self.subscription._leases
        assert not self.subscription._late
        for consumer in [*self.consumers, last]:
            assert (consumer.held_messages, consumer.held_bytes) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_or_miscounted_whatever_is_done(seed: int) -> None:
    subscription = SubscriptionUnderFaults(seed)
    for _ in range(800):
        subscription.step()
    subscription.drain()
    counters = subscription.events.counters()
    for kind in ("ack", "ack-lost", "ack-stale", "nack", "modack", "expire", "redeliver"):
        assert counters[kind] > 0, kind


def _nothing() -> None:
    pass


def test_every_message_arrives_under_all_faults_at_once() -> None:
    received: Counter[str] = Counter()
    lock = threading.Lock()
    with PubSubServer(seed=11, speed=20) as server:
        server.create_subscription(SUBSCRIPTION, TOPIC)
        server.lose_acks(fraction=0.2)
        server.duplicate(0.1, "other_stream")
        server.redeliver_acked(0.2, delay=5, to_other_stream=True)
        server.close_streams_every(5)
        server.ignore_flow_control()
        done = threading.Event()

        def consume() -> None:
            with PubSubCalls(server.endpoint) as calls:
                while not done.is_set():
                    with calls.stream(SUBSCRIPTION, deadline=10) as stream:
                        seen = 0
                        while stream.status is None and not done.wait(0.01):
                            messages = stream.messages[seen:]
                            seen += len(messages)
                            if messages:
                                stream.ack(messages)
                            with lock:
                                received.update(each.message.message_id for each in messages)

        consumers = [threading.Thread(target=consume) for _ in range(3)]
        for consumer in consumers:
            consumer.start()
        ids: list[str] = []
        for _ in range(20):
            ids += server.publish(TOPIC, [b"x"] * 100)
        server.wait_for_backlog(SUBSCRIPTION, timeout=120)
        done.set()
        for consumer in consumers:
            consumer.join()
        counters = server.counters()
    assert set(received) == set(ids)
    for kind in ("ack-lost", "redeliver", "expire", "stream-close"):
        assert counters[kind] > 0, kind
