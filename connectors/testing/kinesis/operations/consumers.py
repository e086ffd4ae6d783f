"""The operations on consumers with enhanced fan-out: register, describe, list and deregister them."""

from __future__ import annotations

from typing import Any

from connectors.testing.clock import SECOND
from connectors.testing.kinesis.model.rules import ACCOUNT, Arguments, ServiceError, invalid
from connectors.testing.kinesis.model.state import KinesisState, read_token, write_token
from connectors.testing.kinesis.model.streams import Consumer, Stream

__all__ = ["ConsumerOperations", "find_consumer"]

_MOST_CONSUMERS = 20
_MOST_CREATING = 5
_MOST_LISTED = 10_000
_LISTED = 100


def find_consumer(stream: Stream, arguments: Arguments) -> Consumer:
    """The consumer that a call is about, by its ARN or name."""
    arn, name = arguments.optional_text("ConsumerARN"), arguments.optional_text("ConsumerName")
    if arn is None and name is None:
        raise invalid("Either ConsumerARN, or StreamARN and ConsumerName, must be provided.")
    for consumer in stream.consumers.values():
        if arn in {None, consumer.arn} and name in {None, consumer.name}:
            return consumer
    message = f"Consumer {arn or name} under stream {stream.name} in account {ACCOUNT} not found."
    raise ServiceError("ResourceNotFoundException", message)


class ConsumerOperations:
    """Each public method is an operation of the API."""

    def __init__(self, state: KinesisState) -> None:
        self._state = state
        self._last_created = 0

    def register_stream_consumer(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """RegisterStreamConsumer; its ARN has the second of its creation, so that no two are the same."""
        stream = self._state.stream(arguments, now)
        name = arguments.name("ConsumerName")
        if name in stream.consumers:
            message = f"Consumer {name} under stream {stream.name} already exists for account {ACCOUNT}."
            raise ServiceError("ResourceInUseException", message)
        creating = sum(consumer.status == "CREATING" for consumer in stream.consumers.values())
        if len(stream.consumers) >= _MOST_CONSUMERS:
            message = f"Stream {stream.name} has {len(stream.consumers)} registered consumers already."
            raise ServiceError("LimitExceededException", message)
        if creating >= _MOST_CREATING:
            message = f"Stream {stream.name} has {creating} consumers that are CREATING."
            raise ServiceError("LimitExceededException", message)
        second = self._last_created = max(now // SECOND, self._last_created + 1)
        consumer = Consumer(name, f"{stream.arn}/consumer/{name}:{second}", second)
        stream.consumers[name] = consumer

        def activate(_now: int) -> None:
            if consumer.status == "CREATING":
                consumer.status = "ACTIVE"

        answer = {"Consumer": consumer.described()}
        self._state.after_transition(now, activate)
        return answer

    def describe_stream_consumer(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """DescribeStreamConsumer."""
        stream = self._state.stream(arguments, now)
        consumer = find_consumer(stream, arguments)
        return {"ConsumerDescription": {**consumer.described(), "StreamARN": stream.arn}}

    def deregister_stream_consumer(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """DeregisterStreamConsumer; its subscriptions end."""
        stream = self._state.stream(arguments, now)
        consumer = find_consumer(stream, arguments)
        consumer.status = "DELETING"

        def vanish(now: int) -> None:
            stream.consumers.pop(consumer.name, None)
            message = f"Consumer {consumer.name} was deregistered."
            for subscription in list(consumer.subscriptions.values()):
                subscription.fail("ResourceNotFoundException", message)
            del now

        self._state.after_transition(now, vanish)
        return {}

    def list_stream_consumers(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """ListStreamConsumers, in pages by name."""
        stream = self._state.stream(arguments, now)
        limit = arguments.optional_whole("MaxResults", 1, _MOST_LISTED) or _LISTED
        after = ""
        token = arguments.optional_text("NextToken")
        if token is not None:
            values = read_token(token, 2)
            if values is None or values[0] != "consumers":
                raise invalid("NextToken is not legal.")
            after = values[1]
        names = sorted(name for name in stream.consumers if name > after)
        answer: dict[str, Any] = {"Consumers": [stream.consumers[name].described() for name in names[:limit]]}
        if len(names) > limit:
            answer["NextToken"] = write_token("consumers", names[limit - 1])
        return answer
