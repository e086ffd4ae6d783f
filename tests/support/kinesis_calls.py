"""Short words for what a test does with a Kinesis endpoint, by botocore."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.loaders import create_loader
from botocore.session import Session

from tests.support.waiting import wait_for

SECONDS = 30.0
"""Far above what a stream needs to become active, or a record to be seen."""


_models = cache(create_loader)


def kinesis_client(url: str, verify: bool | str = False, **settings: Any) -> Any:
    """A client that tries each call once, unless told otherwise."""
    config = Config(**{"retries": {"total_max_attempts": 1}, "read_timeout": 20, **settings})
    keys = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": "secret"}
    session = Session()
    session.register_component("data_loader", _models())  # reading them anew takes 45 ms a client
    return session.create_client(
        "kinesis", endpoint_url=url, region_name="us-east-1", verify=verify, config=config, **keys
    )


def error_kind(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


@dataclass
class KinesisCalls:
    """A client, and one stream of a name that nobody else uses."""

    client: Any
    stream: str = field(default_factory=lambda: f"stream-{uuid.uuid4().hex[:12]}")

    def create(self, shards: int = 1) -> str:
        self.client.create_stream(StreamName=self.stream, ShardCount=shards)
        self.wait_until_active()
        return self.stream

    def summary(self) -> dict[str, Any]:
        return dict(self.client.describe_stream_summary(StreamName=self.stream)["StreamDescriptionSummary"])

    def wait_until_active(self) -> None:
        wait_for(lambda: self.summary()["StreamStatus"] == "ACTIVE", SECONDS)

    def shards(self, **arguments: Any) -> list[dict[str, Any]]:
        return list(self.client.list_shards(StreamName=self.stream, **arguments)["Shards"])

    def open_ids(self) -> list[str]:
        return [each["ShardId"] for each in self.shards() if "EndingSequenceNumber" not in each["SequenceNumberRange"]]

    def split(self, shard: str) -> None:
        """Split a shard in the middle."""
        low, high = self._hash_keys(shard)
        middle = str((low + high + 1) // 2)
        self.client.split_shard(StreamName=self.stream, ShardToSplit=shard, NewStartingHashKey=middle)
        self.wait_until_active()

    def merge(self, shard: str, adjacent: str) -> None:
        """Merge a shard with the one after it; a `ValueError` if it is another one."""
        if self._hash_keys(shard)[1] + 1 != self._hash_keys(adjacent)[0]:
            message = f"{adjacent} does not follow {shard}"
            raise ValueError(message)
        self.client.merge_shards(StreamName=self.stream, ShardToMerge=shard, AdjacentShardToMerge=adjacent)
        self.wait_until_active()

    def _hash_keys(self, shard: str) -> tuple[int, int]:
        listed = next(each["HashKeyRange"] for each in self.shards() if each["ShardId"] == shard)
        return int(listed["StartingHashKey"]), int(listed["EndingHashKey"])

    def put(self, *data: bytes, key: str = "key", **arguments: Any) -> list[dict[str, Any]]:
        return [
            self.client.put_record(StreamName=self.stream, Data=each, PartitionKey=key, **arguments) for each in data
        ]

    def put_many(self, entries: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
        records = [{"PartitionKey": key, "Data": data} for key, data in entries]
        return dict(self.client.put_records(StreamName=self.stream, Records=records))

    def iterator(self, shard: str, kind: str = "TRIM_HORIZON", **arguments: Any) -> str:
        answer = self.client.get_shard_iterator(
            StreamName=self.stream, ShardId=shard, ShardIteratorType=kind, **arguments
        )
        return str(answer["ShardIterator"])

    def pages(self, iterator: str, limit: int = 10_000) -> Iterator[dict[str, Any]]:
        """Answers up to the tip, or to the end of a closed shard."""
        next_iterator: str | None = iterator
        while next_iterator is not None:
            answer = self.client.get_records(ShardIterator=next_iterator, Limit=limit)
            yield answer
            next_iterator = answer.get("NextShardIterator")
            if not answer["Records"] and not answer["MillisBehindLatest"]:
                return

    def read(self, shard: str, kind: str = "TRIM_HORIZON", limit: int = 10_000, **arguments: Any) -> list[Any]:
        pages = self.pages(self.iterator(shard, kind, **arguments), limit)
        return [record for page in pages for record in page["Records"]]

    def data(self, shard: str, kind: str = "TRIM_HORIZON", **arguments: Any) -> list[bytes]:
        return [record["Data"] for record in self.read(shard, kind, **arguments)]
