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

from connectors.cli.demo.count import Message, Row
from connectors.core.errors import ConnectorError, OptionError, SourceGoneError
from connectors.core.retry import Backoff

PREFIX = "connectors-demo-"
"""What the names of all created resources begin with."""
KEYS = 20
_LIMIT_SHARE = 10
_REMOVE_PAUSES = (1.0, 2.0, 5.0, 10.0)
_TRIES = 10
_NOT_STORED = frozenset({"KINESIS_THROTTLED"})
_NEVER_CREATED = frozenset({"SPOOL_NOT_FOUND"})


Publishing = Callable[[Sequence[Message]], tuple[Sequence[Message], ConnectorError | None]]


class ServiceName(StrEnum):
    """The services that have a demo."""

    KAFKA = "kafka"
    KINESIS = "kinesis"
    PUBSUB = "pubsub"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the service is; with nothing given, it is a server of our own.

    Attributes:
        endpoint: of a server that costs nothing: Kafka's ``HOST:PORT``, an emulator's, or a URL for Kinesis.
        account: the region of AWS, or the project of Google.
        topics: given ones, which are neither created nor removed; a stream counts as one.
        subscription: a given one.
        spool: the folder or object store URL for the spool of Pub/Sub.
        options: more options of the connector; may hold secrets.
    """

    endpoint: str | None = None
    account: str | None = None
    topics: tuple[str, ...] = ()
    subscription: str | None = None
    spool: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_ours(self) -> bool:
        return self.endpoint is None and self.account is None


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """A demonstration, in an empty folder.

    Attributes:
        kills: how many processes are killed; the seed decides which and when.
        minutes: when they are over, the count is made whatever has arrived.
        plant_loss: drop one row before the count, to show that the count sees it.
    """

    folder: Path
    service: ServiceName = ServiceName.PUBSUB
    target: Target = field(default_factory=Target)
    messages: int = 50_000
    kills: int = 3
    seed: int = 0
    minutes: float = 10.0
    plant_loss: bool = False
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    """Tells this run's messages and resources from all others."""

    @property
    def batch_limit(self) -> str:
        """The most messages of a batch: enough batches that kills come between them."""
        return str(max(self.messages // _LIMIT_SHARE, 1))


@dataclass(frozen=True, slots=True)
class Query:
    """A query of the demo.

    Attributes:
        columns: SQL expressions of its text, place and position, for a sink of files.
        sink: options of a sink of the same format instead; then the service itself reads back what was written.
    """

    name: str
    source: str
    options: Mapping[str, str] = field(repr=False)
    columns: tuple[str, str, str] = ("", "", "")
    sink: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Bound:
    """What a run costs at most, in US dollars, and the prices that this assumes."""

    dollars: float
    assumes: str

    def check(self, most: float) -> None:
        """Refuse a run that may cost more than the user allows."""
        if self.dollars > most:
            what = f"The run may cost {self.dollars:.2f} USD, and at most {most:.2f} is allowed"
            raise OptionError("DEMO_COST", what, "--max-cost")


class Service(ABC):
    """A service in a demonstration; `open` starts or reaches it, and its exit stack removes what was created.

    Attributes:
        repeated: by number, how often a message was published again because a request was not answered.
        ordered: whether the messages of a key must come in their order.
        notes: what a reader of the result has to know.
        left_behind: what was created and could not be removed.
    """

    failpoints: str = ""
    """Set for the first start of the query."""

    def __init__(self, plan: DemoPlan) -> None:
        self.plan, self.target = plan, plan.target
        self.name = f"{PREFIX}{plan.run}"
        self.began_ms = round(time.time() * 1000)
        self.repeated: Counter[int] = Counter()
        self.ordered = True
        self.notes: list[str] = []
        self.left_behind: list[str] = []

    @property
    @abstractmethod
    def server(self) -> str:
        """What it runs against, for the record; no address."""

    @abstractmethod
    def creates(self) -> list[str]:
        """Name what is created, and removed at the end."""

    @abstractmethod
    def rights(self) -> list[str]:
        """Name the rights that a run against a real service needs."""

    def bound(self) -> Bound:
        """Return what a run costs at most."""
        return Bound(0.0, "nothing is billed for a server of your own")

    @abstractmethod
    def check(self) -> None:
        """Check the options, without a call to the service."""

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

    def delivered_again(self) -> int | None:
        """Return how many deliveries the query dropped as duplicates; None for services that deliver none."""
        return None

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
            for pause in (*_REMOVE_PAUSES, 0.0):
                try:
                    remove()
                except ConnectorError as error:
                    if isinstance(error, SourceGoneError) or error.code in _NEVER_CREATED:
                        return
                    if error.transient and pause:
                        time.sleep(pause)
                        continue
                    self.left_behind.append(f"{what}: {error.what}")
                return

        stack.callback(end)


def hours(minutes: float) -> int:
    """Return the most hours that are billed: each that has begun, and one more for the start within an hour."""
    return math.ceil(minutes / 60) + 1
