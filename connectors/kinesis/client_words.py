"""What requests and answers of the service say, from and into our own words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

from connectors.kinesis.positions import Kind, Position
from connectors.kinesis.shards import Shard

__all__ = ["answered_at", "listed_shard", "place", "stream_named"]

_PLACES: Final = {
    Kind.TRIM: "TRIM_HORIZON",
    Kind.TIME: "AT_TIMESTAMP",
    Kind.AFTER: "AFTER_SEQUENCE_NUMBER",
    Kind.AT: "AT_SEQUENCE_NUMBER",
    Kind.LATEST: "LATEST",
}


def stream_named(stream: str) -> dict[str, str]:
    """The parameter that names a stream, by its name or ARN."""
    return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}


def place(position: Position, kind: str, number: str) -> dict[str, Any]:
    """The parameters that name a place in a shard.

    Args:
        position: the place.
        kind: the name of the parameter that says its kind.
        number: that of the parameter with the number of a record.
    """
    named: dict[str, Any] = {kind: _PLACES[position.kind]}
    if position.kind in {Kind.AFTER, Kind.AT}:
        named[number] = str(position.number)
    if position.kind is Kind.TIME:
        named["Timestamp"] = position.number / 1000
    return named


def listed_shard(listed: Mapping[str, Any]) -> Shard:
    """A shard, as ListShards tells of it."""
    parents = [listed.get("ParentShardId"), listed.get("AdjacentParentShardId")]
    closed = "EndingSequenceNumber" in listed["SequenceNumberRange"]
    return Shard(listed["ShardId"], tuple(each for each in parents if each), closed)


def answered_at(answer: Mapping[str, Any]) -> int:
    """The service's time of an answer in milliseconds; this machine's, when it does not say."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return round((parsedate_to_datetime(date).timestamp() if date else time.time()) * 1000)
