"""The Kinesis API over HTTP: takes requests apart, strikes them with faults, and calls the operations."""

from __future__ import annotations

import email.utils
import json
import re
import secrets
from collections.abc import Callable
from typing import Any

from connectors.testing.clock import SECOND
from connectors.testing.kinesis.exchange import Exchange, Request
from connectors.testing.kinesis.faults.calls import CallLog
from connectors.testing.kinesis.model.limits import Limits
from connectors.testing.kinesis.model.rules import Arguments, ServiceError
from connectors.testing.kinesis.model.state import KinesisState
from connectors.testing.kinesis.operations.consumers import ConsumerOperations
from connectors.testing.kinesis.operations.records import RecordOperations, shard_of_iterator
from connectors.testing.kinesis.operations.shards import ShardOperations
from connectors.testing.kinesis.operations.streams import StreamOperations
from connectors.testing.kinesis.operations.subscriptions import Subscription, SubscriptionOperations

__all__ = ["KinesisService"]

_TARGET = "Kinesis_20131202."
_JSON = "application/x-amz-json-1.1"
_BODY = {"content-type": _JSON}
_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/")

_Operation = Callable[[Arguments, int], dict[str, Any] | bytes | Subscription]


class KinesisService:
    """Answers requests; used by one thread.

    Args:
        state: the streams.
        calls: where calls are noted.
        later: calls a function after real seconds, in the same thread.
    """

    def __init__(self, state: KinesisState, calls: CallLog, later: Callable[[float, Callable[[], None]], None]) -> None:
        self._state = state
        self._calls = calls
        self._later = later
        self._limits = Limits()
        streams = StreamOperations(state)
        shards = ShardOperations(state)
        records = RecordOperations(state, self._limits)
        consumers = ConsumerOperations(state)
        self._operations: dict[str, _Operation] = {
            "CreateStream": streams.create_stream,
            "DeleteStream": streams.delete_stream,
            "DescribeStream": streams.describe_stream,
            "DescribeStreamSummary": streams.describe_stream_summary,
            "ListStreams": streams.list_streams,
            "IncreaseStreamRetentionPeriod": streams.increase_stream_retention_period,
            "DecreaseStreamRetentionPeriod": streams.decrease_stream_retention_period,
            "UpdateMaxRecordSize": streams.update_max_record_size,
            "UpdateStreamRecordDistributionStrategy": streams.update_stream_record_distribution_strategy,
            "UpdateStreamMode": streams.update_stream_mode,
            "ListShards": shards.list_shards,
            "SplitShard": shards.split_shard,
            "MergeShards": shards.merge_shards,
            "UpdateShardCount": shards.update_shard_count,
            "PutRecord": records.put_record,
            "PutRecords": records.put_records,
            "GetShardIterator": records.get_shard_iterator,
            "GetRecords": records.get_records,
            "RegisterStreamConsumer": consumers.register_stream_consumer,
            "DescribeStreamConsumer": consumers.describe_stream_consumer,
            "DeregisterStreamConsumer": consumers.deregister_stream_consumer,
            "ListStreamConsumers": consumers.list_stream_consumers,
            "SubscribeToShard": SubscriptionOperations(state).subscribe_to_shard,
        }

    def operation_names(self) -> list[str]:
        """The operations that there are."""
        return list(self._operations)

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer a request, perhaps later."""
        call = _Call(request, exchange)
        delay = self._state.faults.delay(call.operation, *call.place[:2])
        if delay:
            self._later(delay, lambda: self._run(call))
        else:
            self._run(call)

    def _run(self, call: _Call) -> None:
        faults = self._state.faults
        now = self._state.clock.now()
        self._state.schedule.run_due(now)
        cut = faults.next_cut(call.operation, *call.place[:2])
        error = None
        result: bytes | Subscription = b""
        if cut is None or cut.after_effect:
            try:
                result = self._perform(call, now)
            except ServiceError as raised:
                error = raised
                result = json.dumps({"__type": raised.kind, "message": raised.message}).encode()
        kind = "cut" if cut is not None else "" if error is None else error.kind
        size = len(result) if isinstance(result, bytes) else 0
        self._calls.record(call.operation, now, call.place, kind, size, call.access_key)
        if isinstance(result, Subscription):
            result.begin(call.exchange, _headers(now))
        elif cut is None:
            call.exchange.answer(200 if error is None else error.status, _headers(now) | _BODY, result)
        elif cut.after_effect and cut.after_bytes:
            call.exchange.begin(200, {**_headers(now), **_BODY, "content-length": str(len(result))})
            call.exchange.send(result[: cut.after_bytes])
        if cut is not None:
            call.exchange.cut()

    def _perform(self, call: _Call, now: int) -> bytes | Subscription:
        faults = self._state.faults
        scripted = faults.next_error(call.operation, *call.place[:2])
        if scripted is not None and not scripted.after_effect:
            raise ServiceError(scripted.kind, scripted.message, scripted.status)
        if call.refusal is not None:
            raise call.refusal
        operation = self._operations.get(call.operation)
        if operation is None:
            raise ServiceError(
                "UnknownOperationException", f"The operation {call.operation!r} is not supported by this server."
            )
        if faults.limits:
            self._limits.check_call(call.operation, call.place[0], now)
        result = operation(call.arguments, now)
        if scripted is not None:
            raise ServiceError(scripted.kind, scripted.message, scripted.status)
        return json.dumps(result).encode() if isinstance(result, dict) else result


class _Call:
    """A request, taken apart as far as it goes; what is wrong with it is kept for its answer."""

    def __init__(self, request: Request, exchange: Exchange) -> None:
        self.exchange = exchange
        self.operation = request.headers.get("x-amz-target", "").removeprefix(_TARGET)
        self.arguments = Arguments({})
        self.place = ("", "", "")
        self.refusal: ServiceError | None = None
        credential = _CREDENTIAL.search(request.headers.get("authorization", ""))
        self.access_key = "" if credential is None else credential[1]
        try:
            self.arguments = _arguments(request)
            self.place = _place(self.arguments)
        except ServiceError as error:
            self.refusal = error
        if credential is None and self.refusal is None:
            self.refusal = ServiceError("MissingAuthenticationTokenException", "Missing Authentication Token")


def _arguments(request: Request) -> Arguments:
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0] != _JSON:
        raise ServiceError("SerializationException", f"This server speaks {_JSON}, not {content_type!r}.")
    try:
        values = json.loads(request.body or b"{}")
    except ValueError:
        raise ServiceError("SerializationException", "The body is not JSON.") from None
    if not isinstance(values, dict):
        raise ServiceError("SerializationException", "The body is not a JSON object.")
    return Arguments(values)


def _place(arguments: Arguments) -> tuple[str, str, str]:
    """Stream, shard and consumer that a call is about, as far as it says so."""
    iterator = arguments.optional_text("ShardIterator")
    if iterator is not None:
        return *shard_of_iterator(iterator), ""
    shard = arguments.optional_text("ShardId") or arguments.optional_text("ShardToSplit") or ""
    return arguments.optional_stream() or "", shard, arguments.optional_text("ConsumerARN") or ""


def _headers(now: int) -> dict[str, str]:
    return {
        "date": email.utils.formatdate(now / SECOND, usegmt=True),
        "x-amzn-requestid": secrets.token_hex(16),
    }
