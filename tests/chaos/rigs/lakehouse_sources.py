"""The sources of the runs into the lakehouse: each publishes numbers, and says how a query reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from connectors.testing.kinesis import KinesisControl
from connectors.testing.kinesis import start_server_process as start_kinesis
from connectors.testing.pubsub import start_server_process as start_pubsub
from connectors.testing.pubsub.client import PubSubTestClient
from tests.servers.kafka_broker import KafkaBroker
from tests.support.kafka_rig import KafkaRig

_PARTITIONS = 3
_PROJECT = "chaos"
_ACK_DEADLINE = 10


class Source(Protocol):
    """A source of numbers on a server that is shared by all trials.

    Attributes:
        format: of Spark.
        number: the SQL expression that gives the number of a row.
        victims: who is killed beside the JVM and the driver.
    """

    format: str
    number: str
    victims: tuple[str, ...]

    def publish(self, name: str, count: int) -> None:
        """Publish the numbers below ``count`` to a new topic or stream of this name."""
        ...

    def options(self, name: str, folder: Path, limit: int) -> Mapping[str, str]:
        """The options of a query on it, with so many rows a batch."""
        ...

    def after_kill(self) -> None:
        """Let the time pass after which the service gives back what a dead process held."""
        ...


@dataclass
class KafkaSource:
    """Topics of a real broker."""

    broker: KafkaBroker
    folder: Path
    format = "kafka_py"
    number = "CAST(CAST(value AS STRING) AS LONG)"
    victims = ("worker", "worker", "source_runner")

    def publish(self, name: str, count: int) -> None:
        """Publish to three partitions in turn."""
        kafka = KafkaRig(self.broker, self.folder)
        topic = kafka.topic(_PARTITIONS, name)
        for partition in range(_PARTITIONS):
            kafka.send(topic, range(partition, count, _PARTITIONS), partition)

    def options(self, name: str, folder: Path, limit: int) -> Mapping[str, str]:  # noqa: ARG002 - it has no spool
        """From the beginning."""
        return {
            "kafka.bootstrap.servers": self.broker.endpoint,
            "subscribe": name,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(limit),
        }

    def after_kill(self) -> None:
        """Kafka holds nothing back."""


@dataclass
class PubSubSource:
    """Subscriptions of our server."""

    server: Any
    format = "pubsub"
    number = "CAST(CAST(payload AS STRING) AS LONG)"
    victims = ("worker", "fetcher", "source_runner")

    def publish(self, name: str, count: int) -> None:
        """Publish to a topic with one subscription."""
        with PubSubTestClient(self.server.endpoint, _PROJECT) as client:
            client.create(name, name, _ACK_DEADLINE)
            client.publish(name, [(str(number).encode(), {}) for number in range(count)])

    def options(self, name: str, folder: Path, limit: int) -> Mapping[str, str]:
        """With a spool in the folder."""
        return {
            "projectId": _PROJECT,
            "subscriptionId": name,
            "endpoint": self.server.endpoint,
            "spoolLocation": str(folder / "spool"),
            "maxRecordsPerTrigger": str(limit),
        }

    def after_kill(self) -> None:
        """What dead fetchers held comes again."""
        self.server.jump(6 * _ACK_DEADLINE)


@dataclass
class KinesisSource:
    """Streams of our server."""

    server: Any
    format = "kinesis"
    number = "CAST(CAST(data AS STRING) AS LONG)"
    victims = ("worker", "worker", "source_runner")

    def publish(self, name: str, count: int) -> None:
        """Put into two shards."""
        with KinesisControl(self.server.endpoint) as control:
            control.create_stream(name, 2)
            control.put(name, [(f"key-{number % 97}", str(number).encode()) for number in range(count)])

    def options(self, name: str, folder: Path, limit: int) -> Mapping[str, str]:  # noqa: ARG002 - it has no spool
        """Polling, from the beginning."""
        return {
            "streamName": name,
            "endpointUrl": f"http://{self.server.endpoint}",
            "awsAccessKey": "AKIATEST",
            "awsSecretKey": "test-secret",
            "initialPosition": "trim_horizon",
            "maxRecordsPerTrigger": str(limit),
            "maxRecordsPerFetch": str(limit),
            "minFetchPeriod": "20ms",
            "idleFetchPeriod": "100ms",
            "shardFetchInterval": "200ms",
            "maxFetchRate": "1000",
        }

    def after_kill(self) -> None:
        """Kinesis holds nothing back."""


SOURCES = ("kafka", "pubsub", "kinesis")


@contextmanager
def source(name: str, folder: Path) -> Iterator[Source]:
    """Start the server of a source."""
    match name:
        case "kafka":
            with KafkaBroker() as broker:
                yield KafkaSource(broker, folder)
        case "pubsub":
            with start_pubsub(event_limit=0) as pubsub:
                yield PubSubSource(pubsub)
        case _:
            with start_kinesis(call_limit=0) as kinesis:
                yield KinesisSource(kinesis)
