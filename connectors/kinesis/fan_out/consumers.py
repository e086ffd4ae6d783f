"""The registered consumers that subscriptions belong to: found, made, waited for; never removed unless that is asked.

Registering is not idempotent and takes its time, an ARN changes when a consumer is made anew, and a name may just be on
its way out. So the service is asked again and again what there is, until there is a consumer that is ACTIVE.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from connectors.core.errors import ConnectorError, OptionError, ServiceUnavailableError
from connectors.core.retry import Backoff, RetryPolicy, is_transient
from connectors.kinesis.client.errors import IN_USE, NOT_FOUND
from connectors.kinesis.options.fan_out import check_consumer_of
from connectors.kinesis.source.scheduler import Job, Jobs

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.options.source import KinesisReadOptions

__all__ = ["StreamConsumers", "active_consumer", "registered_consumer"]

_AGAIN_SECONDS: Final = 5.0

_LOOKS: Final = RetryPolicy(initial_seconds=0.2, cap_seconds=2.0)


def active_consumer(client: KinesisClient, stream_arn: str, name: str, *, register: bool) -> str:
    """The ARN of a consumer that is ACTIVE; looks once, and makes it where it is missing.

    Args:
        client: calls the service.
        stream_arn: of the stream.
        name: of the consumer, or its ARN.
        register: make it when it is not there.

    Raises:
        OptionError: it is not there, and must not be made; or it is one of another stream.
        ServiceUnavailableError: it is not ACTIVE yet.
        ConnectorError: a call failed.
    """
    where = f"{stream_arn}, {name}"
    found = registered_consumer(client, stream_arn, name, register=register)
    if found is None:
        _register(client, stream_arn, name)
        raise _not_yet("it was registered just now", where)
    if found["ConsumerStatus"] != "ACTIVE":
        raise _not_yet(f"its status is {found['ConsumerStatus']}", where)
    return str(found["ConsumerARN"])


def registered_consumer(
    client: KinesisClient, stream_arn: str, name: str, *, register: bool
) -> Mapping[str, str] | None:
    """A consumer as the service describes it, in whatever status; None when it is not there and may be made.

    Args:
        client: calls the service.
        stream_arn: of the stream.
        name: of the consumer, or its ARN.
        register: it may be made.

    Raises:
        OptionError: it is not there, and must not be made; or it is one of another stream.
        ConnectorError: the call failed.
    """
    where = f"{stream_arn}, {name}"
    named = {"StreamARN": stream_arn, "ConsumerName": name}
    if name.startswith("arn:"):
        check_consumer_of(stream_arn, name)
        named = {"ConsumerARN": name}
    try:
        found: Mapping[str, str] = client.call("describe_stream_consumer", where, **named)["ConsumerDescription"]
    except ConnectorError as error:
        if error.code != NOT_FOUND:
            raise
        if not register:
            raise OptionError(
                "KINESIS_NO_CONSUMER",
                "The consumer that the option consumerARN names is not registered",
                where,
                "Register it, or give consumerName instead, which registers one.",
            ) from None
        return None
    return found


def _register(client: KinesisClient, stream_arn: str, name: str) -> None:
    try:
        client.call("register_stream_consumer", f"{stream_arn}, {name}", StreamARN=stream_arn, ConsumerName=name)
    except ConnectorError as error:
        # Somebody else has just made it, or one of this name is still being removed.
        if error.code != IN_USE:
            raise


def _not_yet(what: str, where: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "KINESIS_CONSUMER_NOT_ACTIVE",
        f"The consumer is not ACTIVE: {what}",
        where,
        "Wait, or raise registerConsumerTimeoutInterval.",
    )


@dataclass(slots=True)
class _Consumer:
    """A consumer that is looked for.

    Attributes:
        name: its name or ARN.
        arn: its ARN, when it is ACTIVE.
        job: the looks for it.
        asked: when they began.
        backoff: the time between them.
    """

    name: str
    arn: str | None = None
    job: Job | None = None
    asked: float = -_AGAIN_SECONDS
    backoff: Backoff = field(default_factory=lambda: Backoff(_LOOKS))


class StreamConsumers:
    """The consumers of a query's streams, found and made in the background.

    Args:
        options: the parsed options.
        client: calls the service.
        jobs: does the work.
        found: called with the ARN of a stream whose consumer is ACTIVE.
    """

    def __init__(
        self, options: KinesisReadOptions, client: KinesisClient, jobs: Jobs, found: Callable[[str], None]
    ) -> None:
        self._options = options
        self._client = client
        self._jobs = jobs
        self._found = found
        self._lock = threading.Lock()
        self._consumers: dict[str, _Consumer] = {}

    def arn(self, stream_arn: str) -> str | None:
        """The ARN of a stream's consumer, once it is ACTIVE."""
        consumer = self._consumers.get(stream_arn)
        return None if consumer is None else consumer.arn

    def arns(self) -> list[str]:
        """The ARNs of all that are known."""
        return [each.arn for each in list(self._consumers.values()) if each.arn is not None]

    def want(self, stream_arn: str, stream: str) -> None:
        """See that a stream, by its name or ARN as in the options, has a consumer that is ACTIVE."""
        with self._lock:
            if stream_arn not in self._consumers:
                place = self._options.streams.index(stream)
                self._consumers[stream_arn] = _Consumer(self._options.consumers[place])
            self._look_for(stream_arn)

    def gone(self, stream_arn: str) -> None:
        """Somebody may have removed the consumer: look again."""
        with self._lock:
            consumer = self._consumers[stream_arn]
            if consumer.job is None:
                consumer.arn = None
                self._look_for(stream_arn)

    def _look_for(self, stream_arn: str) -> None:
        consumer = self._consumers[stream_arn]
        if consumer.arn is None and consumer.job is None:
            consumer.job = Job(partial(self._find, stream_arn, consumer))
            self._jobs.add(consumer.job, max(0.0, consumer.asked + _AGAIN_SECONDS - time.monotonic()))

    def _find(self, stream_arn: str, consumer: _Consumer) -> float | None:
        """Look once; in how many seconds to look again. Waiting here would keep a thread from the shards."""
        if consumer.backoff.failures == 0:
            consumer.asked = time.monotonic()
        register = self._options.consumer_name is not None
        again: float | None = None
        try:
            consumer.arn = active_consumer(self._client, stream_arn, consumer.name, register=register)
        except ConnectorError as error:
            again = self._again_after(error, consumer)
            if again is None:
                raise
        finally:
            if again is None:
                consumer.backoff.reset()
                consumer.job = None
        if again is None:
            self._found(stream_arn)
        return again

    def _again_after(self, error: ConnectorError, consumer: _Consumer) -> float | None:
        """In how many seconds to look again after an error; None when that is too late, or cannot help."""
        delay = consumer.backoff.next_delay_seconds(error)
        is_late = time.monotonic() + delay > consumer.asked + self._options.register_timeout
        return None if is_late or not is_transient(error) else delay
