"""The registered consumers of subscriptions: found, registered and waited for; deregistered only on demand.

Registering is not idempotent and takes time, a recreated consumer has another ARN, and one may be about to be deleted.
So the service is asked until there is an ACTIVE consumer.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from connectors.core.errors import ConnectorError, OptionError, ServiceUnavailableError
from connectors.core.retry import Backoff, Outage
from connectors.kinesis.client.errors import CONSUMER_LIMIT, IN_USE, NOT_FOUND
from connectors.kinesis.options.source import check_consumer_of
from connectors.kinesis.source.shard_monitor import Job, Scheduler

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.options.source import KinesisReadOptions

_AGAIN_SECONDS: Final = 5.0
_MOST_CONSUMERS: Final = 20
"""Of a stream, but for streams with on-demand Advantage."""
_NOT_ACTIVE: Final = "KINESIS_CONSUMER_NOT_ACTIVE"


def active_consumer(client: KinesisClient, stream_arn: str, name: str, *, register: bool) -> str:
    """Return the ARN of an ACTIVE consumer by its name or ARN; asks once, and registers a missing one if allowed.

    Raises a `ServiceUnavailableError` while it is not ACTIVE, and an `OptionError` if it must not be registered or is
    another stream's.
    """
    where = f"{stream_arn}, {name}"
    named = {"StreamARN": stream_arn, "ConsumerName": name}
    if name.startswith("arn:"):
        check_consumer_of(stream_arn, name)
        named = {"ConsumerARN": name}
    try:
        consumer: Mapping[str, str] = client.call("describe_stream_consumer", where, **named)["ConsumerDescription"]
    except ConnectorError as error:
        if error.code != NOT_FOUND:
            raise
        if not register:
            what = "The consumer that the option consumerARN names is not registered"
            raise OptionError("KINESIS_NO_CONSUMER", what, where) from None
        _register(client, stream_arn, name, where)
        what = "it was registered just now"
    else:
        if consumer["ConsumerStatus"] == "ACTIVE":
            return consumer["ConsumerARN"]
        what = f"its status is {consumer['ConsumerStatus']}"
    raise ServiceUnavailableError(_NOT_ACTIVE, f"The consumer is not ACTIVE: {what}", where)


def _register(client: KinesisClient, stream_arn: str, name: str, where: str) -> None:
    try:
        client.call("register_stream_consumer", where, StreamARN=stream_arn, ConsumerName=name)
    except ConnectorError as error:
        if error.code == CONSUMER_LIMIT:
            check_room(client, stream_arn, where)
        # Somebody else has just registered it, or one of this name is still being removed.
        if error.code != IN_USE:
            raise


def check_room(client: KinesisClient, stream_arn: str, where: str) -> None:
    """Raise a `ConnectorError` if a stream is full of consumers and none is being created or removed.

    Unknown where the consumers cannot be listed, or the stream may have more than 20.
    """
    try:
        status = _statuses(client, stream_arn)
    except ConnectorError:
        return
    total = sum(status.values())
    if total >= _MOST_CONSUMERS and status["ACTIVE"] == total:
        what = f"The stream has {total} registered consumers, and accepts no more"
        raise ConnectorError(CONSUMER_LIMIT, what, where)


def _statuses(client: KinesisClient, stream_arn: str) -> Counter[str]:
    statuses: Counter[str] = Counter()
    more: dict[str, str] = {}
    while True:
        page = client.call("list_stream_consumers", stream_arn, StreamARN=stream_arn, MaxResults=100, **more)
        statuses.update(consumer["ConsumerStatus"] for consumer in page["Consumers"])
        if not page.get("NextToken"):
            return statuses
        more = {"NextToken": page["NextToken"]}


@dataclass(slots=True)
class _Consumer:
    """A consumer that is wanted, by its name or ARN; ``arn`` is set when it is ACTIVE, ``job`` until then."""

    name: str
    outage: Outage
    arn: str | None = None
    job: Job | None = None
    asked: float = -_AGAIN_SECONDS
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=0.2, cap_seconds=2.0))

    def settle(self) -> None:
        self.backoff.reset()
        self.outage.reset()
        self.job = None


class StreamConsumers:
    """Registers a query's consumers in the background; ``active`` is called with the ARN of a stream that has one."""

    def __init__(
        self, options: KinesisReadOptions, client: KinesisClient, scheduler: Scheduler, active: Callable[[str], None]
    ) -> None:
        self._options = options
        self._client = client
        self._scheduler = scheduler
        self._active = active
        self._lock = threading.Lock()
        self._consumers: dict[str, _Consumer] = {}

    def arn(self, stream_arn: str) -> str | None:
        consumer = self._consumers.get(stream_arn)
        return None if consumer is None else consumer.arn

    def arns(self) -> list[str]:
        return [consumer.arn for consumer in list(self._consumers.values()) if consumer.arn is not None]

    def want(self, stream_arn: str, stream: str) -> None:
        """Get a consumer for a stream; ``stream`` is its name or ARN as in the options."""
        with self._lock:
            if stream_arn not in self._consumers:
                name = self._options.consumers[self._options.streams.index(stream)]
                self._consumers[stream_arn] = _Consumer(name, Outage(self._options.outage_rule))
            self._ask_for(stream_arn)

    def gone(self, stream_arn: str) -> None:
        """Ask again: somebody may have removed the consumer."""
        with self._lock:
            consumer = self._consumers[stream_arn]
            if consumer.job is None:
                consumer.arn = None
                self._ask_for(stream_arn)

    def _ask_for(self, stream_arn: str) -> None:
        consumer = self._consumers[stream_arn]
        if consumer.arn is None and consumer.job is None:
            consumer.job = Job(partial(self._ask, stream_arn, consumer))
            self._scheduler.add(consumer.job, max(0.0, consumer.asked + _AGAIN_SECONDS - time.monotonic()))

    def _ask(self, stream_arn: str, consumer: _Consumer) -> float | None:
        """Ask once; return the seconds to the next time. Waiting here would keep a thread from the shards."""
        if consumer.backoff.failures == 0:
            consumer.asked = time.monotonic()
        register = self._options.consumer_name is not None
        try:
            consumer.arn = active_consumer(self._client, stream_arn, consumer.name, register=register)
        except ConnectorError as error:
            try:
                return self._pause(consumer, error)
            except ConnectorError:
                consumer.settle()
                raise
        consumer.settle()
        self._active(stream_arn)
        return None

    def _pause(self, consumer: _Consumer, error: ConnectorError) -> float:
        """Return the seconds to wait; raises a permanent error, and one that lasts too long. Outages don't count."""
        if not error.transient or error.code not in {_NOT_ACTIVE, IN_USE, CONSUMER_LIMIT}:
            delay = consumer.outage.next_delay_seconds(error)
            consumer.asked = time.monotonic() + delay
            return delay
        consumer.outage.reset()
        delay = consumer.backoff.next_delay_seconds(error)
        if time.monotonic() + delay > consumer.asked + self._options.register_seconds:
            raise error
        return delay
