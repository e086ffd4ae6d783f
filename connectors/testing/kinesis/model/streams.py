"""The things that a Kinesis stream is made of: shards and records, and how they are numbered."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from connectors.testing.clock import SECOND

__all__ = ["HASH_KEYS", "Consumer", "OpenSubscription", "Record", "Shard", "Stream"]

HASH_KEYS = 1 << 128
"""How many hash keys there are; a partition key has the MD5 of its UTF-8 form."""
_VERSION = 2
_BASE_BITS = 144
_COUNT_BITS = 80
_TIME_BITS = 44
_INDEX_BITS = 12
_STREAM_MASK = (1 << _INDEX_BITS) - 1


class Record:
    """A record of a shard, in the form in which it is sent."""

    __slots__ = ("arrival_ns", "encoded", "sequence", "size")

    def __init__(self, sequence: int, arrival_ns: int, size: int, encoded: bytes) -> None:
        self.sequence = sequence
        self.arrival_ns = arrival_ns
        self.size = size
        """Bytes of data and partition key: what the limits of the service count."""
        self.encoded = encoded
        """The JSON object of GetRecords and SubscribeToShard."""


class Shard:
    """A range of hash keys, and the records that were put there.

    Sequence numbers look like the service's: 56 decimal digits, made of the second of creation, the index of the shard,
    a count, a time, and a number of the stream. They grow within a shard, and those of a child are above those of its
    parents.

    Args:
        stream_number: tells the numbers of streams apart that were created in the same second.
        index: the number in its id.
        created_ns: server time.
        created_second: what stands in its sequence numbers; above that of its parents.
        first_hash: lowest hash key.
        last_hash: highest hash key.
        parents: ids of the shards it was split off or merged from.
    """

    def __init__(
        self,
        stream_number: int,
        index: int,
        created_ns: int,
        created_second: int,
        *,
        first_hash: int,
        last_hash: int,
        parents: tuple[str, ...] = (),
    ) -> None:
        self.stream_number = stream_number & _STREAM_MASK
        self.index = index
        self.id = f"shardId-{index:012d}"
        self.created_ns = created_ns
        self.created_second = created_second
        self.first_hash = first_hash
        self.last_hash = last_hash
        self.parents = parents
        self.children: list[Shard] = []
        self.closed_ns: int | None = None
        self.sequences: list[int] = []
        self.records: list[Record] = []
        self.trimmed_to = -1
        """The highest sequence number that was trimmed; -1 when none was."""
        self._count = 0
        self._renumbered_to: int | None = None
        self.starting = self._number(0, created_ns)
        self.last = self.starting
        """The highest number that was given out."""
        self.ending: int | None = None
        self.watchers: set[Callable[[int], None]] = set()
        """Called with the server time after each record, and at the end."""

    def _number(self, count: int, now: int) -> int:
        base = (_VERSION << 40) | (self.created_second << 4) | (self.index & 15)
        low = (now // SECOND << _TIME_BITS) | (self.index << _INDEX_BITS) | self.stream_number
        return (base << _BASE_BITS) | (count << _COUNT_BITS) | low

    def append(self, now: int, size: int, encoded: bytes) -> Record:
        """Add a record; ``encoded`` is completed with its sequence number and time of arrival."""
        sequence = self._next(now)
        head = b'{"SequenceNumber":"%d","ApproximateArrivalTimestamp":%d.%03d,' % (
            sequence,
            now // SECOND,
            now // 1_000_000 % 1000,
        )
        record = Record(sequence, now, size, head + encoded)
        self.sequences.append(sequence)
        self.records.append(record)
        self._tell(now)
        return record

    def _tell(self, now: int) -> None:
        for watcher in self.watchers:
            watcher(now)

    def _next(self, now: int) -> int:
        if self._renumbered_to is not None:
            self.last, self._renumbered_to = self._renumbered_to, self._renumbered_to + 1
        else:
            self._count += 1
            self.last = self._number(self._count, now)
        return self.last

    def renumber(self, first: int) -> None:
        """Give ``first``, and numbers one apart, to the records from now on; raises `ValueError` if it is too low."""
        if first <= self.last and (self.records or self.trimmed_to >= 0):
            message = f"the next sequence number of {self.id} must be above {self.last}"
            raise ValueError(message)
        self._renumbered_to = first
        if not self.sequences:
            self.starting = self.last = min(self.starting, first - 1)

    def progress(self, now: int) -> int:
        """A number that no record has: not below the last record, and below the next one."""
        return self.last if self._renumbered_to is not None else max(self.last, self._number(self._count, now))

    def owns(self, sequence: int) -> bool:
        """True if a sequence number is, or could be, one of this shard."""
        if self._renumbered_to is None:
            own = self._number(0, 0)
            stream_and_index = own & ((1 << _TIME_BITS) - 1)
            return (
                sequence >> _BASE_BITS == own >> _BASE_BITS and sequence & ((1 << _TIME_BITS) - 1) == stream_and_index
            )
        return self.starting <= sequence and (self.ending is None or sequence <= self.ending)

    def close(self, now: int, children: list[Shard]) -> None:
        """Take no more records."""
        self.closed_ns = now
        self.ending = self._next(now)
        self.children = children
        self._tell(now)

    def trim(self, horizon_ns: int) -> None:
        """Forget the records that arrived before a time."""
        if self.records and self.records[0].arrival_ns < horizon_ns:
            self.trim_count(bisect_left(self.records, horizon_ns, key=lambda record: record.arrival_ns))

    def trim_count(self, count: int) -> None:
        """Forget the oldest records."""
        if count:
            self.trimmed_to = self.sequences[count - 1]
            del self.sequences[:count]
            del self.records[:count]

    def place_after(self, sequence: int) -> int:
        """The place, among the kept records, of the first one above a sequence number."""
        return bisect_right(self.sequences, sequence)

    def place_at_time(self, time_ns: int) -> int:
        """The place, among the kept records, of the first one that arrived at a time or later."""
        return bisect_left(self.records, time_ns, key=lambda record: record.arrival_ns)

    def hash_range(self) -> dict[str, str]:
        """The range as the API shows it."""
        return {"StartingHashKey": str(self.first_hash), "EndingHashKey": str(self.last_hash)}

    def described(self) -> dict[str, Any]:
        """The shard as ListShards shows it."""
        numbers = {"StartingSequenceNumber": str(self.starting)}
        if self.ending is not None:
            numbers["EndingSequenceNumber"] = str(self.ending)
        parents = dict(zip(("ParentShardId", "AdjacentParentShardId"), self.parents, strict=False))
        return {"ShardId": self.id, **parents, "HashKeyRange": self.hash_range(), "SequenceNumberRange": numbers}

    def described_children(self) -> list[dict[str, Any]]:
        """The children as GetRecords and SubscribeToShard show them at the end of a closed shard."""
        return [
            {"ShardId": child.id, "ParentShards": list(child.parents), "HashKeyRange": child.hash_range()}
            for child in self.children
        ]


class OpenSubscription(Protocol):
    """A SubscribeToShard that is under way."""

    opened_ns: int
    events: int

    def fail(self, kind: str, message: str) -> None:
        """End it with an error inside of the stream."""

    def cut(self) -> None:
        """Cut its connection."""


@dataclass
class Consumer:
    """A consumer with enhanced fan-out.

    Attributes:
        subscriptions: those that are open, by shard.
        subscribed_ns: server time of the last SubscribeToShard that was accepted, by shard.
    """

    name: str
    arn: str
    created_second: int
    status: str = "CREATING"
    subscriptions: dict[str, OpenSubscription] = field(default_factory=dict)
    subscribed_ns: dict[str, int] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """The consumer as the API shows it."""
        return {
            "ConsumerName": self.name,
            "ConsumerARN": self.arn,
            "ConsumerStatus": self.status,
            "ConsumerCreationTimestamp": float(self.created_second),
        }


@dataclass
class Stream:
    """A stream.

    Attributes:
        number: of the streams that its server ever had.
        created_second: second of creation; a stream that is made again under its name gets a later one.
        on_demand: its mode; else it is provisioned.
        keys_ignored: records go to any shard, whatever their keys (record distribution strategy AUTO).
    """

    name: str
    arn: str
    number: int
    created_second: int
    on_demand: bool = False
    max_record_kib: int = 1024
    status: str = "CREATING"
    retention_hours: int = 24
    keys_ignored: bool = False
    shards: dict[str, Shard] = field(default_factory=dict)
    shard_count: int = 0
    """How many shards it ever had."""
    consumers: dict[str, Consumer] = field(default_factory=dict)
    last_numbers: dict[str, int] = field(default_factory=dict)
    """The number of the last PutRecord of each key; kept while order is required."""
    _first_hashes: list[int] = field(default_factory=list)
    _open: list[Shard] = field(default_factory=list)

    def add_shard(self, now: int, first_hash: int, last_hash: int, parents: tuple[Shard, ...] = ()) -> Shard:
        """A new open shard; its parents are to be closed by `Shard.close`, and then comes `shards_changed`."""
        second = max([now // SECOND, self.created_second, *(parent.created_second + 1 for parent in parents)])
        ids = tuple(parent.id for parent in parents)
        shard = Shard(
            self.number, self.shard_count, now, second, first_hash=first_hash, last_hash=last_hash, parents=ids
        )
        self.shard_count += 1
        self.shards[shard.id] = shard
        return shard

    def shards_changed(self) -> None:
        """Find the open shards again."""
        self._open = sorted(
            (shard for shard in self.shards.values() if shard.closed_ns is None), key=lambda shard: shard.first_hash
        )
        self._first_hashes = [shard.first_hash for shard in self._open]

    def open_shards(self) -> list[Shard]:
        """The open shards, by hash key."""
        return self._open

    def shard_of(self, hash_key: int) -> Shard:
        """The open shard that a hash key belongs to."""
        return self._open[bisect_right(self._first_hashes, hash_key) - 1]

    def horizon_ns(self, now: int) -> int:
        """The server time before which records are forgotten."""
        return now - self.retention_hours * 3600 * SECOND

    def trim(self, now: int) -> None:
        """Forget records, and closed shards, that are past the retention."""
        horizon = self.horizon_ns(now)
        for shard in list(self.shards.values()):
            if shard.records:
                shard.trim(horizon)
            if shard.closed_ns is not None and shard.closed_ns < horizon and not shard.records:
                del self.shards[shard.id]
