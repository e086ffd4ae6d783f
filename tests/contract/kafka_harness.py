"""The harness of the Kafka source."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from confluent_kafka import Producer

from connectors.testing.kafka.mock import MockKafkaProcess
from tests.contract.harness import SourceHarness

_numbers = itertools.count()


@functools.cache
def _server() -> tuple[MockKafkaProcess, Producer]:
    """One mock cluster for all tests; it ends with this process. A process of its own, so that it can stall."""
    server = MockKafkaProcess()
    return server, Producer({"bootstrap.servers": server.endpoint, "linger.ms": 0})


class KafkaHarness(SourceHarness):
    """One partition of a topic of librdkafka's mock cluster; what that cannot do is not part of the contract."""

    name = "kafka"
    source = "connectors.kafka.datasource:KafkaDataSource"
    key = "value"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.topic = f"orders-{next(_numbers)}"
        self.server, self.producer = _server()
        self.producer.list_topics(self.topic, timeout=self.patience)  # which makes it
        self.published: Iterator[int] = itertools.count()
        self.end = 0

    def options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.server.endpoint,
            "assign": json.dumps({self.topic: [0]}),
            "startingOffsets": "earliest",
            "minPartitions": "3",
        }

    def latest_options(self) -> dict[str, str]:
        return self.options() | {"startingOffsets": "latest"}

    def limited_options(self, rows: int) -> dict[str, str]:
        return self.options() | {"maxOffsetsPerTrigger": str(rows)}

    def batch_options(self) -> dict[str, str]:
        return self.options() | {"endingOffsets": json.dumps({self.topic: {"0": self.end}})}

    def publish(self, count: int) -> list[bytes]:
        values = [b"value %d" % number for number in itertools.islice(self.published, count)]
        self.end += count
        for value in values:
            self.producer.produce(self.topic, value, partition=0)
        assert self.producer.flush(self.patience) == 0
        return values

    def stalled(self) -> AbstractContextManager[None]:
        return self.server.stalled()
