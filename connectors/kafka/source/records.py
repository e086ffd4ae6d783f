"""The plain path of a read: one Python object of confluent-kafka for each record.

It supports everything and is the reference; `connectors.kafka.native` needs no object for a record and is several times
faster. Tests compare the two.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from connectors.kafka.client.errors import ConnectionErrors, connector_error
from connectors.kafka.client.factory import client_exception, open_consumer, sdk
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.schema import Event, Fetched, RecordHeaders, malformed_headers, record_batch

_MOST_SECONDS: Final = 2_000_000.0  # the client takes milliseconds as a signed C int
_LOOKUP_SECONDS: Final = 1.0


class PlainRecords(Fetched):
    """Records as messages of confluent-kafka."""

    def __init__(self, messages: Sequence[Any], events: Sequence[Event] = ()) -> None:
        super().__init__(np.fromiter((message.offset() for message in messages), np.int64, len(messages)), events)
        self.messages = messages

    @property
    def size(self) -> int:
        return sum(map(len, self.messages))

    def cut(self, first: int, last: int) -> Self:
        return type(self)(self.messages[first:last])

    @classmethod
    def batch(cls, parts: Sequence[Self], partition: TopicPartition, *, headers: bool) -> pa.RecordBatch:
        messages = [message for part in parts for message in part.messages]
        times = [message.timestamp() for message in messages]
        return record_batch(
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.value() for message in messages], pa.binary()),
            partition,
            np.concatenate([part.offsets for part in parts]),
            (
                np.fromiter((time for _, time in times), np.int64, len(times)),
                np.fromiter((kind for kind, _ in times), np.int32, len(times)),
            ),
            [_headers(message, partition) for message in messages] if headers else None,
        )

    def free(self) -> None:
        """Do nothing: Python frees them."""


def _headers(message: Any, partition: TopicPartition) -> RecordHeaders:
    try:
        headers: RecordHeaders = _call_headers(message)
    except (SystemError, UnicodeDecodeError):  # what the client raises for a key that is not UTF-8
        raise malformed_headers(partition, message.offset()) from None
    return headers


# For a key that is not UTF-8 the client returns a broken tuple with an exception set. The interpreter checks for that
# only in the first calls of a line, before it specializes them; a call from C is always checked.
_call_headers = operator.methodcaller("headers")


class PlainSource:
    """A consumer of at most one partition; ``own`` settings win over the user's.

    Records are released before `unassign` and `close`.
    """

    def __init__(self, settings: ClientSettings, own: Mapping[str, str]) -> None:
        self.connection_errors = ConnectionErrors()
        self._consumer = open_consumer(settings, {**own, "error_cb": self.connection_errors.receive_error})
        self._looked_up: set[TopicPartition] = set()

    def assign(self, partition: TopicPartition, position: int) -> None:
        """Read a partition from a position, and no other."""
        topic = partition.topic
        if partition not in self._looked_up:
            # Else the client notices a new partition only minutes later.
            with contextlib.suppress(client_exception()):
                numbers = self._consumer.list_topics(topic, timeout=_LOOKUP_SECONDS).topics[topic].partitions
                self._looked_up |= {TopicPartition(topic, number) for number in numbers}
        self._consumer.assign([sdk().TopicPartition(topic, partition.partition, position)])

    def unassign(self) -> None:
        """Read nothing; a client that refuses has ended anyway."""
        with contextlib.suppress(client_exception()):
            self._consumer.unassign()

    def fetch(self, most: int, seconds: float) -> PlainRecords:
        """Return the next records and events, after ``seconds`` or as soon as there are ``most``."""
        messages = self._consumer.consume(most, timeout=seconds)
        failed = [message for message in messages if message.error() is not None]
        if not failed:
            return PlainRecords(messages)
        records = [message for message in messages if message.error() is None]
        return PlainRecords(records, [_event(message) for message in failed])

    def position(self, partition: TopicPartition) -> int:
        """Return the offset after the last record or end of a transaction that was fetched or skipped, else below 0."""
        (response,) = self._consumer.position([sdk().TopicPartition(partition.topic, partition.partition)])
        return int(response.offset)

    def offset_of(self, partition: TopicPartition, sentinel: int, seconds: float) -> int:
        """Ask once for the offset of `EARLIEST`, or of `LATEST` under the isolation level."""
        request = sdk().TopicPartition(partition.topic, partition.partition, sentinel)  # in the place of a time
        try:
            (response,) = self._consumer.offsets_for_times([request], timeout=min(seconds, _MOST_SECONDS))
        except client_exception() as error:
            raise connector_error(error.args[0], str(partition)) from None
        if response.error is not None:
            raise connector_error(response.error, str(partition))
        return int(response.offset)

    def close(self) -> None:
        self._consumer.close()


def _event(message: Any) -> Event:
    error, topic, offset = message.error(), message.topic(), message.offset()
    return Event(
        error.name(),
        error.str(),
        -1 if offset is None else int(offset),
        error.retriable(),
        None if topic is None else TopicPartition(topic, message.partition()),
    )
