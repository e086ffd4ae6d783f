"""What the Kafka benchmarks share: a broker, topics, and for each side a process with a Spark session of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from _common import Benchmark, Side, interleaved
from _program import Program
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.testing.kafka.broker import KafkaBroker, find_broker
from connectors.testing.servers.maven import class_path

OURS = "kafka_py"
THEIRS = "kafka"
JVM_VERSION = "Spark's own connector 4.2.0 (4.3.0 is not served), kafka-clients 3.9.1"


@dataclass
class Rig:
    """A broker, and both sides.

    Attributes:
        broker: for both.
        sides: the program of each, by the name of its format.
        admin: makes topics.
    """

    broker: KafkaBroker
    sides: Mapping[str, Program]
    admin: AdminClient

    def topic(self, name: str, partitions: int) -> str:
        """Make a topic."""
        self._done(self.admin.create_topics([NewTopic(name, partitions, 1)]))
        return name

    def delete(self, name: str) -> None:
        """Delete a topic."""
        self._done(self.admin.delete_topics([name]))

    @staticmethod
    def _done(futures: Mapping[str, Any]) -> None:
        for future in futures.values():
            future.result(60)

    def fill(self, name: str, partitions: int, count: int, size: int) -> None:
        """Produce so many records of a size, evenly."""
        producer = Producer(
            {"bootstrap.servers": self.broker.endpoint, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
        )
        value = os.urandom(size)
        for number in range(count):
            while True:
                try:
                    producer.produce(name, value, b"key-%d" % (number % 1000), number % partitions)
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
        producer.flush()


@dataclass
class Costs:
    """What rounds have cost each side: seconds of processor time for a million rows."""

    values: dict[str, list[float]] = field(default_factory=dict)

    @contextlib.contextmanager
    def of(self, program: Program, name: str, rows: int) -> Iterator[None]:
        """Count what happens meanwhile."""
        before = program.cpu_seconds()
        yield
        self.values.setdefault(name, []).append((program.cpu_seconds() - before) / rows * 1e6)

    def side(self, name: str, rounds: int) -> Side:
        """The last rounds of a side: those before were its warm-up."""
        return Side(name, self.values[name][-rounds:])


def compare(
    benchmark: Benchmark,
    case: str,
    sides: Mapping[str, Callable[[], float]],
    costs: Costs,
    rounds: int,
    warm_up: int = 1,
) -> None:
    """Run both sides of a case in turn after a warm-up; compare their rows a second, and their processor time."""
    for warm in [*sides.values()] * warm_up:
        warm()
    benchmark.compare(case, *interleaved(sides, rounds), "rows/s")
    ours, theirs = (costs.side(name, rounds) for name in sides)
    benchmark.compare(f"{case}-cpu", ours, theirs, "s of processor time for a million rows", less_is_better=True)


@contextlib.contextmanager
def rig() -> Iterator[Rig]:
    """Start all; says why not, and ends, if they cannot be had."""
    for reason in (find_broker().reason, class_path("kafka-spark").reason):
        if reason:
            sys.exit(reason)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker(fast=True))
        sides = {name: stack.enter_context(Program("_kafka_side.py", name)) for name in (OURS, THEIRS)}
        for program in sides.values():
            next(program.reports())
        yield Rig(broker, sides, AdminClient({"bootstrap.servers": broker.endpoint}))


def wanted(told: Namespace, case: str) -> bool:
    """Whether a case was asked for."""
    return not told.cases or case in told.cases
