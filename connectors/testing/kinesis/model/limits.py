"""The limits of the service that depend on time: calls, records and bytes a second."""

from __future__ import annotations

from collections import defaultdict, deque

from connectors.testing.clock import SECOND
from connectors.testing.kinesis.model.rules import ACCOUNT, ServiceError
from connectors.testing.kinesis.model.streams import Shard, Stream

__all__ = ["Limits", "throughput_exceeded"]

_READ_BYTES_A_SECOND = 2 << 20
_WRITE_BYTES_A_SECOND = 1 << 20
_WRITE_RECORDS_A_SECOND = 1000
_SHARD_CALLS_A_SECOND = 5
# Calls a second of an account; ListShards counts by stream.
_CALLS_A_SECOND = {
    "CreateStream": 5,
    "DeleteStream": 5,
    "DescribeStream": 10,
    "DescribeStreamSummary": 20,
    "ListStreams": 5,
    "ListShards": 1000,
    "SplitShard": 5,
    "MergeShards": 5,
    "UpdateShardCount": 5,
    "RegisterStreamConsumer": 5,
    "DeregisterStreamConsumer": 5,
    "DescribeStreamConsumer": 20,
    "ListStreamConsumers": 5,
}


def throughput_exceeded(stream: Stream, shard: Shard) -> ServiceError:
    """What a shard says that is asked too much."""
    message = f"Rate exceeded for shard {shard.id} in stream {stream.name} under account {ACCOUNT}."
    return ServiceError("ProvisionedThroughputExceededException", message)


class _Window:
    """At most ``most`` calls in any second."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: deque[int] = deque()

    def take(self, now: int) -> bool:
        """Count a call; False if it is one too many, which is then not counted."""
        while self._times and self._times[0] <= now - SECOND:
            self._times.popleft()
        if len(self._times) >= self._most:
            return False
        self._times.append(now)
        return True


class _Bucket:
    """An amount a second; what was not used in the last second is lost."""

    def __init__(self, rate: int, now: int) -> None:
        self._rate = rate
        self._left = float(rate)
        self._filled_ns = now

    def take(self, amount: int, now: int) -> bool:
        """Take an amount; False, and nothing is taken, if there is too little."""
        self._left = min(float(self._rate), self._left + (now - self._filled_ns) * self._rate / SECOND)
        self._filled_ns = now
        if amount > self._left:
            return False
        self._left -= amount
        return True


class _ShardLimits:
    """What one shard has given and taken of late."""

    def __init__(self, now: int) -> None:
        self.calls = defaultdict[str, _Window](lambda: _Window(_SHARD_CALLS_A_SECOND))
        self.read_bytes = _Bucket(_READ_BYTES_A_SECOND, now)
        self.written_bytes = _Bucket(_WRITE_BYTES_A_SECOND, now)
        self.written_records = _Bucket(_WRITE_RECORDS_A_SECOND, now)
        self.readable_ns = 0
        """Server time from which GetRecords is answered again."""


class Limits:
    """The state of all limits; asked only while they are in force."""

    def __init__(self) -> None:
        self._shards: dict[Shard, _ShardLimits] = {}
        self._calls: dict[tuple[str, str], _Window] = {}

    def check_call(self, operation: str, stream: str, now: int) -> None:
        """Count a call of an operation that is limited for the account, or the stream; raises `ServiceError`."""
        most = _CALLS_A_SECOND.get(operation)
        if most is None:
            return
        window = self._calls.setdefault((operation, stream if operation == "ListShards" else ""), _Window(most))
        if not window.take(now):
            raise ServiceError("LimitExceededException", f"Rate exceeded for account {ACCOUNT}.")

    def check_shard_call(self, operation: str, stream: Stream, shard: Shard, now: int) -> None:
        """Count a GetRecords or GetShardIterator: five a second, and none until what was read is paid off."""
        limits = self._of(shard, now)
        if operation == "GetRecords" and now < limits.readable_ns:
            raise throughput_exceeded(stream, shard)
        if not limits.calls[operation].take(now):
            raise throughput_exceeded(stream, shard)

    def spend_read(self, shard: Shard, size: int, now: int) -> None:
        """Count the bytes of an answer of GetRecords: what is too much for a second blocks the shard until it is paid.

        So 10 MiB block it for five seconds.
        """
        limits = self._of(shard, now)
        if not limits.read_bytes.take(size, now):
            limits.readable_ns = now + size * SECOND // _READ_BYTES_A_SECOND

    def may_write(self, shard: Shard, size: int, now: int) -> bool:
        """Count a record that is put; False if it is too much."""
        limits = self._of(shard, now)
        return limits.written_records.take(1, now) and limits.written_bytes.take(min(size, _WRITE_BYTES_A_SECOND), now)

    def _of(self, shard: Shard, now: int) -> _ShardLimits:
        return self._shards.setdefault(shard, _ShardLimits(now))
