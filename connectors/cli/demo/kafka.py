"""Kafka in a demonstration: a query into files, and one that writes exactly once into another topic."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, TypeVar

from connectors.cli.demo.count import Message, Row
from connectors.cli.demo.plan import DemoPlan, Query, Service
from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    OptionError,
    ServiceUnavailableError,
)
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

_PARTITIONS = 4
_MOST_TOPICS = 2
_CALL_SECONDS = 20.0
_READ_SECONDS = 60.0
_OF_SINK = ("kafka.", "tokenprovider", "retrytimeout")
_NO_TRANSACTIONS = (
    "Left out: exactly once into another topic. This server is librdkafka's mock cluster, which has no transactions. "
    "./dev broker, or --bootstrap with a broker of yours, shows it."
)
T = TypeVar("T")


class Kafka(Service):
    """librdkafka's mock cluster, or a broker by its address."""

    def __init__(self, plan: DemoPlan) -> None:
        super().__init__(plan)
        existing = self.target.existing
        if len(existing) > _MOST_TOPICS:
            action = "Give one topic to read, and one for the copies."
            raise OptionError("DEMO_OPTION", "More than two topics are given", "--topic", action)
        self._own = [self.name, f"{self.name}-copy"][len(existing) :]
        self._topic, self._copy = (*existing, *self._own)
        self._has_transactions = False
        self._ends: dict[str, Offsets] = {}
        """Where topics ended before the demo; those of the mock cluster are new."""
        topics = [f"topic {topic} with {_PARTITIONS} partitions" for topic in self._own]
        self.creates = [*topics, f"consumer groups {self.name}-*, which mark the batches that are written"]
        self.rights = [
            *[f"Create, Delete on topic {topic}" for topic in self._own],
            f"Describe, Read, Write on topics {self._topic}, {self._copy}",
            f"Describe, Write on transactional ids with the prefix {self.name}",
            f"Describe, Read, Delete on groups with the prefix {self.name}, and Describe on the cluster",
        ]
        if self.target.endpoint is not None:
            self._use(self.target.endpoint)

    def _use(self, bootstrap: str) -> None:
        self._options = {"kafka.bootstrap.servers": bootstrap, **self.target.options}
        shared = {name: value for name, value in self._options.items() if name.lower().startswith(_OF_SINK)}
        self._sink = {**shared, "topic": self._copy, "deliveryGuarantee": "exactly_once"}
        self._sink["transactionalIdPrefix"] = self.name
        reading = {**self._options, "subscribe": self._topic}
        self._settings = parse_read_options(reading, os.environ, streaming=True).client
        self._write_settings = parse_write_options({**shared, "topic": self._topic}, os.environ, streaming=True).client

    def open(self, stack: ExitStack) -> None:
        if self.target.is_ours:
            self._use(stack.enter_context(MockKafkaProcess()).endpoint)
        self._producer = open_producer(self._write_settings, {})
        with KafkaLookup(self._settings, call_seconds=_CALL_SECONDS) as lookup:
            lookup.brokers()  # which names a refused authentication
            cluster = self._ask("cluster", lambda: self._producer.list_topics(timeout=_CALL_SECONDS).cluster_id)
            if is_mock(str(cluster)):
                self.notes.append(_NO_TRANSACTIONS)
                return
            self._has_transactions = True
            self._create(stack)
            for topic in (self._topic, self._copy):
                self._ends[topic] = self._ask(topic, partial(self._end, lookup, topic))

    def _end(self, lookup: KafkaLookup, topic: str) -> Offsets:
        """Return where a topic ends; what is new need not be known to every broker yet."""
        if topic in self._own:
            return {TopicPartition(topic, number): 0 for number in range(_PARTITIONS)}
        return lookup.latest(lookup.partitions(Subscribe((topic,))))

    def _create(self, stack: ExitStack) -> None:
        admin = open_admin(self._settings)

        def call(method: str, resources: list[Any], where: str) -> None:
            futures = getattr(admin, method)(resources, request_timeout=_CALL_SECONDS).values()
            self._ask(where, lambda: [future.result() for future in futures])

        def remove_groups() -> None:
            future = admin.list_consumer_groups(request_timeout=_CALL_SECONDS)
            groups = [group.group_id for group in self._ask("groups", future.result).valid]
            if own := [group for group in groups if group.startswith(f"{self.name}-")]:
                call("delete_consumer_groups", own, self.name)

        self.removing(stack, f"consumer groups {self.name}-*", remove_groups)
        for topic in self._own:
            self.removing(stack, f"topic {topic}", partial(call, "delete_topics", [topic], topic))
            call("create_topics", [admin_sdk().NewTopic(topic, _PARTITIONS, -1)], topic)

    def _ask(self, where: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except client_exception() as error:
            raise self._named(connector_error(error.args[0], where)) from None
        except AccessDeniedError as error:
            raise self._named(error) from None

    def _named(self, error: ConnectorError) -> ConnectorError:
        """Return an error; for a missing right, with all that the demo needs."""
        if not isinstance(error, AccessDeniedError):
            return error
        return AccessDeniedError(error.code, error.what, error.where, f"Allow {'; '.join(self.rights)}.")

    def queries(self) -> list[Query]:
        start = "earliest"
        if self._topic in self._ends:  # what others have written before is not read
            offsets = {str(part.partition): offset for part, offset in self._ends[self._topic].items()}
            start = json.dumps({self._topic: offsets})
        read = {"maxOffsetsPerTrigger": self.plan.batch_limit, **self._options}
        read |= {"startingOffsets": start, "subscribe": self._topic}
        columns = ("CAST(value AS STRING)", "concat(topic, '/', partition)", "CAST(offset AS STRING)")
        into_files = Query("files", "kafka_py", read, columns)
        return [into_files, Query("exactly-once", "kafka_py", read, sink=self._sink)][: 1 + self._has_transactions]

    def publish(self, messages: Sequence[Message]) -> None:
        problems: list[Any] = []
        for message in messages:
            self._producer.produce(
                self._topic,
                message.encode(self.plan.run),
                message.key,
                on_delivery=lambda error, _: problems.append(error),
            )
        left = self._producer.flush(_READ_SECONDS)
        for problem in filter(None, problems):
            raise self._named(connector_error(problem, self._topic))
        if left:
            raise ServiceUnavailableError("KAFKA_UNAVAILABLE", "Kafka has not confirmed the records", self._topic)

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
                    raise self._named(connector_error(error, self._copy))
