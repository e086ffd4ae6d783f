"""The calls of Kinesis. botocore finds credentials, signs and sends; every error is a `ConnectorError`.

msgspec parses GetRecords and writes PutRecords, ten times as fast as botocore: hooks on its events pass those bodies
by. botocore doesn't retry: its retries would not count against a shard's limits, nor end with the query.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.httpsession import where as default_authorities
from botocore.parsers import ResponseParserError
from msgspec import Meta

from connectors.core.aws.access import refuse_plaintext
from connectors.core.aws.client.connection import AwsConnection, AwsService
from connectors.core.errors import ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.core.processes.pool import Cache
from connectors.kinesis import FORMAT
from connectors.kinesis.client.errors import NOT_FOUND, client_error, credentials_error, service_error
from connectors.kinesis.offsets import Position, PositionKind, sequence_number
from connectors.kinesis.options.client import KinesisClientOptions, stream_named
from connectors.kinesis.shards import HashRange, Listing, Shard

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
    """One response of GetRecords at the service's time ``at_ms``, which has whole seconds.

    ``records`` may be empty though more lie ahead; they do unless ``behind_ms`` is 0. ``following`` is the next page's
    iterator, None at the end of a closed shard.
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
    """Parse a response of GetRecords; ``where`` names its shard in errors."""
    parsed = decoded(_DECODER, body, "GetRecords", where)
    _check_ends(parsed.Records)
    return Page(parsed.Records, parsed.NextShardIterator, parsed.MillisBehindLatest or 0, at_ms)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of SubscribeToShard; an idle shard sends one without records every few seconds.

    Subscribe next after ``continuation``, which need not be a record's number; None at a shard's end. ``ended`` marks
    the last event of a closed shard.
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
    """Fail before anything is done with the records if the numbers that a query resumes by are malformed."""
    for record in (*records[:1], *records[-1:]):
        _ = record.number


def decoded(decoder: msgspec.json.Decoder[T], body: bytes, operation: str, where: str) -> T:
    """Decode a response; raises a `ServiceUnavailableError` for a malformed one, as a cut connection can leave."""
    try:
        return decoder.decode(body)
    except _NO_JSON as error:
        raise malformed(f"The response of {operation} ({len(body)} bytes)", error, where) from None


def malformed(what: str, error: Exception, where: str) -> ServiceUnavailableError:
    return ServiceUnavailableError("KINESIS_ANSWER_MALFORMED", f"{what} cannot be parsed: {error}", where)


def service_time_ms(date: str | None) -> int:
    """Return the service's time in milliseconds from the header ``Date``; this machine's without it."""
    return round((parsedate_to_datetime(date).timestamp() if date else time.time()) * 1000)


_BODY: Final = "RawBody"
"""The key of a body that botocore neither parses nor writes, in responses and in parameters."""
_OK: Final = 200
_VALID_RECORDS: Final[list[dict[str, Any]]] = [{"Data": b"", "PartitionKey": "0"}]
"""The least that botocore takes for a request."""
_KINDS: Final = {
    PositionKind.TRIM: "TRIM_HORIZON",
    PositionKind.TIME: "AT_TIMESTAMP",
    PositionKind.AFTER: "AFTER_SEQUENCE_NUMBER",
    PositionKind.AT: "AT_SEQUENCE_NUMBER",
    PositionKind.LATEST: "LATEST",
}
_HOUR_MS: Final = 3_600_000
_MOST_LISTED: Final = 1000


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A signed HTTP request, valid for minutes; ``keys`` counts how often the keys had been read before.

    ``certificates`` is a file with the authorities that botocore trusts; None for ``http:``.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes
    certificates: str | None
    keys: int = 0


_TASK_CONNECTIONS: Final = 16
"""A task reads that many shards at a time."""
_clients: Final = Cache(4)
"""By process and options: a client takes some 10 MB, and a job that fetches new keys for each batch has new options."""


class KinesisClient:
    """Calls the service from up to ``connections`` threads; the first call connects.

    A call that fails raises a `ConnectorError`, and is not retried.
    """

    def __init__(self, options: KinesisClientOptions, connections: int = 10) -> None:
        self._options = options
        self._connection = AwsConnection(options, _SERVICE, connections)

    def call(self, operation: str, where: str, **parameters: Any) -> dict[str, Any]:
        """Call an operation, named as in Python; ``where`` names the stream or shard in errors.

        The response gets ``AnsweredAt``, the service's time in milliseconds.
        """
        name = "".join(part.capitalize() for part in operation.split("_"))
        with _named_errors(name, where, self._options):
            response = self._connection.call(operation, parameters)
        response["AnsweredAt"] = service_time_ms(response["ResponseMetadata"].get("HTTPHeaders", {}).get("date"))
        return response

    def _open(self) -> tuple[Any, Any]:
        with _named_errors("Opening a client", "kinesis", self._options):
            return self._connection.open()

    def renew(self, keys: int) -> bool:
        """Make the next call read its keys again; return False when the options give the keys."""
        return self._connection.renew(keys)

    def credentials(self) -> str:
        """Return how credentials are found, as botocore names it."""
        with _named_errors("Finding credentials", "kinesis", self._options):
            return self._connection.credentials()

    def address(self) -> tuple[str, str]:
        meta = self._open()[1].meta
        return str(meta.region_name), str(meta.endpoint_url)

    def describe(self, stream: str) -> dict[str, Any]:
        """Return the summary of a stream; raises a `SourceGoneError` if it does not exist, or is being deleted."""
        response = self.call("describe_stream_summary", stream, **stream_named(stream))
        summary: dict[str, Any] = response["StreamDescriptionSummary"]
        if summary["StreamStatus"] == "DELETING":
            raise SourceGoneError(NOT_FOUND, "The stream is being deleted", stream)
        return summary

    def listing(self, stream: str, page_size: int = _MOST_LISTED) -> Listing:
        """Return a stream and its shards; if the list expires meanwhile, a `ServiceUnavailableError`: list again."""
        summary = self.describe(stream)
        pages = self._shard_pages(stream, page_size)
        return Listing(
            stream=stream,
            arn=summary["StreamARN"],
            created_ms=round(summary["StreamCreationTimestamp"].timestamp() * 1000),
            retention_ms=int(summary["RetentionPeriodHours"]) * _HOUR_MS,
            at_ms=pages[0]["AnsweredAt"],
            shards={shard["ShardId"]: _listed_shard(shard) for page in pages for shard in page["Shards"]},
        )

    def hash_ranges(self, stream: str) -> list[HashRange]:
        """Return which hash keys each shard of a stream takes, of closed shards too."""
        return [_hash_range(shard) for page in self._shard_pages(stream, _MOST_LISTED) for shard in page["Shards"]]

    def _shard_pages(self, stream: str, page_size: int) -> list[dict[str, Any]]:
        pages = [self.call("list_shards", stream, MaxResults=page_size, **stream_named(stream))]
        while token := pages[-1].get("NextToken"):
            # A stream and a token together are refused.
            pages.append(self.call("list_shards", stream, MaxResults=page_size, NextToken=token))
        return pages

    def iterator(self, stream: str, shard: str, position: Position) -> str:
        """Return an iterator, valid for five minutes; `INVALID_ARGUMENT` means that the shard has no such position."""
        parameters: dict[str, Any] = {"ShardId": shard, **stream_named(stream)}
        parameters |= _position_parameters(position, "ShardIteratorType", "StartingSequenceNumber")
        if position.kind is PositionKind.TIME:
            # botocore cuts times to whole seconds.
            parameters[_BODY] = json.dumps(parameters).encode()
        return str(self.call("get_shard_iterator", f"{stream}, {shard}", **parameters)["ShardIterator"])

    def records(self, iterator: str, limit: int, stream: str, shard: str) -> Page:
        """Return the records of one response; `EXPIRED_ITERATOR` means that a new iterator helps."""
        named = stream_named(stream) if stream.startswith("arn:") else {}
        response = self.call("get_records", f"{stream}, {shard}", ShardIterator=iterator, Limit=limit, **named)
        return parse_page(response[_BODY], response["AnsweredAt"], f"{stream}, {shard}")

    def subscription(self, consumer: str, shard: str, position: Position) -> SignedRequest:
        """Return the signed request that subscribes a consumer, by its ARN; botocore cannot send it by HTTP/2."""
        keys = self._connection.keys
        start = _position_parameters(position, "Type", "SequenceNumber")
        body = json.dumps({"ConsumerARN": consumer, "ShardId": shard, "StartingPosition": start}).encode()
        with _named_errors("SubscribeToShard", f"{consumer}, {shard}", self._options):
            session, client = self._open()
            credentials = session.get_credentials()
            if credentials is None:
                raise NoCredentialsError
            url = client.meta.endpoint_url.rstrip("/") + "/"
            refuse_plaintext(url, "The URL of SubscribeToShard", FORMAT, allowed=self._options.allow_insecure)
            headers = {
                "Content-Type": "application/x-amz-json-1.1",
                "User-Agent": client.meta.config.user_agent,
                "X-Amz-Target": "Kinesis_20131202.SubscribeToShard",
            }
            request = AWSRequest("POST", url, headers, body)
            SigV4Auth(credentials.get_frozen_credentials(), "kinesis", client.meta.region_name).add_auth(request)
            bundle = session.get_config_variable("ca_bundle")
        bundle = bundle or os.environ.get("REQUESTS_CA_BUNDLE") or default_authorities()
        return SignedRequest(url, dict(request.headers), body, bundle if url.startswith("https:") else None, keys)

    def put_records(self, stream: str, body: bytes) -> bytes:
        parameters = {"Records": _VALID_RECORDS, **stream_named(stream), _BODY: body}
        response: bytes = self.call("put_records", stream, **parameters)[_BODY]
        return response

    def put_record(self, stream: str, body: bytes) -> tuple[str, str]:
        """Make one PutRecord whose body is finished; return the record's shard and sequence number."""
        parameters = {**_VALID_RECORDS[0], **stream_named(stream), _BODY: body}
        response = self.call("put_record", stream, **parameters)
        return str(response["ShardId"]), str(response["SequenceNumber"])


def shared_client(options: KinesisClientOptions) -> KinesisClient:
    """Return this process's client with these options; one made before a fork is not shared."""
    return _clients.get((os.getpid(), options), lambda: KinesisClient(options, _TASK_CONNECTIONS))


def _position_parameters(position: Position, kind: str, number: str) -> dict[str, Any]:
    """Return the parameters for a position; ``kind`` and ``number`` are the names of two of them."""
    parameters: dict[str, Any] = {kind: _KINDS[position.kind]}
    if position.kind in {PositionKind.AFTER, PositionKind.AT}:
        parameters[number] = str(position.number)
    if position.kind is PositionKind.TIME:
        parameters["Timestamp"] = position.number / 1000
    return parameters


def _listed_shard(listed: Mapping[str, Any]) -> Shard:
    parents = [listed.get("ParentShardId"), listed.get("AdjacentParentShardId")]
    closed = "EndingSequenceNumber" in listed["SequenceNumberRange"]
    return Shard(listed["ShardId"], tuple(parent for parent in parents if parent), closed)


def _hash_range(listed: Mapping[str, Any]) -> HashRange:
    keys = listed["HashKeyRange"]
    closed = "EndingSequenceNumber" in listed["SequenceNumberRange"]
    return HashRange(listed["ShardId"], int(keys["StartingHashKey"]), int(keys["EndingHashKey"]), closed)


@contextmanager
def _named_errors(operation: str, where: str, options: KinesisClientOptions) -> Iterator[None]:
    """Raise botocore's errors as our own."""
    try:
        yield
    except ClientError as error:
        raise service_error(error.operation_name, where, error.response, options.role_arn) from None
    except (BotoCoreError, ResponseParserError) as error:
        raise client_error(operation, where, error) from None


class MessageBuffer:
    """Parses the messages of SubscribeToShard (AWS's event-stream encoding) from pieces."""

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()

    def feed(self, data: bytes) -> Iterator[EventStreamMessage]:
        """Yield the messages that these bytes complete; raises a `ServiceUnavailableError` if they are damaged."""
        self._buffer.add_data(data)
        try:
            yield from self._buffer
        except (ParserError, LookupError, ValueError, struct.error) as error:
            what = f"A response of SubscribeToShard is damaged: {type(error).__name__}: {error}"
            raise ServiceUnavailableError("KINESIS_EVENT_DAMAGED", what) from None


def _keep_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_event: Any) -> None:
    """Pass the body by the parser, except for errors."""
    if response_dict["status_code"] == _OK:
        customized_response_dict[_BODY] = response_dict["body"]
        response_dict["body"] = b"{}"


def _take_body(params: dict[str, Any], context: dict[str, Any], **_event: Any) -> None:
    if _BODY in params:
        context[_BODY] = params.pop(_BODY)


def _put_body(params: dict[str, Any], context: Mapping[str, Any], **_event: Any) -> None:
    if _BODY in context:
        params["body"] = context[_BODY]


_SERVICE: Final = AwsService(
    "kinesis",
    FORMAT,
    credentials_error,
    is_read=lambda customized: _BODY in customized,
    hooks=(
        ("before-parse.kinesis.GetRecords", _keep_body),
        ("before-parse.kinesis.PutRecords", _keep_body),
        ("before-parameter-build.kinesis", _take_body),
        ("before-call.kinesis", _put_body),
    ),
)
