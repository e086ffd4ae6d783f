"""A real broker for the tests of one process, and short words for what they do with it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tests.servers.kafka_broker import PASSWORD, USER, KafkaBroker
from tests.support.spark_protocol.driver import BatchRead, FolderSink, InProcessWorkers, StreamingQuery
from tests.support.waiting import POLL_SECONDS, wait_for

SOURCE = "connectors.kafka.datasource:KafkaDataSource"
PATIENCE = 60.0
LOG_IN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": USER,
    "kafka.sasl.password": PASSWORD,
}
"""Options of the user that the broker knows."""
STEADY = {"broker.session.timeout.ms": "60000"}
"""Settings of a broker that leads its partitions on after a stall; one that is killed takes so long to return."""

_NOT_LED = frozenset({"_NOENT", "NOT_LEADER_FOR_PARTITION"})
_numbers = itertools.count(1000)
"""Of one length, so that names sort in the order in which they were made."""


class KafkaRig:
    """A broker, seen from a test: topics of its own, records, queries.

    Args:
        broker: shared with other tests, unless a test kills it.
        folder: for checkpoint and sink.
    """

    def __init__(self, broker: KafkaBroker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.workers = InProcessWorkers()
        quiet = {"bootstrap.servers": broker.endpoint, "log_level": 0}
        self.admin = AdminClient(quiet)
        # One request at a time: a broker that does not lead a new partition yet refuses one and takes the next. The
        # refused records would then come later, or, of an idempotent producer, be lost (confluent-kafka-go, issue 921).
        ordered = {"linger.ms": 0, "enable.idempotence": True, "max.in.flight": 1}
        self.producer = Producer({**quiet, **ordered, "message.max.bytes": 4_000_000})
        self._quiet = quiet

    # Topics

    def name(self, word: str = "topic") -> str:
        """A name that no other test uses."""
        return f"{word}-{next(_numbers)}"

    def topic(self, partitions: int = 1, name: str | None = None, **settings: str) -> str:
        """Make a topic; settings are written with underscores."""
        name = name or self.name()
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self._done(self.admin.create_topics([NewTopic(name, partitions, 1, config=config)]))
        self._until(lambda: len(self.admin.list_topics(name).topics[name].partitions) == partitions)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self._done(self.admin.delete_topics([name]))
        self._until(lambda: name not in self.admin.list_topics().topics)

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        self._done(self.admin.create_partitions([NewPartitions(name, partitions)]))

        def all_are_led() -> bool:
            found = [each.list_topics(name).topics[name].partitions.values() for each in (self.producer, self.admin)]
            return all(len(each) == partitions and all(one.leader >= 0 for one in each) for each in found)

        self._until(all_are_led)

    def delete_records(self, name: str, before: int, partition: int = 0) -> None:
        """Take away the records before an offset, as retention does."""
        self._done(self.admin.delete_records([Partition(name, partition, before)]))

    def delete_groups(self, *names: str) -> None:
        """Take away consumer groups with their offsets, as time does."""
        self._done(self.admin.delete_consumer_groups([*names]))

    def allow(
        self, user: str, name: str, *operations: str, kind: str = "TOPIC", names_that_begin: bool = False
    ) -> None:
        """Grant rights on a topic, or on another kind of thing, and wait until they hold; needs an authorizer."""
        pattern = ResourcePatternType.PREFIXED if names_that_begin else ResourcePatternType.LITERAL
        for operation in operations:
            of_thing = (ResourceType[kind], name, pattern, f"User:{user}", "*")
            right = (*of_thing, AclOperation[operation], AclPermissionType.ALLOW)
            self._done(self.admin.create_acls([AclBinding(*right)]))
            asked = AclBindingFilter(*right)
            self._until(lambda asked=asked: bool(self.admin.describe_acls(asked).result(PATIENCE)))

    @staticmethod
    def _done(futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(PATIENCE)

    @staticmethod
    def _until(condition: Callable[[], bool]) -> None:
        wait_for(condition, PATIENCE)

    # Records

    def send(self, topic: str, values: Iterable[Any], partition: int = 0, **details: Any) -> None:
        """Produce values: bytes, None, or anything as text."""
        for value in values:
            data = value if isinstance(value, bytes | None) else str(value).encode()
            self.producer.produce(topic, data, partition=partition, on_delivery=_delivered, **details)
        assert self.producer.flush(PATIENCE) == 0

    def transaction(self, topic: str, values: Iterable[Any], *, commit: bool | None = True, partition: int = 0) -> Any:
        """Produce values in a transaction that is committed, aborted, or (None) left open; returns its producer."""
        producer = Producer({**self._quiet, "transactional.id": self.name("transaction"), "max.in.flight": 1})
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, str(value).encode(), partition=partition, on_delivery=_delivered)
        assert producer.flush(PATIENCE) == 0
        if commit is True:
            producer.commit_transaction(PATIENCE)
        elif commit is False:
            producer.abort_transaction(PATIENCE)
        return producer

    def end(self, topic: str, partition: int = 0, *, committed: bool = False) -> int:
        """The offset behind the last record."""
        (found,) = self._ends(self.admin, topic, [partition], committed=committed)
        return found

    @staticmethod
    def _ends(admin: AdminClient, topic: str, partitions: Iterable[int], *, committed: bool) -> list[int]:
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {Partition(topic, number): OffsetSpec.latest() for number in partitions}
        futures = admin.list_offsets(asked, isolation_level=level).values()
        return [int(future.result(PATIENCE).offset) for future in futures]

    def wait_for_ends(self, topic: str, partitions: int = 1, seconds: float = PATIENCE) -> None:
        """Wait until no transaction is open: a broker says that one is committed before its records can be seen."""
        wait_for(lambda: self._none_is_open(topic, range(partitions)), seconds)

    def _none_is_open(self, topic: str, partitions: Iterable[int]) -> bool:
        admin = AdminClient(self._quiet)  # which knows of partitions that were added
        try:
            visible, all_of_them = (self._ends(admin, topic, partitions, committed=each) for each in (True, False))
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].name() not in _NOT_LED:
                raise
            return False  # the broker, or the topic, has just begun
        return visible == all_of_them

    def read_committed(self, topic: str, partitions: int = 1, *, is_open: bool = False) -> list[Any]:
        """All records of a topic that a careful consumer sees, as messages of confluent-kafka.

        Args:
            topic: the topic.
            partitions: how many it has.
            is_open: whether a transaction is open; else the end of the last one is waited for.
        """
        if not is_open:
            self.wait_for_ends(topic, partitions)
        return self._read(topic, partitions, "read_committed")

    def read_all(self, topic: str, partitions: int = 1) -> list[Any]:
        """All records of a topic, those of aborted transactions too."""
        return self._read(topic, partitions, "read_uncommitted")

    def _read(self, topic: str, partitions: int, isolation: str) -> list[Any]:
        settings = {**self._quiet, "group.id": self.name("check"), "isolation.level": isolation}
        consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "error"})
        consumer.assign([Partition(topic, number, 0) for number in range(partitions)])
        found: list[Any] = []
        ended = 0
        while ended < partitions:
            message = consumer.poll(PATIENCE)
            assert message is not None, "the topic cannot be read to its end"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ended += 1
        consumer.close()
        return found

    def wait_for_group(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        """Wait until a group has committed an offset."""
        consumer = Consumer({**self._quiet, "group.id": group})
        asked = [Partition(topic, partition)]
        self._until(lambda: consumer.committed(asked, timeout=PATIENCE)[0].offset == offset)
        consumer.close()

    def wait_for_compaction(self, topic: str) -> None:
        """Wait until a topic holds fewer records than offsets."""
        self._until(lambda: len(self.read_committed(topic)) < self.end(topic) // 2)

    # Queries

    def options(self, topic: str | None = None, **options: Any) -> dict[str, str]:
        """Options of the source; those with dots are written with two underscores, objects become JSON."""
        found = {"kafka.bootstrap.servers": self.broker.endpoint}
        if topic is not None:
            found |= {"subscribe": topic, "startingOffsets": "earliest"}
        for key, value in options.items():
            if value is None:
                found.pop(key, None)
            else:
                text = value if isinstance(value, str) else json.dumps(value)
                found[key.replace("__", ".")] = text
        return found

    def query(self, options: Mapping[str, str], **settings: Any) -> StreamingQuery:
        """A query on the checkpoint and the sink of this test."""
        return StreamingQuery(
            SOURCE,
            options,
            checkpoint=self.folder / "checkpoint",
            workers=self.workers,
            **({"sink": self.sink, "poll_interval": POLL_SECONDS} | settings),
        )

    @property
    def sink(self) -> FolderSink:
        """The sink of the test's query."""
        return FolderSink(self.folder / "sink")

    def batch(self, options: Mapping[str, str]) -> list[dict[str, Any]]:
        """The rows of a batch read."""
        with BatchRead(SOURCE, options, workers=self.workers) as read:
            return [row for table in read.collect() for row in table.to_pylist()]

    def values(self, query: StreamingQuery, count: int) -> list[str]:
        """Run batches until so many rows have come; returns the values, as text."""
        found: list[str] = []
        seen = 0

        def enough(batches: Sequence[Any]) -> bool:
            nonlocal seen
            for batch in batches[seen:]:
                found.extend(text(batch.values("value")))
            seen = len(batches)
            return len(found) >= count

        query.run_until(enough, PATIENCE)
        return found


def _delivered(error: Any, message: Any) -> None:
    assert error is None, error
    assert message.offset() is not None, "reported as written, and lost"


def text(values: Iterable[bytes | None]) -> list[str]:
    """Values as text."""
    return ["" if value is None else value.decode() for value in values]
