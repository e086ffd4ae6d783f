"""The lock, the clock and the one thread that drive the state of the Pub/Sub server."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from connectors.testing.clock import Schedule, ServerClock
from connectors.testing.pubsub.faults.events import EventLog
from connectors.testing.pubsub.faults.plan import FaultPlan
from connectors.testing.pubsub.model.messages import Consumer, Machinery
from connectors.testing.pubsub.model.rules import StatusError
from connectors.testing.pubsub.model.state import PubSubState
from connectors.testing.pubsub.model.subscription import Subscription
from connectors.testing.pubsub.wire import MessageIds

__all__ = ["OpenStream", "PubSubRuntime"]


class OpenStream(Consumer):
    """A StreamingPull that is under way."""

    __slots__ = ("closed", "status", "subscription")

    def __init__(
        self,
        stream_id: str,
        subscription: Subscription,
        deadline_ns: int,
        flow_control: tuple[int, int],
        client_id: str,
    ) -> None:
        super().__init__(stream_id, deadline_ns, *flow_control, client_id=client_id)
        self.subscription = subscription
        self.closed = threading.Event()
        self.status: StatusError | None = None
        """What the server ends it with; None when the client ended it."""


class PubSubRuntime:
    """The state, guarded by one lock; all changes go through `transaction`.

    Args:
        clock: server time.
        seed: for the ids of messages and the fractions of faults.
        event_limit: see `EventLog`.
        keep_acked_messages: how many acked messages a subscription keeps for `redeliver`.
    """

    def __init__(self, clock: ServerClock, seed: int, event_limit: int, keep_acked_messages: int) -> None:
        self.clock = clock
        self.faults = FaultPlan(seed)
        self.events = EventLog(event_limit)
        self.stopping = threading.Event()
        self._schedule = Schedule()
        self._lock = threading.RLock()
        self._plan_changed = threading.Condition(self._lock)
        self._waiting_until: int | None = None
        self._timer_waits = False
        self._conditions: dict[str, threading.Condition] = {}
        self._consumer_count = 0
        machinery = Machinery(self._schedule, self.events, self.faults, keep_acked_messages)
        message_ids = MessageIds(random.Random(seed), time.time_ns())  # noqa: S311 - no secret
        self.state = PubSubState(machinery, message_ids, self._make_wake)
        self._timer: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that does what is due."""
        self.stopping.clear()
        self._timer = threading.Thread(target=self._run_timer, name="pubsub-server-timer", daemon=True)
        self._timer.start()

    def stop(self) -> None:
        """End the thread and every wait; the state stays."""
        self.stopping.set()
        with self._lock:
            self._plan_changed.notify_all()
            self.wake_all()
        if self._timer is not None:
            self._timer.join()
            self._timer = None

    @contextmanager
    def transaction(self) -> Iterator[int]:
        """Hold the lock; gives the server time (nanoseconds). What is due already was done before."""
        with self._lock:
            now = self.clock.now()
            self._schedule.run_due(now)
            try:
                yield now
            finally:
                self.tell_timer()

    def locked(self, action: Callable[[], None]) -> Callable[[], None]:
        """``action`` as a function that any thread may call."""

        def act() -> None:
            with self._lock:
                action()

        return act

    def tell_timer(self) -> None:
        """Wake the timer if it would sleep too long; to be called with the lock held."""
        due = self._schedule.next_due()
        if self._timer_waits and due is not None and (self._waiting_until is None or due < self._waiting_until):
            self._plan_changed.notify()

    def clock_changed(self) -> None:
        """Wake the timer because the clock was changed; to be called with the lock held."""
        self._plan_changed.notify()

    def at(self, due: int, action: Callable[[int], None]) -> None:
        """Plan an action; to be called within a transaction."""
        self._schedule.at(due, action)

    def wait_for_change(self, subscription: Subscription, timeout: float | None = None) -> None:
        """Within a transaction: release the lock until `Subscription.wake` is called, or ``timeout`` real seconds."""
        self.tell_timer()
        self._condition(subscription.name).wait(timeout)

    def next_consumer_id(self, kind: str) -> str:
        """A new id, ``KIND-N``; to be called within a transaction."""
        self._consumer_count += 1
        return f"{kind}-{self._consumer_count}"

    def wake_all(self) -> None:
        """Wake the consumers of all subscriptions; to be called within a transaction."""
        for condition in self._conditions.values():
            condition.notify_all()

    def _condition(self, name: str) -> threading.Condition:
        condition = self._conditions.get(name)
        if condition is None:
            condition = self._conditions[name] = threading.Condition(self._lock)
        return condition

    def _make_wake(self, name: str) -> Callable[[], None]:
        return self._condition(name).notify_all

    def _run_timer(self) -> None:
        with self._lock:
            while not self.stopping.is_set():
                self._schedule.run_due(self.clock.now())
                self._waiting_until = self._schedule.next_due()
                seconds = None if self._waiting_until is None else self.clock.real_seconds_until(self._waiting_until)
                self._timer_waits = True
                self._plan_changed.wait(seconds)
                self._timer_waits = False
