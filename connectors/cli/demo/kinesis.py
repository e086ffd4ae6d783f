"""Kinesis in a demonstration: one query that polls and one with enhanced fan-out, while shards are split and merged."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack

from connectors.cli.demo.count import Message
from connectors.cli.demo.plan import KEYS, Bound, DemoPlan, Query, Service, hours
from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.client.errors import THROTTLED
from connectors.kinesis.options.client import stream_named
from connectors.kinesis.options.source import parse_read_options
from connectors.testing.kinesis import start_server_process

_REGION = "us-east-1"
_SHARDS = 2
_MOST_SHARDS = 4  # open at a time, with room for one that is about to close
_SPLIT_AT, _MERGE_AT = 0.4, 0.7
_ACTIVE_SECONDS = 120.0
_OF_OUR_SERVER = {
    "awsAccessKey": "any",
    "awsSecretKey": "any",
    "minFetchPeriod": "20ms",  # it has none of the service's limits
    "idleFetchPeriod": "100ms",
}
_CLOCKS_MS = 60_000  # this machine's clock and the service's may differ

_USD_SHARD_HOUR = 0.015
_USD_CONSUMER_SHARD_HOUR = 0.015
_USD_MILLION_PUTS = 0.014
_USD_FAN_OUT_GB = 0.013
_GB_PER_MILLION = 1.0  # 1,000 bytes per record, several times what it has
_RIGHTS = (
    "DescribeStreamSummary ListShards PutRecords GetShardIterator GetRecords RegisterStreamConsumer "
    "DescribeStreamConsumer SubscribeToShard DeregisterStreamConsumer"
)
_RIGHTS_TO_CREATE = "CreateStream DeleteStream SplitShard MergeShards"
_MODES = {"polling": "polling", "fan-out": "efo"}


class Kinesis(Service):
    """A server of our own; another one by its URL; or a region of AWS."""

    def __init__(self, plan: DemoPlan) -> None:
        super().__init__(plan)
        self._stream = self.target.topics[0] if self.target.topics else self.name
        self._disturbed: list[str] = []
        self._raw: dict[str, str] = {}

    @property
    def server(self) -> str:
        if self.target.is_ours:
            return "connectors.testing.kinesis"
        return "a server by its URL" if self.target.endpoint else "Amazon Kinesis Data Streams"

    def check(self) -> None:
        if not self.target.is_ours:
            self._use(self.target.endpoint, {})

    def _use(self, url: str | None, keys: dict[str, str]) -> None:
        start = f"at_timestamp {self.began_ms - _CLOCKS_MS}" if self.target.topics else "trim_horizon"
        region = self.target.account or (url and (os.environ.get("AWS_REGION") or _REGION))
        self._raw = {
            "maxRecordsPerTrigger": self.plan.batch_limit,
            "initialPosition": start,
            **({"region": region} if region else {}),
            **({"endpointUrl": url} if url else {}),
            **keys,
            **self.target.options,
            "streamName": self._stream,
        }
        self._client = KinesisClient(parse_read_options(self._raw, os.environ, streaming=True))

    def _modes(self) -> dict[str, str]:
        wanted = next((value for name, value in self._raw.items() if name.lower() == "consumermode"), None)
        return {name: mode for name, mode in _MODES.items() if wanted in {None, mode}}

    def creates(self) -> list[str]:
        stream = (
            [] if self.target.topics else [f"stream {self._stream} with {_SHARDS} shards, one of them split and merged"]
        )
        return [*stream, f"registered consumer {self.name} of {self._stream}"]

    def rights(self) -> list[str]:
        names = [*_RIGHTS.split(), *([] if self.target.topics else _RIGHTS_TO_CREATE.split())]
        actions = ", ".join(f"kinesis:{name}" for name in names)
        return [f"{actions} on arn:aws:kinesis:REGION:ACCOUNT:stream/{self._stream} and its consumers (stream/.../*)"]

    def bound(self) -> Bound:
        if self.target.endpoint is not None or self.target.is_ours:
            return super().bound()
        shard_hours = _MOST_SHARDS * hours(self.plan.minutes)
        millions = 2 * self.plan.messages / 1e6  # half of them repeated after throttling
        dollars = shard_hours * (_USD_SHARD_HOUR * (not self.target.topics) + _USD_CONSUMER_SHARD_HOUR)
        dollars += millions * (_USD_MILLION_PUTS + _USD_FAN_OUT_GB * _GB_PER_MILLION)
        assumes = (
            f"list prices of us-east-1: {_USD_SHARD_HOUR} USD per shard-hour, {_USD_CONSUMER_SHARD_HOUR} per "
            f"consumer-shard-hour, {_USD_MILLION_PUTS} per million PUT units, {_USD_FAN_OUT_GB} per GB of fan-out; "
            f"{_MOST_SHARDS} shards for {hours(self.plan.minutes)} begun hours"
        )
        return Bound(dollars, assumes)

    def open(self, stack: ExitStack) -> None:
        if self.target.is_ours:
            server = stack.enter_context(start_server_process(call_limit=0))
            self._use(server.url, _OF_OUR_SERVER)
        if self.target.topics:
            arn = self._client.describe(self._stream)["StreamARN"]
            named = {"StreamARN": arn, "ConsumerName": self.name}
            where = f"{self._stream}, {self.name}"
            remove = lambda: self._client.call("deregister_stream_consumer", where, **named)  # noqa: E731
            self.removing(stack, f"consumer {self.name} of {self._stream}", remove)
            self.notes.append(
                "The stream was given: it was not resharded, and records of others were read, not counted."
            )
            return
        self.removing(stack, f"stream {self._stream}", self._remove_stream)
        self._client.call("create_stream", self._stream, StreamName=self._stream, ShardCount=_SHARDS)
        self._await_active()

    def _remove_stream(self) -> None:
        self._client.call("delete_stream", self._stream, StreamName=self._stream, EnforceConsumerDeletion=True)

    def _await_active(self) -> None:
        give_up_at = time.monotonic() + _ACTIVE_SECONDS
        while (status := self._client.describe(self._stream)["StreamStatus"]) != "ACTIVE":
            if time.monotonic() > give_up_at:
                what = f"The stream is not ACTIVE after {_ACTIVE_SECONDS:g} s: {status}"
                raise ServiceUnavailableError("KINESIS_UNAVAILABLE", what, self._stream)
            time.sleep(0.5)

    def queries(self) -> list[Query]:
        columns = ("CAST(data AS STRING)", "concat(stream, '/', shardId)", "sequenceNumber")
        more = {"efo": {"consumerName": self.name, "spoolLocation": str(self.plan.folder / "spool")}}
        return [
            Query(name, "kinesis", {**self._raw, "consumerMode": mode, **more.get(mode, {})}, columns)
            for name, mode in self._modes().items()
        ]

    def publish(self, messages: Sequence[Message]) -> None:
        """Put one request after the other, each with no key twice, so that a refused record keeps its key's order."""
        for first in range(0, len(messages), KEYS):
            self.repeat(self._put, messages[first : first + KEYS])

    def _put(self, messages: Sequence[Message]) -> tuple[Sequence[Message], ConnectorError | None]:
        records = [
            {"Data": base64.b64encode(message.encode(self.plan.run)).decode(), "PartitionKey": message.key}
            for message in messages
        ]
        body = json.dumps({**stream_named(self._stream), "Records": records}).encode()
        try:
            response = json.loads(self._client.put_records(self._stream, body))
        except ConnectorError as error:
            return messages, error
        refused = [
            message for message, record in zip(messages, response["Records"], strict=True) if record.get("ErrorCode")
        ]
        why = ServiceUnavailableError(THROTTLED, "PutRecords refused records", self._stream)
        return refused, why if refused else None

    def disturb(self, share: float) -> None:
        """Split the first shard, and later merge its children."""
        if self.target.topics:
            return
        if share >= _SPLIT_AT and not self._disturbed:
            shard, start, end = self._open_shards()[0]
            middle = str((start + end) // 2 + 1)
            self._reshard("split_shard", ShardToSplit=shard, NewStartingHashKey=middle)
        elif share >= _MERGE_AT and len(self._disturbed) == 1:
            (first, *_), (second, *_), *_ = self._open_shards()
            self._reshard("merge_shards", ShardToMerge=first, AdjacentShardToMerge=second)

    def _open_shards(self) -> list[tuple[str, int, int]]:
        ranges = [one for one in self._client.hash_ranges(self._stream) if not one.closed]
        return sorted(((one.shard, one.first, one.last) for one in ranges), key=lambda one: one[1])

    def _reshard(self, operation: str, **shards: str) -> None:
        self._client.call(operation, self._stream, StreamName=self._stream, **shards)
        self._disturbed.append(operation)
        self._await_active()
        self.notes.append(f"{operation.replace('_', ' ').capitalize()} while the queries ran.")
