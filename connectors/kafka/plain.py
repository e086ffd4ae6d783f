"""The plain way to read: one object of confluent-kafka for each record. It can do everything, and is the reference."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from connectors.kafka.client import client_exception, open_consumer, sdk
from connectors.kafka.client_errors import LastWord, connector_error, error_name
from connectors.kafka.decode import record_batch
from connectors.kafka.fetched import Event, Fetched
from connectors.kafka.offsets import TopicPartition

if TYPE_CHECKING:
    from connectors.kafka.settings import ClientSettings

__all__ = ["PlainRecords", "PlainSource"]

_MOST_SECONDS: Final = 2_000_000.0
"""The client takes milliseconds as a number of C, with a sign."""
_LOOK_SECONDS: Final = 1.0


class PlainRecords(Fetched):
    """Records as messages of confluent-kafka."""

    def __init__(self, messages: Sequence[Any], events: Sequence[Event] = ()) -> None:
        super().__init__(np.fromiter((each.offset() for each in messages), np.int64, len(messages)), events)
        self._messages = messages

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return sum(map(len, self._messages))

    def cut(self, first: int, last: int) -> Self:
        """Some of the records."""
        return type(self)(self._messages[first:last])

    def batch(self, parts: Sequence[Self], where: TopicPartition, *, headers: bool) -> pa.RecordBatch:
        """The rows of several of these."""
        messages = [message for part in parts for message in part._messages]  # noqa: SLF001 - of this class
        return record_batch(messages, where.topic, where.partition, headers=headers)

    def free(self) -> None:
        """Nothing: Python does."""


class PlainSource:
    """A consumer with at most one partition.

    Args:
        settings: of the client.
        own: settings that win over these.
    """

    def __init__(self, settings: ClientSettings, own: Mapping[str, str]) -> None:
        self.last_word = word = LastWord()

        def hear(error: Any) -> None:  # not a method: the client holds it, and this object holds the client
            word.hear(error_name(error), error.str())

        self._consumer = open_consumer(settings, {**own, "error_cb": hear})
        self._known: set[TopicPartition] = set()

    def assign(self, where: TopicPartition, position: int) -> None:
        """Read a partition from a position, and no other."""
        if where not in self._known:
            # Else a partition that came since is looked for minutes later only.
            with contextlib.suppress(client_exception()):
                topic = self._consumer.list_topics(where.topic, timeout=_LOOK_SECONDS).topics[where.topic]
                self._known |= {TopicPartition(where.topic, number) for number in topic.partitions}
        self._consumer.assign([sdk().TopicPartition(where.topic, where.partition, position)])

    def unassign(self) -> None:
        """Read nothing; a client that refuses has ended anyway."""
        with contextlib.suppress(client_exception()):
            self._consumer.unassign()

    def fetch(self, most: int, seconds: float) -> PlainRecords:
        """The next records and events."""
        found = self._consumer.consume(most, timeout=seconds)
        errors = [each for each in found if each.error() is not None]
        if not errors:
            return PlainRecords(found)
        events = [
            Event(error_name(each.error()), each.error().str(), _offset(each), each.error().retriable(), _where(each))
            for each in errors
        ]
        return PlainRecords([each for each in found if each.error() is None], events)

    def position(self, where: TopicPartition) -> int:
        """Behind what the client gave or left out."""
        (found,) = self._consumer.position([sdk().TopicPartition(where.topic, where.partition)])
        return int(found.offset)

    def offset_of(self, where: TopicPartition, word: int, seconds: float) -> int:
        """The offset that a word stands for; Kafka takes the words where times stand."""
        partition = sdk().TopicPartition(where.topic, where.partition, word)
        try:
            (found,) = self._consumer.offsets_for_times([partition], timeout=min(seconds, _MOST_SECONDS))
        except client_exception() as error:
            raise connector_error(error.args[0], str(where)) from None
        if found.error is not None:
            raise connector_error(found.error, str(where))
        return int(found.offset)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


def _where(message: Any) -> TopicPartition | None:
    topic = message.topic()
    return None if topic is None else TopicPartition(topic, message.partition())


def _offset(message: Any) -> int:
    offset = message.offset()
    return -1 if offset is None else int(offset)
