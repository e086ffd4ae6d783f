"""Responses of GetRecords and events of SubscribeToShard, by msgspec: no dictionary for a record, data decoded once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec

from connectors.core.errors import ServiceUnavailableError

__all__ = ["Event", "Page", "Record", "decoded", "malformed", "parse_event", "parse_page", "service_time_ms"]

T = TypeVar("T")


class Record(msgspec.Struct, gc=False):
    """A record, under the names of the service."""

    SequenceNumber: str
    Data: bytes
    PartitionKey: str
    ApproximateArrivalTimestamp: float | None = None

    @property
    def number(self) -> int:
        """The sequence number."""
        return int(self.SequenceNumber)

    @property
    def arrival_ms(self) -> int:
        """When it arrived, in milliseconds since 1970; 0 when the service does not say."""
        return round((self.ApproximateArrivalTimestamp or 0.0) * 1000)


class _Body(msgspec.Struct):
    Records: list[Record]
    NextShardIterator: str | None = None
    MillisBehindLatest: int | None = None


class _ChildShard(msgspec.Struct):
    ShardId: str


class _EventBody(msgspec.Struct):
    Records: list[Record]
    ContinuationSequenceNumber: str | None = None
    MillisBehindLatest: int | None = None
    ChildShards: list[_ChildShard] | None = None


_DECODER = msgspec.json.Decoder(_Body)
_EVENT_DECODER = msgspec.json.Decoder(_EventBody)


@dataclass(frozen=True, slots=True)
class Page:
    """One response of GetRecords, at the service's time ``at_ms``, in whole seconds.

    ``records`` may be empty also when more lie ahead, which they do unless ``behind_ms`` is 0; ``following`` is the
    iterator of the next page, None at the end of a closed shard.
    """

    records: list[Record]
    following: str | None
    behind_ms: int
    at_ms: int

    @property
    def data_size(self) -> int:
        """Bytes of data, as the service counts them against its limits."""
        return sum(len(record.Data) for record in self.records)


def parse_page(body: bytes, at_ms: int, where: str) -> Page:
    """Parse a response of GetRecords; ``where`` names its shard in errors, as in the other functions."""
    parsed = decoded(_DECODER, body, "GetRecords", where)
    return Page(parsed.Records, parsed.NextShardIterator, parsed.MillisBehindLatest or 0, at_ms)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of SubscribeToShard; an idle shard has one without records every few seconds.

    ``continuation`` is the number after which to subscribe next, which need not be a record's; None at a shard's end.
    ``behind_ms`` is 0 when nothing lies ahead. With ``ended`` the shard is closed, and this is its last event.
    """

    records: list[Record]
    continuation: int | None
    behind_ms: int
    ended: bool


def parse_event(payload: bytes, where: str) -> Event:
    """Parse an event of SubscribeToShard; raises a `ServiceUnavailableError` for anything else."""
    try:
        parsed = _EVENT_DECODER.decode(payload)
        continuation = None if parsed.ContinuationSequenceNumber is None else int(parsed.ContinuationSequenceNumber)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise malformed(f"An event of SubscribeToShard ({len(payload)} bytes)", error, where) from None
    ended = bool(parsed.ChildShards) or continuation is None
    return Event(parsed.Records, continuation, parsed.MillisBehindLatest or 0, ended)


def decoded(decoder: msgspec.json.Decoder[T], body: bytes, operation: str, where: str) -> T:
    """Decode the response to a call.

    Raises a `ServiceUnavailableError` when it is not one of this operation; a cut connection can leave such.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:  # the latter for arrays in arrays
        raise malformed(f"The response of {operation} ({len(body)} bytes)", error, where) from None


def malformed(what: str, error: Exception, where: str) -> ServiceUnavailableError:
    """Build the error for something that a call returned and that cannot be read."""
    action = "Retries did not help: check endpointUrl, and that no proxy between changes or cuts responses."
    return ServiceUnavailableError("KINESIS_ANSWER_MALFORMED", f"{what} cannot be read: {error}", where, action)


def service_time_ms(date: str | None) -> int:
    """Return the service's time in milliseconds from the header ``Date``; this machine's without it."""
    return round((parsedate_to_datetime(date).timestamp() if date else time.time()) * 1000)
