"""What a Kinesis stream goes through while a query reads it: records without pause, splits, merges, failing calls.

And what a reader must have made of it: each record once, and those of a key in their order.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from connectors.testing.kinesis import KinesisControl
from tests.support.kinesis_calls import KinesisCalls, kinesis_client

RESHARD_SECONDS = (1.5, 4.0)
_PORTION = 20
_KEYS = 97
_PAUSE = 0.1
_MOST_OPEN = 6
_LEAST_OPEN = 2
_FAULT_SHARE = 0.1


class KinesisApi:
    """A server that has no knobs, by boto3; its methods are those of `KinesisControl` that a `Load` needs.

    Args:
        endpoint: of the server.
    """

    def __init__(self, endpoint: str) -> None:
        self._client = kinesis_client(f"http://{endpoint}")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def create_stream(self, stream: str, shards: int) -> None:
        """Create a stream, and wait until it is active."""
        self._calls(stream).create(shards)

    def put(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[tuple[str, int]]:
        """Put (partition key, data) with one call; gives shard and sequence number."""
        response = self._calls(stream).put_many(records)
        assert response["FailedRecordCount"] == 0, response
        return [(each["ShardId"], int(each["SequenceNumber"])) for each in response["Records"]]

    def shards(self, stream: str, *, only_open: bool) -> list[str]:
        """Ids of the shards that are listed."""
        calls = self._calls(stream)
        return calls.open_ids() if only_open else [each["ShardId"] for each in calls.shards()]

    def split(self, stream: str, shard: str) -> None:
        """Split a shard in the middle."""
        self._calls(stream).split(shard)

    def merge(self, stream: str, shard: str, adjacent: str) -> None:
        """Merge two adjacent shards; a `ValueError` if they are not."""
        self._calls(stream).merge(shard, adjacent)

    def read(self, stream: str) -> list[dict[str, Any]]:
        """All records, shard by shard, with the columns that `Load.finish` names."""
        calls = self._calls(stream)
        return [
            {
                "data": each["Data"],
                "partitionKey": each["PartitionKey"],
                "shardId": shard,
                "sequenceNumber": each["SequenceNumber"],
            }
            for shard in self.shards(stream, only_open=False)
            for each in calls.read(shard)
        ]

    def _calls(self, stream: str) -> KinesisCalls:
        return KinesisCalls(self._client, stream)


class Load:
    """Puts records into a stream from a thread of its own until it is told to stop; a context manager.

    Args:
        endpoint: of the server.
        stream: which is there.
        seed: of all that is random here.
        subscribed: whether the query reads by subscriptions, which fail too then.
        reshard_seconds: between two splits or merges, from and to; None for no such.
        failing_calls: whether some calls fail as those of a service do.
        knobs: whether the server has those of `KinesisControl`; without them no calls fail.
    """

    def __init__(
        self,
        endpoint: str,
        stream: str,
        seed: int,
        *,
        subscribed: bool = False,
        reshard_seconds: tuple[float, float] | None = RESHARD_SECONDS,
        failing_calls: bool = True,
        knobs: bool = True,
    ) -> None:
        self._failing_calls = failing_calls
        self._subscribed = subscribed
        self._knobs = KinesisControl(endpoint) if knobs else None
        self._server: KinesisControl | KinesisApi = self._knobs or KinesisApi(endpoint)
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
        if self._knobs is not None:
            self._knobs.clear_faults()
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
                if self._knobs is not None:
                    self._fail(self._knobs)
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

    def _fail(self, server: KinesisControl) -> None:
        if self._failing_calls and self._choose.random() < _FAULT_SHARE:
            self._fail_calls(server)
        if self._subscribed and self._choose.random() < _FAULT_SHARE:
            self._fail_subscriptions(server)

    def _fail_calls(self, server: KinesisControl) -> None:
        """Let some of the next calls fail in a way that a service's calls fail.

        What was not used up goes first: while nobody calls, failures would gather until no retry is enough.
        """
        server.clear_faults()
        operation = self._choose.choice(("GetRecords", "GetShardIterator", "ListShards"))
        kinds = ["throttled", "internal", "cut", *(["expired"] if operation == "GetRecords" else [])]
        match self._choose.choice(kinds):
            case "throttled":
                server.throttle(operation, 2, stream=self._stream)
            case "internal":
                server.fail(operation, "InternalFailure", status=500, stream=self._stream)
            case "cut":
                server.cut(operation, stream=self._stream)
            case _:
                server.fail(operation, "ExpiredIteratorException", stream=self._stream)
        self.faults += 1

    def _fail_subscriptions(self, server: KinesisControl) -> None:
        """Let live subscriptions end, or the next one be refused, in a way that the service does it."""
        match self._choose.choice(("cut", "taken over", "error", "refused", "throttled")):
            case "cut":
                server.end_subscriptions(self._stream, kind=None)
            case "taken over":
                server.end_subscriptions(self._stream, kind="ResourceInUseException")
            case "error":
                server.end_subscriptions(self._stream, kind="InternalFailureException")
            case "refused":
                server.fail("SubscribeToShard", "ResourceInUseException")
            case _:
                server.fail("SubscribeToShard", "LimitExceededException")
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
