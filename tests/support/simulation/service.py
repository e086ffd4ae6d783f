"""A model of Pub/Sub for simulated fetchers: deliveries, leases, acks that get lost, and copies of what was acked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from connectors.spool.fetching.contract import Block, Intake, TargetStatus
from tests.support.simulation.primitives import Event, Thread, scheduler
from tests.support.simulation.scheduler import Process

ROW_BYTES = 10
_ACK_DEADLINE = 10.0
_FIRST_ID = 16_000_000_000_000_000
_PULL_SECONDS = 0.08
_ROWS_A_DELIVERY = 3
_EXTEND_SECONDS = 3.0


@dataclass(slots=True)
class Message:
    """A message and what the service knows of it: whether it was acked, and who has it until when."""

    id: str
    key: str
    published: int
    acked: bool = False
    holder: object = None
    until: float = 0.0


@dataclass
class Service:
    """A subscription.

    With `ordered`, the messages of a key are delivered in order, and from one that comes again on all later ones do.

    Attributes:
        lost_acks: how often an ack is lost on the way, as a probability.
        copies: how often an acked message is delivered again, for each pull.
    """

    note: Callable[..., None]
    ordered: bool = False
    keys: int = 3
    lost_acks: float = 0.0
    copies: float = 0.0
    messages: dict[str, Message] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def publish(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            # Every third id is not a number, so that both kinds of keys are in the runs.
            name = f"m{number}" if number % 3 == 2 else str(_FIRST_ID + number)
            key = f"k{scheduler().random.randrange(self.keys)}"
            self.messages[name] = Message(name, key, int((scheduler().now + 1) * 1e6) + number)
            self.note("publish", id=name, key=key)

    def pull(self, holder: object) -> list[Message]:
        """Return what a stream gets now; it has that until its lease ends, unless it extends it."""
        now, random = scheduler().now, scheduler().random
        given: list[Message] = []
        blocked: set[str] = set()
        for message in self.messages.values():
            if message.acked:
                continue
            elsewhere = message.until > now
            if self.ordered and (message.key in blocked or (elsewhere and message.holder is not holder)):
                blocked.add(message.key)
            elif not elsewhere:
                given.append(message)
        if not self.ordered and random.random() < self.copies:
            acked = [message for message in self.messages.values() if message.acked]
            given += random.sample(acked, min(len(acked), random.randint(1, 4)))
        for message in given:
            message.holder, message.until = holder, now + _ACK_DEADLINE
        if self.ordered and given:
            # What follows on this stream comes again too, so that the order is kept.
            first = {key: next(m for m in given if m.key == key) for key in {m.key for m in given}}
            order = list(self.messages.values())
            again = [m for m in order if not m.acked and m.key in first and order.index(m) >= order.index(first[m.key])]
            given = again
            for message in given:
                message.holder, message.until = holder, now + _ACK_DEADLINE
        return given[: random.randint(1, 20)] if not self.ordered else given

    def extend(self, holder: object, ids: Collection[str]) -> None:
        for message in map(self.messages.__getitem__, sorted(ids)):
            if message.holder is holder and not message.acked:
                message.until = scheduler().now + _ACK_DEADLINE

    def ack(self, ids: Sequence[str]) -> None:
        random = scheduler().random
        for name in ids:
            if random.random() >= self.lost_acks:
                self.messages[name].acked = True
                self.note("ack", id=name)

    def give_back(self, ids: Sequence[str]) -> None:
        for name in ids:
            self.messages[name].until = 0.0


class Target:
    """What receives from the service in a fetcher, with a lease that it extends while it lives."""

    def __init__(self, service: Service, process: Process) -> None:
        self._service = service
        self._process = process
        self._stopped = Event()
        self._thread: Thread | None = None
        self._held: set[str] = set()

    def start(self, intake: Intake[list[Message], list[str]]) -> None:
        self._stopped.clear()
        self._thread = Thread(target=self._receive, args=(intake,), name="receive")
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _receive(self, intake: Intake[list[Message], list[str]]) -> None:
        extended = scheduler().now
        while not self._stopped.wait(_PULL_SECONDS):
            if scheduler().now - extended > _EXTEND_SECONDS:
                extended = scheduler().now
                self._service.extend(self._process, self._held)
            if not intake.wait(0.0, self._stopped.is_set):
                continue
            due = self._service.pull(self._process)
            self._held.update(message.id for message in due)
            for first in range(0, len(due), _ROWS_A_DELIVERY):
                part = due[first : first + _ROWS_A_DELIVERY]
                intake.put(part, ROW_BYTES * len(part), len(part))

    def decode(self, deliveries: Sequence[list[Message]]) -> Block[list[str]]:
        messages = [message for delivery in deliveries for message in delivery]
        ids = [message.id for message in messages]
        rows = pa.record_batch(
            {"id": pa.array(ids, pa.string()), "key": pa.array([message.key for message in messages], pa.string())}
        )
        times = [message.published for message in messages]
        sizes = np.full(len(ids), ROW_BYTES, np.int64)
        return Block(rows, pa.array(ids, pa.string()), sizes, (min(times), max(times)), ids)

    def on_durable(self, token: list[str]) -> None:
        self._held.difference_update(token)
        scheduler().point()
        self._service.ack(token)

    def on_given_up(self, held: Sequence[list[Message] | list[str]]) -> None:
        for part in held:
            ids = [one if isinstance(one, str) else one.id for one in part]
            self._held.difference_update(ids)
            self._service.give_back(ids)

    def status(self) -> TargetStatus:
        return TargetStatus(1, 1, None)

    def close(self, _deadline: float) -> None:
        pass
