"""What a Kinesis stream goes through while a query reads it: records without pause, splits, merges, failing calls.

And what a reader must have made of it: each record once, and those of a key in their order.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from connectors.testing.kinesis import KinesisControl

_PORTION = 20
_KEYS = 97
_PAUSE = 0.1
_MOST_OPEN = 6
_LEAST_OPEN = 2
_FAULT_SHARE = 0.1


class Load:
    """Puts records into a stream from a thread of its own until it is told to stop; a context manager.

    Args:
        endpoint: of the server.
        stream: which is there.
        seed: of all that is random here.
        subscribed: whether the query reads by subscriptions, which fail too then.
        reshard_seconds: between two splits or merges, from and to; None for no such.
        failing_calls: whether some calls fail as those of a service do.
    """

    def __init__(
        self,
        endpoint: str,
        stream: str,
        seed: int,
        *,
        subscribed: bool = False,
        reshard_seconds: tuple[float, float] | None = (1.5, 4.0),
        failing_calls: bool = True,
    ) -> None:
        self._failing_calls = failing_calls
        self._subscribed = subscribed
        self._server = KinesisControl(endpoint)
        self._stream = stream
        self._reshard_seconds = reshard_seconds
        self._choose = random.Random(f"{seed} load")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self._published: dict[bytes, dict[str, Any]] = {}
        self.splits = 0
        self.merges = 0
        self.faults = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._server.clear_faults()
        self._server.close()

    @property
    def put(self) -> int:
        """How many records were put so far."""
        return len(self._published)

    def finish(self) -> dict[bytes, dict[str, Any]]:
        """Put no more; by data, in the order in which they were put, what the rows of all records must have.

        Raises:
            BaseException: what ended the thread before.
        """
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._published

    def _run(self) -> None:
        try:
            again = time.monotonic()
            while not self._stopping.wait(_PAUSE):
                self._put()
                if self._failing_calls and self._choose.random() < _FAULT_SHARE:
                    self._fail_calls()
                if self._subscribed and self._choose.random() < _FAULT_SHARE:
                    self._fail_subscriptions()
                if self._reshard_seconds is not None and time.monotonic() >= again:
                    self._reshard()
                    again = time.monotonic() + self._choose.uniform(*self._reshard_seconds)
        except BaseException as error:  # noqa: BLE001 - raised where the trial waits for it
            self._error = error

    def _put(self) -> None:
        """A portion of records; their data say which they are."""
        first = len(self._published)
        made = [(f"key-{number % _KEYS}", b"record %d" % number) for number in range(first, first + _PORTION)]
        placed = self._server.put(self._stream, made)
        for (key, data), (shard, number) in zip(made, placed, strict=True):
            self._published[data] = {"partitionKey": key, "shardId": shard, "sequenceNumber": str(number)}

    def _reshard(self) -> None:
        """Split a shard or merge two neighbours."""
        left = self._server.shards(self._stream, only_open=True)
        split = len(left) <= _LEAST_OPEN or (len(left) < _MOST_OPEN and self._choose.random() < 0.5)
        if split:
            self._server.split(self._stream, self._choose.choice(left))
            self.splits += 1
            return
        for first, second in self._choose.sample([(a, b) for a in left for b in left if a != b], len(left)):
            try:
                self._server.merge(self._stream, first, second)
            except ValueError:  # no neighbours
                continue
            self.merges += 1
            return

    def _fail_calls(self) -> None:
        """Let some of the next calls fail in a way that a service's calls fail.

        What was not used up goes first: while nobody calls, failures would gather until no retry is enough.
        """
        self._server.clear_faults()
        operation = self._choose.choice(("GetRecords", "GetShardIterator", "ListShards"))
        kinds = ["throttled", "internal", "cut", *(["expired"] if operation == "GetRecords" else [])]
        match self._choose.choice(kinds):
            case "throttled":
                self._server.throttle(operation, 2, stream=self._stream)
            case "internal":
                self._server.fail(operation, "InternalFailure", status=500, stream=self._stream)
            case "cut":
                self._server.cut(operation, stream=self._stream)
            case _:
                self._server.fail(operation, "ExpiredIteratorException", stream=self._stream)
        self.faults += 1

    def _fail_subscriptions(self) -> None:
        """Let live subscriptions end, or the next one be refused, in a way that the service does it."""
        match self._choose.choice(("cut", "taken over", "error", "refused", "throttled")):
            case "cut":
                self._server.end_subscriptions(self._stream, kind=None)
            case "taken over":
                self._server.end_subscriptions(self._stream, kind="ResourceInUseException")
            case "error":
                self._server.end_subscriptions(self._stream, kind="InternalFailureException")
            case "refused":
                self._server.fail("SubscribeToShard", "ResourceInUseException")
            case _:
                self._server.fail("SubscribeToShard", "LimitExceededException")
        self.faults += 1


def keys_out_of_order(rows: Iterable[Mapping[str, Any]], published: Iterable[bytes]) -> list[str]:
    """The partition keys whose rows do not stand in the order in which they were put.

    Args:
        rows: of a sink, in their order.
        published: the data of all records, in the order in which they were put.
    """
    place = {data: number for number, data in enumerate(published)}
    by_key: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row["data"] in place:
            by_key[row["partitionKey"]].append(place[row["data"]])
    return sorted(key for key, places in by_key.items() if places != sorted(places))
