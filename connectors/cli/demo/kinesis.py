"""Kinesis in a demonstration: one query that polls and one with enhanced fan-out, while shards are split and merged."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack

from connectors.cli.demo.count import Message
from connectors.cli.demo.plan import KEYS, DemoPlan, Query, Service
from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.client.errors import THROTTLED
from connectors.kinesis.options.client import stream_named
from connectors.kinesis.options.source import parse_read_options
from connectors.testing.kinesis import start_server_process

_REGION = "us-east-1"
_SHARDS = 2
_SPLIT_AT, _MERGE_AT = 0.4, 0.7
_ACTIVE_SECONDS = 120.0
_CLOCKS_MS = 60_000  # this machine's clock and the service's may differ
_OF_OUR_SERVER = {  # it has none of the service's limits
    "awsAccessKey": "any",
    "awsSecretKey": "any",
    "minFetchPeriod": "20ms",
    "idleFetchPeriod": "100ms",
}
_RIGHTS = (
    "DescribeStreamSummary ListShards PutRecords GetShardIterator GetRecords RegisterStreamConsumer "
    "DescribeStreamConsumer SubscribeToShard DeregisterStreamConsumer"
)
_RIGHTS_TO_CREATE = " CreateStream DeleteStream SplitShard MergeShards"


class Kinesis(Service):
    """A server of our own; another one by its URL; or a region of AWS."""

    def __init__(self, plan: DemoPlan) -> None:
        super().__init__(plan)
        self._began_ms = round(time.time() * 1000)
        self._disturbed: list[str] = []
        stream = self._stream = self.target.existing[0] if self.target.existing else self.name
        self.creates = [f"registered consumer {self.name} of {stream}"]
        if not self.target.existing:
            self.creates.insert(0, f"stream {stream} with {_SHARDS} shards, one of them split and merged")
        names = (_RIGHTS + _RIGHTS_TO_CREATE * (not self.target.existing)).split()
        actions = ", ".join(f"kinesis:{name}" for name in names)
        self.rights = [f"{actions} on arn:aws:kinesis:REGION:ACCOUNT:stream/{stream} and its consumers (stream/.../*)"]
        if not self.target.is_ours:
            self._use(self.target.endpoint, {})

    def _use(self, url: str | None, more: dict[str, str]) -> None:
        start = f"at_timestamp {self._began_ms - _CLOCKS_MS}" if self.target.existing else "trim_horizon"
        region = self.target.account or (url and (os.environ.get("AWS_REGION") or _REGION))
        self._raw = {
            "maxRecordsPerTrigger": self.plan.batch_limit,
            "initialPosition": start,
            **({"region": region} if region else {}),
            **({"endpointUrl": url} if url else {}),
            **more,
            **self.target.options,
            "streamName": self._stream,
        }
        self._client = KinesisClient(parse_read_options(self._raw, os.environ, streaming=True))

    def open(self, stack: ExitStack) -> None:
        if self.target.is_ours:
            self._use(stack.enter_context(start_server_process(call_limit=0)).url, _OF_OUR_SERVER)
        if self.target.existing:
            arn = self._client.describe(self._stream)["StreamARN"]
            consumer = {"StreamARN": arn, "ConsumerName": self.name}
            self.removing(stack, self.creates[0], lambda: self._call("deregister_stream_consumer", **consumer))
            note = "The stream was given: it was not resharded, and records of others were read, not counted."
            self.notes.append(note)
            return
        remove = {"StreamName": self._stream, "EnforceConsumerDeletion": True}
        self.removing(stack, f"stream {self._stream}", lambda: self._call("delete_stream", **remove))
        self._call("create_stream", StreamName=self._stream, ShardCount=_SHARDS)
        self._await_active()

    def _call(self, operation: str, **parameters: object) -> None:
        self._client.call(operation, self._stream, **parameters)

    def _await_active(self) -> None:
        give_up_at = time.monotonic() + _ACTIVE_SECONDS
        while (status := self._client.describe(self._stream)["StreamStatus"]) != "ACTIVE":
            if time.monotonic() > give_up_at:
                what = f"The stream is not ACTIVE after {_ACTIVE_SECONDS:g} s: {status}"
                raise ServiceUnavailableError("KINESIS_UNAVAILABLE", what, self._stream)
            time.sleep(0.5)

    def queries(self) -> list[Query]:
        columns = ("CAST(data AS STRING)", "concat(stream, '/', shardId)", "sequenceNumber")
        fan_out = {"consumerName": self.name, "spoolLocation": str(self.plan.folder / "spool")}
        wanted = next((value for name, value in self._raw.items() if name.lower() == "consumermode"), None)
        return [
            Query(name, "kinesis", {**self._raw, "consumerMode": mode, **more}, columns)
            for name, mode, more in (("polling", "polling", {}), ("fan-out", "efo", fan_out))
            if wanted in {None, mode}
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
            results = json.loads(self._client.put_records(self._stream, body))["Records"]
        except ConnectorError as error:
            return messages, error
        refused = [message for message, result in zip(messages, results, strict=True) if result.get("ErrorCode")]
        why = ServiceUnavailableError(THROTTLED, "PutRecords refused records", self._stream)
        return refused, why if refused else None

    def disturb(self, share: float) -> None:
        """Split the first shard, and later merge its children."""
        if self.target.existing or share < (_SPLIT_AT, _MERGE_AT, 2.0)[len(self._disturbed)]:
            return
        shards = [one for one in self._client.hash_ranges(self._stream) if not one.closed]
        first, second, *_ = sorted(shards, key=lambda one: one.first)
        if not self._disturbed:
            operation, middle = "split_shard", str((first.first + first.last) // 2 + 1)
            named = {"ShardToSplit": first.shard, "NewStartingHashKey": middle}
        else:
            operation, named = "merge_shards", {"ShardToMerge": first.shard, "AdjacentShardToMerge": second.shard}
        self._call(operation, StreamName=self._stream, **named)
        self._disturbed.append(operation)
        self._await_active()
        self.notes.append(f"{operation.replace('_', ' ').capitalize()} while the queries ran.")
