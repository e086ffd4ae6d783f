"""Responses of GetRecords and events of SubscribeToShard, by msgspec: no dictionary for a record, data decoded once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.kinesis.client.errors import service_error
from connectors.kinesis.offsets import sequence_number

T = TypeVar("T")

_NO_JSON: Final = (msgspec.DecodeError, ValueError, RecursionError)
"""What msgspec raises: the second for text that is not UTF-8, the last for arrays in arrays."""
_SERVER_ERROR: Final = 500
_LAST_SECOND: Final = 253_402_300_799
"""Of the year 9999: a time beyond it has no place in a column."""
_LARGEST: Final = (1 << 63) - 1
_Seconds = Annotated[float, Meta(ge=0, le=_LAST_SECOND)]
_Milliseconds = Annotated[int, Meta(ge=0, le=_LARGEST)]


class Record(msgspec.Struct, gc=False):
    """A record, under the names of the service."""

    SequenceNumber: str
    Data: bytes
    PartitionKey: str
    ApproximateArrivalTimestamp: _Seconds | None = None

    @property
    def number(self) -> int:
        """The sequence number; raises a `ServiceUnavailableError` for a text that is none."""
        try:
            return sequence_number(self.SequenceNumber)
        except ValueError as error:
            raise malformed("A record", error, "") from None

    @property
    def arrival_ms(self) -> int:
        """When it arrived, in milliseconds since 1970; 0 when the service does not say."""
        return round((self.ApproximateArrivalTimestamp or 0.0) * 1000)


class _Body(msgspec.Struct):
    Records: list[Record]
    NextShardIterator: str | None = None
    MillisBehindLatest: _Milliseconds | None = None


class _ChildShard(msgspec.Struct):
    ShardId: str


class _EventBody(msgspec.Struct):
    Records: list[Record]
    ContinuationSequenceNumber: str | None = None
    MillisBehindLatest: _Milliseconds | None = None
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
        """Bytes of data and partition keys, as the service counts them against its limits."""
        keys = "".join([record.PartitionKey for record in self.records])
        return sum([len(record.Data) for record in self.records]) + len(keys.encode())


def parse_page(body: bytes, at_ms: int, where: str) -> Page:
    """Parse a response of GetRecords; ``where`` names its shard in errors, as in the other functions."""
    parsed = decoded(_DECODER, body, "GetRecords", where)
    _check_ends(parsed.Records)
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
        following = parsed.ContinuationSequenceNumber
        continuation = None if following is None else sequence_number(following)
    except _NO_JSON as error:
        raise malformed(f"An event of SubscribeToShard ({len(payload)} bytes)", error, where) from None
    _check_ends(parsed.Records)
    ended = bool(parsed.ChildShards) or continuation is None
    return Event(parsed.Records, continuation, parsed.MillisBehindLatest or 0, ended)


def event_error(headers: Mapping[str, Any], payload: bytes, where: str) -> ConnectorError | None:
    """Return the error that a message of an event stream reports; None for a message that reports none."""
    kind = headers.get(":message-type")
    if kind == "exception":
        return body_error(payload, _SERVER_ERROR, where, str(headers.get(":exception-type", "")))
    if kind == "error":
        code, message = (str(headers.get(name, "")) for name in (":error-code", ":error-message"))
        return service_error("SubscribeToShard", where, {"Error": {"Code": code, "Message": message}})
    return None


def body_error(body: bytes | bytearray, status: int, where: str, name: str = "") -> ConnectorError:
    """Build the error for the body with which SubscribeToShard is refused; without ``name`` the body names it."""
    try:
        parsed = msgspec.json.decode(body)
    except _NO_JSON:
        parsed = {}
    fields = parsed if isinstance(parsed, dict) else {}
    message = str(fields.get("message") or fields.get("Message") or "")
    error = {"Code": name or str(fields.get("__type", "")), "Message": message}
    return service_error("SubscribeToShard", where, {"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}})


def _check_ends(records: list[Record]) -> None:
    """Read the numbers by which a query goes on, before anything is done with records."""
    for record in (*records[:1], *records[-1:]):
        _ = record.number


def decoded(decoder: msgspec.json.Decoder[T], body: bytes, operation: str, where: str) -> T:
    """Decode the response to a call.

    Raises a `ServiceUnavailableError` when it is not one of this operation; a cut connection can leave such.
    """
    try:
        return decoder.decode(body)
    except _NO_JSON as error:
        raise malformed(f"The response of {operation} ({len(body)} bytes)", error, where) from None


def malformed(what: str, error: Exception, where: str) -> ServiceUnavailableError:
    """Build the error for something that a call returned and that cannot be read."""
    action = "Retries did not help: check endpointUrl, and that no proxy between changes or cuts responses."
    return ServiceUnavailableError("KINESIS_ANSWER_MALFORMED", f"{what} cannot be read: {error}", where, action)


def service_time_ms(date: str | None) -> int:
    """Return the service's time in milliseconds from the header ``Date``; this machine's without it."""
    return round((parsedate_to_datetime(date).timestamp() if date else time.time()) * 1000)
