"""What a consumer has fetched, and the plain path: one Python object of confluent-kafka for each record.

The plain path supports everything and is the reference; `connectors.kafka.source.native_records` needs no object for a
record and is several times faster. Tests compare the two.
"""

from __future__ import annotations

import contextlib
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.kafka.client.errors import LastWord, connector_error
from connectors.kafka.client.factory import client_exception, open_consumer, sdk
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import ClientSettings

RecordHeaders = list[tuple[str, bytes | None]] | None


@dataclass(frozen=True, slots=True)
class Event:
    """The end of a partition, or an error, by librdkafka's name and description of it.

    Attributes:
        offset: below 0 if it means nothing.
        partition: perhaps one that the client no longer reads; None if it is about none.
    """

    name: str
    text: str
    offset: int
    retriable: bool = False
    partition: TopicPartition | None = None


class Fetched(ABC):
    """Records in the order of their ``offsets``, a numpy array, and the events that came with them."""

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
        """Return the records from one index up to, but not including, another, without events."""

    @classmethod
    @abstractmethod
    def batch(cls, parts: Sequence[Self], partition: TopicPartition, *, headers: bool) -> pa.RecordBatch:
        """Return the rows of several of these, in order."""

    @abstractmethod
    def free(self) -> None:
        """Release the records to the client: nobody uses them any more."""


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
"""What `connectors.core.arrow.arrow_schema` makes of the source's schema; a test compares them."""
SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field("headers", HEADERS))
_LARGEST_MS: Final = (2**63 - 1) // 1000
_MOST_SECONDS: Final = 2_000_000.0  # the client takes milliseconds as a signed C int
_LOOKUP_SECONDS: Final = 1.0


def record_batch(
    keys: pa.Array,
    values: pa.Array,
    partition: TopicPartition,
    offsets: Any,
    times: tuple[Any, Any],
    headers: Sequence[RecordHeaders] | None,
) -> pa.RecordBatch:
    """Build the rows of some records of one partition, without the column ``headers`` where these are None.

    ``times`` are numpy arrays of milliseconds and of librdkafka's types of timestamps, 0 for none.
    """
    milliseconds, kinds = times
    columns = [
        keys,
        values,
        *_partition_columns(partition, len(offsets)),
        pa.array(offsets),
        time_column(np.where(kinds == 0, np.int64(-1), milliseconds)),
        pa.array(kinds - np.int32(1)),  # as Spark counts them
    ]
    if headers is None:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return pa.RecordBatch.from_arrays([*columns, header_column(headers)], schema=SCHEMA_WITH_HEADERS)


@lru_cache(maxsize=4)
def _partition_columns(partition: TopicPartition, rows: int) -> tuple[pa.Array, pa.Array]:
    """Build columns that most batches of a range share."""
    topics = pa.repeat(pa.scalar(partition.topic, pa.string()), rows)
    return topics, pa.array(np.full(rows, partition.partition, np.int32))


def malformed_headers(partition: TopicPartition, offset: int) -> ConnectorError:
    """Return the error for a record whose headers cannot be read."""
    return ConnectorError(
        "KAFKA_MALFORMED_HEADERS",
        f"The headers of the record at offset {offset} cannot be read: they are damaged, or a key is not UTF-8",
        str(partition),
        "Do without CONNECTORS_NO_FAST_PATH and OAUTHBEARER: the fast path replaces what is not UTF-8. Or read without "
        "includeHeaders.",
    )


def time_column(milliseconds: Any) -> pa.Array:
    """Return milliseconds as timestamps; -1, for none, stays, as in Spark's own source.

    NULL stands for a number that microseconds since 1970 do not hold, such as one of nanoseconds. Spark's own source
    gives no row there and ends the query, at each start again: any producer could stop every reader of its topic.
    """
    wrong = (milliseconds > _LARGEST_MS) | (milliseconds < -_LARGEST_MS)
    times = pa.array(milliseconds * 1000, mask=wrong if wrong.any() else None)
    return times.cast(pa.timestamp("us", tz="UTC"))


def header_column(headers: Sequence[RecordHeaders]) -> pa.Array:
    """Return headers in their order, with duplicates; null where a record has none."""
    counts = np.fromiter((len(row or ()) for row in headers), np.int32, len(headers))
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    pairs = [pair for row in headers for pair in row or ()]
    values = pa.StructArray.from_arrays(
        [pa.array([key for key, _ in pairs], pa.string()), pa.array([value for _, value in pairs], pa.binary())],
        fields=list(HEADERS.value_type),
    )
    missing = pa.array([not row for row in headers], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends), values, type=HEADERS, mask=missing)


class PlainRecords(Fetched):
    """Records as messages of confluent-kafka."""

    def __init__(self, messages: Sequence[Any], events: Sequence[Event] = ()) -> None:
        super().__init__(np.fromiter((message.offset() for message in messages), np.int64, len(messages)), events)
        self.messages = messages

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return sum(map(len, self.messages))

    def cut(self, first: int, last: int) -> Self:
        """Return some of the records."""
        return type(self)(self.messages[first:last])

    @classmethod
    def batch(cls, parts: Sequence[Self], partition: TopicPartition, *, headers: bool) -> pa.RecordBatch:
        """Return the rows of several of these."""
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

    Records are released before `unassign` and `close`. ``last_word`` is what the client reported of its connections.
    """

    def __init__(self, settings: ClientSettings, own: Mapping[str, str]) -> None:
        self.last_word = LastWord()
        self._consumer = open_consumer(settings, {**own, "error_cb": self.last_word.receive_error})
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
        """Close the connections."""
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
