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
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.servers.maven import class_path

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

    def records(self, name: str) -> int:
        """How many records a topic holds, by the offsets of its ends."""
        parts = self.admin.list_topics(name, 30).topics[name].partitions
        asked = {TopicPartition(name, number): OffsetSpec.latest() for number in parts}
        return sum(each.result(30).offset for each in self.admin.list_offsets(asked).values())

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
    cases: Mapping[str, str],
    sides: Mapping[str, Callable[[], float]],
    costs: Costs,
    rounds: int,
    warm_up: int = 1,
) -> None:
    """Run all sides in the same rounds after a warm-up; compare rows a second and processor time with Spark's own.

    Args:
        benchmark: takes the results.
        cases: the name of the case that each side has beside `THEIRS`.
        sides: a round of each, and of `THEIRS`.
        costs: of these rounds.
        rounds: how many.
        warm_up: rounds before them.
    """
    for warm in [*sides.values()] * warm_up:
        warm()
    rates = {side.name: side for side in interleaved(sides, rounds)}
    spent = {name: costs.side(name, rounds) for name in sides}
    for name, case in cases.items():
        benchmark.compare(case, rates[name], rates[THEIRS], "rows/s")
        unit = "s of processor time for a million rows"
        benchmark.compare(f"{case}-cpu", spent[name], spent[THEIRS], unit, less_is_better=True)


@contextlib.contextmanager
def rig(*ceilings: str) -> Iterator[Rig]:
    """Start all, also these ceilings; says why not, and ends, if they cannot be had."""
    for reason in (find_broker().reason, class_path("kafka-spark").reason):
        if reason:
            sys.exit(reason)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker(fast=True))
        sides = {name: stack.enter_context(Program("_kafka_side.py", name)) for name in (OURS, THEIRS, *ceilings)}
        for program in sides.values():
            next(program.reports())
        yield Rig(broker, sides, AdminClient({"bootstrap.servers": broker.endpoint}))


def wanted(command_line: Namespace, *cases: str) -> bool:
    """Whether one of these cases was asked for."""
    return not command_line.cases or not {*cases}.isdisjoint(command_line.cases)
