"""What a demonstration does, and what each service has to be able to do for it."""

from __future__ import annotations

import math
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from connectors.cli.demo.count import Message, Row
from connectors.core.errors import ConnectorError, SourceGoneError
from connectors.core.retry import Backoff

KEYS = 20
_BATCHES = 10  # enough that kills come between them
_REMOVE_PAUSES = (1.0, 2.0, 5.0, 10.0, 0.0)
_TRIES = 10
_NOT_STORED = frozenset({"KINESIS_THROTTLED"})
_NEVER_CREATED = frozenset({"SPOOL_NOT_FOUND"})
Publishing = Callable[[Sequence[Message]], tuple[Sequence[Message], ConnectorError | None]]


class ServiceName(StrEnum):
    """The services that have a demo."""

    KAFKA = "kafka"
    KINESIS = "kinesis"
    PUBSUB = "pubsub"


class Facts(NamedTuple):
    """What the demo knows of a service: its class, its client's package, what it runs against, and what that costs.

    Servers are ours, one by its address, and the cloud's. Prices are US dollars per begun hour and million messages.
    """

    service: str
    package: str
    servers: tuple[str, str, str]
    options: tuple[str, ...]
    hour: float = 0.0
    million: float = 0.0
    assumes: str = "nothing is billed for a server of your own"


FACTS = {
    ServiceName.KAFKA: Facts(
        "connectors.cli.demo.kafka:Kafka",
        "confluent-kafka",
        ("librdkafka's mock cluster", "a Kafka broker by its address", ""),
        ("bootstrap", "topic"),
        assumes="Kafka bills nothing; a managed cluster may bill traffic, at most 5 KB per message",
    ),
    ServiceName.KINESIS: Facts(
        "connectors.cli.demo.kinesis:Kinesis",
        "botocore",
        ("connectors.testing.kinesis", "a server by its URL", "Amazon Kinesis Data Streams"),
        ("endpoint", "region", "stream"),
        hour=4 * (0.015 + 0.015),
        million=2 * (0.014 + 0.013),
        assumes="list prices of us-east-1: 4 shards and consumer-shards at 0.015 USD per hour begun; each message put "
        "twice, at 0.014 USD per million, and 0.013 for 1 GB of fan-out",
    ),
    ServiceName.PUBSUB: Facts(
        "connectors.cli.demo.pubsub:PubSub",
        "grpcio",
        ("connectors.testing.pubsub", "an emulator by its address", "Google Cloud Pub/Sub"),
        ("endpoint", "project", "subscription", "spool"),
        million=0.15,
        assumes="40 USD per TiB, 1,000 bytes billed per message, 4 transfers of each; an object store gets 20 calls a "
        "second at 5 USD per million",
    ),
}
_STORE_MINUTE = 60 * 20 * 5e-6


@dataclass(frozen=True, slots=True)
class Target:
    """Where the service is: the address of a server that bills nothing, or a region or project; ours without either.

    Existing topics, streams and subscriptions are neither created nor removed.
    """

    endpoint: str | None = None
    account: str | None = None
    existing: tuple[str, ...] = ()
    spool: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_ours(self) -> bool:
        return self.endpoint is None and self.account is None


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """A demonstration, in an empty folder; ``run`` tells its messages and resources from all others."""

    folder: Path
    service: ServiceName = ServiceName.PUBSUB
    target: Target = field(default_factory=Target)
    messages: int = 50_000
    kills: int = 3
    seed: int = 0
    minutes: float = 10.0
    plant_loss: bool = False
    run: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def batch_limit(self) -> str:
        return str(max(self.messages // _BATCHES, 1))

    @property
    def dollars(self) -> float:
        """The most that the run may cost; one more hour counts, as it may begin within one."""
        facts, target = FACTS[self.service], self.target
        dollars = _STORE_MINUTE * self.minutes if target.spool else 0.0
        if target.account and not target.endpoint:
            dollars += facts.hour * (math.ceil(self.minutes / 60) + 1) + facts.million * self.messages / 1e6
        return dollars


@dataclass(frozen=True, slots=True)
class Query:
    """A query of the demo: into files, by SQL expressions of text, place and position, or into a sink of its format."""

    name: str
    source: str
    options: Mapping[str, str] = field(repr=False)
    columns: tuple[str, str, str] = ("", "", "")
    sink: Mapping[str, str] = field(default_factory=dict, repr=False)


class Service(ABC):
    """A service in a demonstration; its options are checked when it is built, which calls nothing.

    Attributes:
        creates: what `open` creates, and its exit stack removes.
        failpoints: set for the first start of the query.
        repeated: by number, how often a message was published again because a request was not answered.
        ordered: whether the messages of a key must come in their order.
        duplicates: how many deliveries the query dropped; None for services that repeat none.
    """

    def __init__(self, plan: DemoPlan) -> None:
        self.plan, self.target = plan, plan.target
        self.name = f"connectors-demo-{plan.run}"
        ours, by_address, cloud = FACTS[plan.service].servers
        self.server = ours if self.target.is_ours else by_address if self.target.endpoint else cloud
        self.creates: list[str] = []
        self.rights: list[str] = []
        self.failpoints = ""
        self.repeated: Counter[int] = Counter()
        self.ordered = True
        self.duplicates: int | None = None
        self.notes: list[str] = []
        self.left_behind: list[str] = []

    @abstractmethod
    def open(self, stack: ExitStack) -> None:
        """Start the server, or reach it, and create what is missing."""

    @abstractmethod
    def queries(self) -> list[Query]:
        """Return the queries, which run at the same time."""

    @abstractmethod
    def publish(self, messages: Sequence[Message]) -> None:
        """Publish a portion, in the order of each key, and return when it is accepted."""

    def disturb(self, share: float) -> None:  # noqa: B027 - not every service can be disturbed
        """Do what the service can do to its readers when this share of the messages is published."""

    def update(self) -> None:  # noqa: B027 - only Pub/Sub repeats deliveries
        """Count the duplicates again."""

    def read_back(self, query: Query) -> Iterator[Row]:
        """Read what a query with a `Query.sink` has written."""
        raise NotImplementedError

    def repeat(self, attempt: Publishing, messages: Sequence[Message]) -> None:
        """Publish messages by ``attempt``, which returns those to publish again, and why, until all are accepted."""
        backoff = Backoff(initial_seconds=0.1, cap_seconds=5.0)
        for tries_left in reversed(range(_TRIES)):
            messages, error = attempt(messages)
            if error is None:
                return
            if not (error.transient and tries_left):
                raise error
            if error.code not in _NOT_STORED:
                self.repeated.update(message.number for message in messages)
            time.sleep(backoff.next_delay_seconds(error))

    def removing(self, stack: ExitStack, what: str, remove: Callable[[], object]) -> None:
        """Remove something when the stack ends; to be called before it is created, as the answer may be lost."""

        def end() -> None:
            for pause in _REMOVE_PAUSES:
                try:
                    remove()
                except ConnectorError as error:
                    if error.transient and pause:
                        time.sleep(pause)
                        continue
                    if not isinstance(error, SourceGoneError) and error.code not in _NEVER_CREATED:
                        self.left_behind.append(f"{what}: {error.what}")
                return

        stack.callback(end)
