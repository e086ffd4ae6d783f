"""What a consumer has fetched: records of one partition, and events beside them; the seam between the two ways to read.

`connectors.kafka.plain` has one Python object a record and can do everything; `connectors.kafka.native` has none and is
several times faster. They are held against each other by tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pyarrow as pa

from connectors.kafka.client_errors import LastWord
from connectors.kafka.offsets import TopicPartition

__all__ = ["Event", "Fetched", "RecordSource"]


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
