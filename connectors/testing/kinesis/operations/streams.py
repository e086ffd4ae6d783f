"""The operations on streams as a whole: make, delete, describe, list and change them."""

from __future__ import annotations

from typing import Any

from connectors.testing.kinesis.model.rules import ACCOUNT, Arguments, ServiceError, invalid, not_valid
from connectors.testing.kinesis.model.state import KinesisState, read_token, write_token
from connectors.testing.kinesis.model.streams import Stream

__all__ = ["StreamOperations"]

_MOST_SHARDS = 100_000
_SHARDS_ON_DEMAND = 4
_MOST_LISTED = 10_000
_LISTED = 100
_SHORTEST_RETENTION = 24
_LONGEST_RETENTION = 8760
_SMALLEST_RECORD_LIMIT = 1024
_LARGEST_RECORD_LIMIT = 10_240
_MODES = {"PROVISIONED", "ON_DEMAND"}
_STRATEGIES = ("AUTO", "USER_PARTITION_KEY")


class StreamOperations:
    """Each public method is an operation of the API."""

    def __init__(self, state: KinesisState) -> None:
        self._state = state

    def create_stream(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """CreateStream: provisioned with the given shards, or on demand with four."""
        name = arguments.name("StreamName")
        if name in self._state.streams:
            raise ServiceError("ResourceInUseException", f"Stream {name} under account {ACCOUNT} already exists.")
        count = arguments.optional_whole("ShardCount", 1, _MOST_SHARDS)
        mode = _mode(arguments) or ("ON_DEMAND" if count is None else "PROVISIONED")
        if (mode == "ON_DEMAND") == (count is not None):
            raise not_valid(count, "shardCount", "must be given for a provisioned stream, and only for one")
        limit = arguments.optional_whole("MaxRecordSizeInKiB", _SMALLEST_RECORD_LIMIT, _LARGEST_RECORD_LIMIT)
        self._state.create(
            name,
            now,
            count or _SHARDS_ON_DEMAND,
            on_demand=mode == "ON_DEMAND",
            max_record_kib=limit or _SMALLEST_RECORD_LIMIT,
        )
        return {}

    def delete_stream(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """DeleteStream."""
        self._state.delete(self._state.stream(arguments, now), now)
        return {}

    def describe_stream(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """DescribeStream, with pages of shards."""
        stream = self._state.stream(arguments, now)
        limit = arguments.optional_whole("Limit", 1, _MOST_LISTED) or _LISTED
        after = arguments.optional_text("ExclusiveStartShardId") or ""
        shards = sorted((shard for shard in stream.shards.values() if shard.id > after), key=lambda shard: shard.index)
        described = {
            **_described(stream),
            "Shards": [shard.described() for shard in shards[:limit]],
            "HasMoreShards": len(shards) > limit,
        }
        return {"StreamDescription": described}

    def describe_stream_summary(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """DescribeStreamSummary."""
        stream = self._state.stream(arguments, now)
        described = {
            **_described(stream),
            "OpenShardCount": len(stream.open_shards()),
            "ConsumerCount": len(stream.consumers),
            "MaxRecordSizeInKiB": stream.max_record_kib,
            "RecordDistributionStrategy": _STRATEGIES[0 if stream.keys_ignored else 1],
        }
        return {"StreamDescriptionSummary": described}

    def list_streams(self, arguments: Arguments, _now: int) -> dict[str, Any]:
        """ListStreams, in pages by name."""
        limit = arguments.optional_whole("Limit", 1, _MOST_LISTED) or _LISTED
        after = arguments.optional_text("ExclusiveStartStreamName") or ""
        token = arguments.optional_text("NextToken")
        if token is not None:
            values = read_token(token, 2)
            if values is None or values[0] != "streams":
                raise invalid("NextToken is not legal.")
            after = values[1]
        names = sorted(name for name in self._state.streams if name > after)
        page = names[:limit]
        answer: dict[str, Any] = {
            "StreamNames": page,
            "HasMoreStreams": len(names) > limit,
            "StreamSummaries": [_summary(self._state.streams[name]) for name in page],
        }
        if len(names) > limit:
            answer["NextToken"] = write_token("streams", page[-1])
        return answer

    def increase_stream_retention_period(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """IncreaseStreamRetentionPeriod."""
        stream = self._state.active_stream(arguments, now)
        hours = arguments.whole("RetentionPeriodHours", 1, _LONGEST_RETENTION)
        if hours < stream.retention_hours:
            message = f"Requested retention period ({hours} hours) for stream {stream.name} can not be shorter than"
            raise invalid(f"{message} existing retention period ({stream.retention_hours} hours).")
        stream.retention_hours = hours
        return {}

    def decrease_stream_retention_period(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """DecreaseStreamRetentionPeriod; what is too old then is gone."""
        stream = self._state.active_stream(arguments, now)
        hours = arguments.whole("RetentionPeriodHours", 1, _LONGEST_RETENTION)
        if hours > stream.retention_hours:
            message = f"Requested retention period ({hours} hours) for stream {stream.name} can not be longer than"
            raise invalid(f"{message} existing retention period ({stream.retention_hours} hours).")
        if hours < _SHORTEST_RETENTION:
            raise invalid(f"Minimum allowed retention period is {_SHORTEST_RETENTION} hours.")
        stream.retention_hours = hours
        return {}

    def update_max_record_size(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """UpdateMaxRecordSize."""
        stream = self._state.active_stream(arguments, now)
        stream.max_record_kib = arguments.whole("MaxRecordSizeInKiB", _SMALLEST_RECORD_LIMIT, _LARGEST_RECORD_LIMIT)
        return {}

    def update_stream_record_distribution_strategy(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """UpdateStreamRecordDistributionStrategy: with AUTO, keys are ignored."""
        stream = self._state.active_stream(arguments, now)
        strategy = arguments.text("RecordDistributionStrategy")
        if strategy not in _STRATEGIES:
            legal = ", ".join(_STRATEGIES)
            raise not_valid(strategy, "recordDistributionStrategy", f"must satisfy enum value set: [{legal}]")
        stream.keys_ignored = strategy == "AUTO"
        return {}

    def update_stream_mode(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """UpdateStreamMode."""
        stream = self._state.active_stream(arguments, now)
        stream.on_demand = _mode(arguments) == "ON_DEMAND"
        return {}


def _mode(arguments: Arguments) -> str:
    details = arguments.optional_object("StreamModeDetails")
    mode = "" if details is None else details.text("StreamMode")
    if details is not None and mode not in _MODES:
        raise not_valid(mode, "streamModeDetails.streamMode", "must satisfy enum value set: [PROVISIONED, ON_DEMAND]")
    return mode


def _summary(stream: Stream) -> dict[str, Any]:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status,
        "StreamModeDetails": {"StreamMode": "ON_DEMAND" if stream.on_demand else "PROVISIONED"},
        "StreamCreationTimestamp": float(stream.created_second),
    }


def _described(stream: Stream) -> dict[str, Any]:
    return {
        **_summary(stream),
        "RetentionPeriodHours": stream.retention_hours,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
    }
