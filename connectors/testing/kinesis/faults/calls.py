"""Which calls the Kinesis server got, in order: the list that tests read."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Call", "CallLog"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client.

    Attributes:
        index: place in the order of calls, from 0, without gaps.
        monotonic_ns: `time.monotonic_ns` when it came in; on Linux comparable between processes.
        server_ns: the server's own clock, nanoseconds since 1970.
        operation: name in the API, such as ``GetRecords``.
        stream: name of the stream, or "".
        shard: id of the shard, or "".
        consumer: ARN of the consumer, or "".
        error: kind of the error that it was answered with, ``cut`` for a cut connection, or "".
        answer_bytes: bytes of the answer's body; 0 for SubscribeToShard.
        access_key: id of the key that it was signed with, or "".
    """

    index: int
    monotonic_ns: int
    server_ns: int
    operation: str
    stream: str
    shard: str
    consumer: str
    error: str
    answer_bytes: int
    access_key: str

    def to_json(self) -> dict[str, object]:
        """The call as a JSON object with the attributes as keys."""
        return {name: getattr(self, name) for name in self.__slots__}


class CallLog:
    """The newest calls in order, and how many there ever were; not thread-safe.

    Args:
        limit: how many calls are kept; the oldest go first, and 0 keeps none. The counts go on.
    """

    def __init__(self, limit: int) -> None:
        self._calls: deque[Call] = deque(maxlen=limit)
        self._next_index = 0
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def record(
        self,
        operation: str,
        server_ns: int,
        place: tuple[str, str, str],
        error: str,
        answer_bytes: int,
        access_key: str,
    ) -> None:
        """Add one call; ``place`` is stream, shard and consumer."""
        self._counts[operation, place[0], place[1]] += 1
        call = Call(
            self._next_index, time.monotonic_ns(), server_ns, operation, *place, error, answer_bytes, access_key
        )
        self._next_index += 1
        self._calls.append(call)

    def select(self, since: int, operation: str | None, stream: str | None, shard: str | None) -> Iterator[Call]:
        """The kept calls with an index of at least ``since``; None means any."""
        return (
            call
            for call in self._calls
            if call.index >= since
            and operation in {None, call.operation}
            and stream in {None, call.stream}
            and shard in {None, call.shard}
        )

    def next_index(self) -> int:
        """The index of the call that comes next."""
        return self._next_index

    def counts(self, stream: str | None, shard: str | None) -> dict[str, int]:
        """How many calls of each operation there were since the start or `reset`, also those that failed."""
        counted: Counter[str] = Counter()
        for (operation, of_stream, of_shard), count in self._counts.items():
            if stream in {None, of_stream} and shard in {None, of_shard}:
                counted[operation] += count
        return dict(counted)

    def reset(self) -> None:
        """Forget all calls, and count from 0; indexes go on."""
        self._calls.clear()
        self._counts.clear()
