"""What a consumer has fetched, and the plain way to read it, with one Python object of confluent-kafka for each record.

It can do everything and is the reference; `connectors.kafka.source.native_records` has no object for a record and is
several times faster. Tests hold them against each other.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np
import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.kafka.client.errors import LastWord, connector_error, error_name
from connectors.kafka.client.factory import client_exception, open_consumer, sdk
from connectors.kafka.offsets import TopicPartition

if TYPE_CHECKING:
    from connectors.kafka.options.client import ClientSettings

__all__ = [
    "HEADERS",
    "SCHEMA",
    "SCHEMA_WITH_HEADERS",
    "Event",
    "Fetched",
    "PlainRecords",
    "PlainSource",
    "RecordSource",
    "header_column",
    "malformed_headers",
    "record_batch",
    "time_column",
]


@dataclass(frozen=True, slots=True)
class Event:
    """Something else than a record: the end of the partition, or an error.

    Attributes:
        name: librdkafka's name of it, such as ``_PARTITION_EOF``.
        text: the same in words.
        offset: where, if that means something; below 0 if not.
        retriable: whether it may pass.
        where: the partition, which the client may have left since; None if it is of none.
    """

    name: str
    text: str
    offset: int
    retriable: bool = False
    where: TopicPartition | None = None


class Fetched(ABC):
    """Records in the order of their offsets, and events.

    Args:
        offsets: of the records, as an array of numpy.
        events: what came beside them.
    """

    def __init__(self, offsets: Any, events: Sequence[Event] = ()) -> None:
        self.offsets = offsets
        self.events = events

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of keys and values, about."""

    @abstractmethod
    def cut(self, first: int, last: int) -> Self:
        """The records from an index up to, not with, another; without events."""

    @abstractmethod
    def batch(self, parts: Sequence[Self], where: TopicPartition, *, headers: bool) -> pa.RecordBatch:
        """The rows of several of these, in their order.

        Raises:
            ConnectorError: a record's time does not fit in a timestamp.
        """

    @abstractmethod
    def free(self) -> None:
        """Give the records back to the client: nobody looks at them any more."""


class RecordSource(Protocol):
    """A consumer with at most one partition.

    Attributes:
        last_word: what it has said of its connections; it says so while it fetches.
    """

    last_word: LastWord

    def assign(self, where: TopicPartition, position: int) -> None:
        """Read a partition from a position, and no other."""

    def unassign(self) -> None:
        """Read nothing until the next `assign`; no record of the client is out."""

    def fetch(self, most: int, seconds: float) -> Fetched:
        """The next records and events; returns when there are ``most`` of them, or late."""

    def position(self, where: TopicPartition) -> int:
        """Behind the last record or end of a transaction that the client gave or left out; below 0 before the first."""

    def offset_of(self, where: TopicPartition, word: int, seconds: float) -> int:
        """The offset that `EARLIEST`, or under the isolation `LATEST`, stands for in a partition; asks once.

        Raises:
            ConnectorError: it cannot be had.
        """

    def close(self) -> None:
        """Close the connections; every record was given back."""


HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
"""What `connectors.core.arrow.arrow_schema` makes of the source's schema; a test holds the two together."""
SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field("headers", HEADERS))

_LARGEST_MS: Final = (2**63 - 1) // 1000
_NO_TYPE: Final = -1


def record_batch(messages: Sequence[Any], topic: str, partition: int, *, headers: bool) -> pa.RecordBatch:
    """The rows of some records of one partition.

    Args:
        messages: of confluent-kafka, none of which is an error.
        topic: where they come from.
        partition: where they come from.
        headers: with the column ``headers``.

    Raises:
        ConnectorError: a record's time does not fit in a timestamp, or the key of a header is not UTF-8.
    """
    rows = len(messages)
    times = [message.timestamp() for message in messages]
    kinds = np.fromiter((kind for kind, _ in times), np.int32, rows) + _NO_TYPE
    milliseconds = np.fromiter((time if kind else -1 for kind, time in times), np.int64, rows)
    offsets = np.fromiter((message.offset() for message in messages), np.int64, rows)
    columns = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.array(np.full(rows, partition, np.int32)),
        pa.array(offsets),
        time_column(milliseconds, offsets, topic, partition),
        pa.array(kinds),
    ]
    if headers:
        columns.append(header_column([_headers(message, topic, partition) for message in messages]))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS if headers else SCHEMA)


def _headers(message: Any, topic: str, partition: int) -> list[tuple[str, bytes | None]] | None:
    try:
        found: list[tuple[str, bytes | None]] | None = message.headers()
    except (SystemError, UnicodeDecodeError):  # what the client raises for such a key
        raise malformed_headers(topic, partition, message.offset()) from None
    return found


def malformed_headers(topic: str, partition: int, offset: int) -> ConnectorError:
    """The error for a record whose headers cannot be read."""
    return ConnectorError(
        "KAFKA_MALFORMED_HEADERS",
        f"The headers of the record at offset {offset} cannot be read: they are damaged, or a key is not UTF-8",
        f"{topic}-{partition}",
        "Do without CONNECTORS_NO_FAST_PATH and OAUTHBEARER: the fast path replaces what is not UTF-8. Or read without "
        "includeHeaders.",
    )


def time_column(milliseconds: Any, offsets: Any, topic: str, partition: int) -> pa.Array:
    """Times of records as timestamps; -1, for none, passes through as Spark's own source does.

    Raises:
        ConnectorError: a time does not fit; its producer may have sent nanoseconds.
    """
    if len(milliseconds) and (milliseconds.max() > _LARGEST_MS or milliseconds.min() < -_LARGEST_MS):
        first = int(np.flatnonzero((milliseconds > _LARGEST_MS) | (milliseconds < -_LARGEST_MS))[0])
        raise ConnectorError(
            "KAFKA_MALFORMED_RECORD_TIMESTAMP",
            f"The record at offset {int(offsets[first])} has the timestamp {int(milliseconds[first])}, which is no "
            "number of milliseconds since 1970",
            f"{topic}-{partition}",
            "Look at its producer: it may send microseconds or nanoseconds.",
        )
    return pa.array(milliseconds * 1000).cast(pa.timestamp("us", tz="UTC"))


def header_column(headers: Sequence[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    """Headers in their order, duplicates too; null where a record has none."""
    counts = np.fromiter((len(each or ()) for each in headers), np.int32, len(headers))
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    pairs = [pair for each in headers for pair in each or ()]
    values = pa.StructArray.from_arrays(
        [pa.array([key for key, _ in pairs], pa.string()), pa.array([value for _, value in pairs], pa.binary())],
        fields=list(HEADERS.value_type),
    )
    missing = pa.array([not each for each in headers], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends), values, type=HEADERS, mask=missing)


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
