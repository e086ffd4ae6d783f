"""Kafka in a demonstration: a query into files, and one that writes exactly once into another topic."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from typing import Any

from connectors.cli.demo.count import Message, Row
from connectors.cli.demo.plan import Bound, DemoPlan, Query, Service
from connectors.core.errors import AccessDeniedError, OptionError, ServiceUnavailableError, SourceGoneError
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.client.errors import connector_error, is_mock
from connectors.kafka.client.factory import (
    admin_sdk,
    client_exception,
    is_group_denial,
    open_admin,
    open_consumer,
    open_producer,
    sdk,
)
from connectors.kafka.offsets import Offsets, TopicPartition
from connectors.kafka.options.sink import parse_write_options
from connectors.kafka.options.source import Subscribe, parse_read_options
from connectors.testing.kafka.mock import MockKafkaProcess

_FORMAT = "kafka_py"
_PARTITIONS = 4
_CALL_SECONDS = 20.0
_READ_SECONDS = 60.0
_MOST_TOPICS = 2
_BYTES = 1000  # per message, written twice and read three times; several times what it has
_OF_SINK = ("kafka.", "tokenprovider", "retrytimeout")
_NO_TRANSACTIONS = (
    "Left out: exactly once into another topic. This server is librdkafka's mock cluster, which has no transactions. "
    "./dev broker, or --bootstrap with a broker of yours, shows it."
)


class Kafka(Service):
    """librdkafka's mock cluster, or a broker by its address."""

    def __init__(self, plan: DemoPlan) -> None:
        super().__init__(plan)
        own = (self.name, f"{self.name}-copy")
        self._topic, self._copy = (*self.target.topics, *own[len(self.target.topics) :])[:_MOST_TOPICS]
        self._has_transactions = not self.target.is_ours
        self._options: dict[str, str] = {}
        self._producer: Any = None
        self._ends: dict[str, Offsets] = {}
        """Where topics ended before the demo; the mock cluster's topics are new."""

    @property
    def server(self) -> str:
        return "librdkafka's mock cluster" if not self._has_transactions else "a Kafka broker by its address"

    def check(self) -> None:
        if len(self.target.topics) > _MOST_TOPICS:
            action = "Give one to read, and one for the copies."
            raise OptionError("DEMO_OPTION", "More than two topics are given", "--topic", action)
        if not self.target.is_ours:
            self._use(self.target.endpoint or "")

    def _use(self, bootstrap: str) -> None:
        self._options = {"kafka.bootstrap.servers": bootstrap, **self.target.options}
        shared = {name: value for name, value in self._options.items() if name.lower().startswith(_OF_SINK)}
        self._sink = {**shared, "topic": self._copy, "deliveryGuarantee": "exactly_once"}
        self._sink["transactionalIdPrefix"] = self.name
        reading = {**self._options, "subscribe": self._topic}
        self._settings = parse_read_options(reading, os.environ, streaming=True).client
        self._write_settings = parse_write_options({**shared, "topic": self._topic}, os.environ, streaming=True).client

    def _own(self) -> list[str]:
        return [topic for topic in (self._topic, self._copy) if topic not in self.target.topics]

    def creates(self) -> list[str]:
        topics = [f"topic {topic} with {_PARTITIONS} partitions" for topic in self._own()]
        return [*topics, f"consumer groups {self.name}-*, which mark the batches that are written"]

    def rights(self) -> list[str]:
        return [
            f"Describe, Read, Write on topics {self._topic}, {self._copy}",
            *[f"Create, Delete on topic {topic}" for topic in self._own()],
            f"Describe, Write on transactional ids with the prefix {self.name}",
            f"Describe, Read, Delete on groups with the prefix {self.name}, and Describe on the cluster",
        ]

    def bound(self) -> Bound:
        traffic = f"{self.plan.messages * _BYTES / 1e6:.0f} MB written and as much read"
        return Bound(0.0, f"Kafka bills nothing; a managed cluster may bill {traffic}")

    def open(self, stack: ExitStack) -> None:
        if self.target.is_ours:
            self._use(stack.enter_context(MockKafkaProcess()).endpoint)
        self._producer = open_producer(self._write_settings, {})
        with KafkaLookup(self._settings, call_seconds=_CALL_SECONDS) as lookup:
            lookup.brokers()  # which names a refused authentication
        if not self.target.is_ours:
            self._has_transactions = not is_mock(self._cluster())
        if not self._has_transactions:
            self.notes.append(_NO_TRANSACTIONS)
            return
        admin = open_admin(self._settings)
        self.removing(stack, f"consumer groups {self.name}-*", lambda: self._remove_groups(admin))
        for topic in self._own():
            self.removing(stack, f"topic {topic}", lambda topic=topic: self._remove(admin, topic))  # type: ignore[misc]
            new = admin_sdk().NewTopic(topic, _PARTITIONS, -1)
            _call(admin.create_topics([new], request_timeout=_CALL_SECONDS).values(), topic, f"Create on topic {topic}")
        with KafkaLookup(self._settings, call_seconds=_CALL_SECONDS) as lookup:
            for topic in (self._topic, self._copy):
                self._ends[topic] = lookup.latest(_await_topic(lookup, topic))

    def _cluster(self) -> str:
        try:
            return str(self._producer.list_topics(timeout=_CALL_SECONDS).cluster_id)
        except client_exception() as error:
            raise connector_error(error.args[0], "kafka.bootstrap.servers") from None

    @staticmethod
    def _remove(admin: Any, topic: str) -> None:
        _call(admin.delete_topics([topic], request_timeout=_CALL_SECONDS).values(), topic, f"Delete on topic {topic}")

    def _remove_groups(self, admin: Any) -> None:
        prefix = f"{self.name}-"
        (listed,) = _call(
            [admin.list_consumer_groups(request_timeout=_CALL_SECONDS)], prefix, "Describe on the cluster"
        )
        groups = [group.group_id for group in listed.valid if group.group_id.startswith(prefix)]
        if groups:
            futures = admin.delete_consumer_groups(groups, request_timeout=_CALL_SECONDS).values()
            _call(futures, prefix, f"Delete on groups with the prefix {self.name}")

    def queries(self) -> list[Query]:
        start = "earliest"
        if self._topic in self._ends:  # what others have written before is not read
            offsets = {str(part.partition): offset for part, offset in self._ends[self._topic].items()}
            start = json.dumps({self._topic: offsets})
        read = {"maxOffsetsPerTrigger": self.plan.batch_limit, **self._options}
        read |= {"startingOffsets": start, "subscribe": self._topic}
        columns = ("CAST(value AS STRING)", "concat(topic, '/', partition)", "CAST(offset AS STRING)")
        into_files = Query("files", _FORMAT, read, columns)
        return [into_files, Query("exactly-once", _FORMAT, read, sink=self._sink)][: 1 + self._has_transactions]

    def publish(self, messages: Sequence[Message]) -> None:
        problems: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                problems.append(error)

        for message in messages:
            self._producer.produce(self._topic, message.encode(self.plan.run), message.key, on_delivery=delivered)
        left = self._producer.flush(_READ_SECONDS)
        if problems:
            raise _with_right(connector_error(problems[0], self._topic), f"Write on topic {self._topic}")
        if left:
            raise ServiceUnavailableError("KAFKA_UNAVAILABLE", "Kafka does not confirm the records", self._topic)

    def read_back(self, query: Query) -> Iterator[Row]:
        """Read the copies that are committed, as a consumer with ``isolation.level=read_committed`` does."""
        own = {"group.id": self.name, "isolation.level": "read_committed", "enable.partition.eof": True}
        with closing(open_consumer(self._settings, own)) as consumer:
            start = self._ends[query.sink["topic"]]
            consumer.assign([sdk().TopicPartition(*partition, offset) for partition, offset in start.items()])
            ended: set[int] = set()
            while len(ended) < len(start):
                message = consumer.poll(_READ_SECONDS)
                if message is None:
                    raise ServiceUnavailableError("KAFKA_UNAVAILABLE", "Kafka sends no records", self._copy)
                if (error := message.error()) is None:
                    place = f"{message.topic()}/{message.partition()}"
                    yield Row(message.value().decode(errors="replace"), place, str(message.offset()))
                elif error.name() == "_PARTITION_EOF":
                    ended.add(message.partition())
                elif not is_group_denial(message):
                    raise _with_right(connector_error(error, self._copy), f"Read on topic {self._copy}")


def _await_topic(lookup: KafkaLookup, topic: str) -> frozenset[TopicPartition]:
    give_up_at = time.monotonic() + _CALL_SECONDS
    while True:
        try:
            return lookup.partitions(Subscribe((topic,)))
        except SourceGoneError:  # brokers hear of a new topic one after the other
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.2)
        except AccessDeniedError as error:
            raise _with_right(error, f"Describe on topic {topic}") from None


def _call(futures: Iterable[Future[Any]], where: str, right: str) -> list[Any]:
    try:
        return [future.result() for future in futures]
    except client_exception() as error:
        raise _with_right(connector_error(error.args[0], where), right) from None


def _with_right(error: Any, right: str) -> Any:
    """Return an error, which says what to allow if a right is missing."""
    if not isinstance(error, AccessDeniedError):
        return error
    return AccessDeniedError(error.code, error.what, error.where, f"Allow {right}.")
