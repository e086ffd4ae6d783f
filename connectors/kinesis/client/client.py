"""Kinesis itself: the only module of the connector that imports botocore, and only in functions.

botocore finds credentials, signs and sends. It neither parses the answers of GetRecords nor writes the requests of
PutRecords, which takes it ten times as long as msgspec. It does not retry: a retry of its own would not count against
the calls that a shard allows, and could not be left when the query ends. Every error that leaves is a `ConnectorError`.

What requests and answers of the service say, from and into our own words.

The clients that a process keeps.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from connectors.core.errors import SourceGoneError
from connectors.core.pool import Cache
from connectors.core.retry import RetryPolicy, is_transient, retry
from connectors.kinesis.client.botocore_hooks import (
    BODY,
    NamedCredentials,
    NotSent,
    SignedRequest,
    check_plaintext,
    exact_time,
    keep_body,
    named,
    note_time,
    put_body,
    take_body,
)
from connectors.kinesis.client.errors import NOT_FOUND, client_error, refuses_keys, service_error
from connectors.kinesis.offsets import Kind, Position
from connectors.kinesis.shards import Listing, Shard

if TYPE_CHECKING:
    from connectors.kinesis.client.responses import Page
    from connectors.kinesis.offsets import Position
    from connectors.kinesis.options.client import KinesisClientOptions

__all__ = ["KinesisClient", "answered_at", "listed_shard", "patiently", "place", "shared_client", "stream_named"]


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


T = TypeVar("T")

_CONNECT_SECONDS: Final = 10
_READ_SECONDS: Final = 30
_HOUR_MS: Final = 3_600_000


class KinesisClient:
    """Calls of the service; safe to use from several threads. The first call connects.

    Args:
        options: where, and by which credentials.
        connections: how many calls may run at a time.
    """

    def __init__(self, options: KinesisClientOptions, connections: int = 10) -> None:
        self._options = options
        self._connections = connections
        self._lock = threading.Lock()
        self._made: Any = None
        self._keys = 0
        """How often keys were read anew."""

    def call(self, operation: str, where: str, **parameters: Any) -> dict[str, Any]:
        """One call, without retries.

        Args:
            operation: its name in Python, such as ``describe_stream_summary``.
            where: the stream or shard it is about, for errors.
            **parameters: as the service names them.

        Returns:
            The answer, with ``AnsweredAt``, the service's time in milliseconds.

        Raises:
            ConnectorError: it failed.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - see the top
        from botocore.parsers import ResponseParserError  # noqa: PLC0415

        name = "".join(part.capitalize() for part in operation.split("_"))
        try:
            answer = self._answer(operation, parameters)
        except ClientError as error:
            raise service_error(error.operation_name, where, error.response, self._options.role_arn) from None
        except (BotoCoreError, ResponseParserError) as error:
            raise client_error(name, where, error) from None
        answer["AnsweredAt"] = answered_at(answer)
        return answer

    def _answer(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a call; when its keys are refused, that to another one with keys read anew."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - see the top

        keys = self._keys
        try:
            answer: dict[str, Any] = getattr(self._client(), operation)(**parameters)
        except ClientError as error:
            if not (refuses_keys(error.response) and self.renew(keys)):
                raise
            answer = getattr(self._client(), operation)(**parameters)
        return answer

    def renew(self, keys: int) -> bool:
        """See that the next call reads its keys anew: somebody may have changed them in a shared file.

        Args:
            keys: which were refused, as `SignedRequest.keys` has it; when they are not the newest, nothing is done.

        Returns:
            Whether there may be others: not when the options give the keys.
        """
        if self._options.access_key is not None:
            return False
        with self._lock:
            if self._keys == keys:
                self._made, self._keys = None, keys + 1
        return True

    def credentials(self) -> str:
        """The way in which credentials are found, in botocore's words; a role is assumed once.

        Raises:
            CredentialsError: there are none.
            ConnectorError: the role cannot be assumed.
        """
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError  # noqa: PLC0415 - see the top
        from botocore.parsers import ResponseParserError  # noqa: PLC0415

        try:
            found = _session(self._options).get_credentials()
            if found is None:
                raise NoCredentialsError
            found.get_frozen_credentials()
        except ClientError as error:
            raise service_error(error.operation_name, "sts", error.response, self._options.role_arn) from None
        except (BotoCoreError, ResponseParserError) as error:
            raise client_error("Finding credentials", "kinesis", error) from None
        return str(found.method)

    def address(self) -> tuple[str, str]:
        """Region and URL of the service.

        Raises:
            ConnectorError: no region is known.
        """
        meta = self._client().meta
        return str(meta.region_name), str(meta.endpoint_url)

    def describe(self, stream: str) -> dict[str, Any]:
        """The summary of a stream, under the service's names.

        Raises:
            SourceGoneError: it is not there, or is being deleted.
            ConnectorError: the call failed.
        """
        answer = self.call("describe_stream_summary", stream, **stream_named(stream))
        summary: dict[str, Any] = answer["StreamDescriptionSummary"]
        if summary["StreamStatus"] == "DELETING":
            raise SourceGoneError(NOT_FOUND, "The stream is being deleted", stream, "Read another stream.")
        return summary

    def listing(self, stream: str, page_size: int = 1000) -> Listing:
        """A stream and its shards.

        Args:
            stream: name or ARN.
            page_size: the most shards of one call.

        Raises:
            ConnectorError: a call failed.
        """
        summary = self.describe(stream)
        first: int | None = None
        shards: dict[str, Shard] = {}
        for answer in self._shard_pages(stream, page_size):
            first = answer["AnsweredAt"] if first is None else first
            shards |= {each["ShardId"]: listed_shard(each) for each in answer["Shards"]}
        return Listing(
            stream=stream,
            arn=summary["StreamARN"],
            created_ms=round(summary["StreamCreationTimestamp"].timestamp() * 1000),
            retention_ms=int(summary["RetentionPeriodHours"]) * _HOUR_MS,
            at_ms=first or 0,
            shards=shards,
        )

    def _shard_pages(self, stream: str, page_size: int) -> Iterator[dict[str, Any]]:
        answer = self.call("list_shards", stream, MaxResults=page_size, **stream_named(stream))
        yield answer
        while token := answer.get("NextToken"):
            # A stream and a token together are refused.
            answer = self.call("list_shards", stream, MaxResults=page_size, NextToken=token)
            yield answer

    def iterator(self, stream: str, shard: str, position: Position) -> str:
        """An iterator at a position; it is good for five minutes.

        Raises:
            ConnectorError: the call failed; with `INVALID_ARGUMENT` the position is none of this shard.
        """
        begin = place(position, "ShardIteratorType", "StartingSequenceNumber")
        where = f"{stream}, {shard}"
        answer = self.call("get_shard_iterator", where, ShardId=shard, **stream_named(stream), **begin)
        return str(answer["ShardIterator"])

    def records(self, iterator: str, limit: int, stream: str, shard: str) -> Page:
        """The records that follow an iterator, as far as one answer goes.

        Raises:
            ConnectorError: the call failed; with `EXPIRED_ITERATOR` a new iterator helps.
        """
        from connectors.kinesis.client.responses import parse_page  # noqa: PLC0415 - msgspec comes with the extra

        named = stream_named(stream) if stream.startswith("arn:") else {}
        answer = self.call("get_records", f"{stream}, {shard}", ShardIterator=iterator, Limit=limit, **named)
        return parse_page(answer[BODY], answer["AnsweredAt"], f"{stream}, {shard}")

    def subscription(self, consumer: str, shard: str, position: Position) -> SignedRequest:
        """The request that subscribes a consumer to a shard; botocore has made and signed it, and not sent it.

        Args:
            consumer: ARN of the consumer.
            shard: id of the shard.
            position: where to begin.

        Raises:
            ConnectorError: it cannot be signed.
        """
        keys = self._keys
        try:
            self.call(
                "subscribe_to_shard",
                f"{consumer}, {shard}",
                ConsumerARN=consumer,
                ShardId=shard,
                StartingPosition=place(position, "Type", "SequenceNumber"),
            )
        except NotSent as made:
            return replace(made.request, keys=keys)
        raise AssertionError("a request that must not be sent was sent")

    def put_records(self, stream: str, body: bytes) -> bytes:
        """One PutRecords whose body is written already; gives the body of the answer.

        Raises:
            ConnectorError: the call failed.
        """
        answer: bytes = self.call("put_records", stream, **stream_named(stream), **{BODY: body})[BODY]
        return answer

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = _open(self._options, self._connections)
            return self._made


def patiently(
    attempt: Callable[[], T], options: KinesisClientOptions, sleep: Callable[[float], object] = time.sleep
) -> T:
    """Call until it succeeds, fails for good, or ``numRetries`` is used up.

    Args:
        attempt: what to try.
        options: how often, and how long between.
        sleep: waits so many seconds; when it returns True, nothing more is tried.

    Raises:
        ConnectorError: the last error.
    """
    left = options.num_retries

    def retryable(error: BaseException) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and is_transient(error)

    policy = RetryPolicy(cap_seconds=options.max_retry_interval, deadline_seconds=None)
    return retry(attempt, policy, retryable=retryable, sleep=sleep)


def _refuse_part(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_event: Any) -> None:
    """Refuse an answer whose end is missing: botocore would take it for one that says nothing.

    Not one whose body was given out by `keep_body`, which comes first: its own parser refuses it.

    Raises:
        IncompleteReadError: the connection was cut.
    """
    from botocore.exceptions import IncompleteReadError  # noqa: PLC0415 - see the top

    body, expected = response_dict["body"], response_dict["headers"].get("content-length")
    whole = expected is None or BODY in customized_response_dict or len(body) == int(expected)
    if not whole:
        raise IncompleteReadError(actual_bytes=len(body), expected_bytes=expected)


def _do_not_send(request: Any, *, trusted: str, **_event: Any) -> None:
    """Take a request that is signed out of botocore, which would send it by HTTP/1.1.

    Args:
        request: the request.
        trusted: a file with the authorities that botocore trusts.

    Raises:
        NotSent: with the request.
    """
    texts = {
        name: value.decode("latin-1") if isinstance(value, bytes) else str(value)
        for name, value in request.headers.items()
    }
    body = request.body.encode() if isinstance(request.body, str) else bytes(request.body or b"")
    raise NotSent(SignedRequest(request.url, texts, body, trusted if request.url.startswith("https:") else None))


def _open(options: KinesisClientOptions, connections: int) -> Any:
    """A botocore client.

    Raises:
        ConnectorError: the profile or the region is not there.
    """
    from botocore.config import Config  # noqa: PLC0415 - see the top
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415
    from botocore.httpsession import where  # noqa: PLC0415

    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=connections,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
        user_agent_extra="pyspark-stream-connectors",
    )
    try:
        session = _session(options)
        client = session.create_client("kinesis", endpoint_url=options.endpoint_url, config=config)
    except BotoCoreError as error:
        raise client_error("Opening a client", "kinesis", error) from None
    client.meta.events.register("before-parse.kinesis", _refuse_part)
    client.meta.events.register("before-parse.kinesis.GetRecords", keep_body)
    trusted = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or where()
    client.meta.events.register("before-send.kinesis.SubscribeToShard", partial(_do_not_send, trusted=trusted))
    client.meta.events.register("before-parse.kinesis.PutRecords", keep_body)
    client.meta.events.register("before-parameter-build.kinesis.PutRecords", take_body)
    client.meta.events.register("before-call.kinesis.PutRecords", put_body)
    for operation in ("GetShardIterator", "SubscribeToShard"):
        client.meta.events.register(f"before-parameter-build.kinesis.{operation}", note_time)
        client.meta.events.register(f"before-call.kinesis.{operation}", exact_time)
    return client


def _session(options: KinesisClientOptions) -> Any:
    """A session of botocore with the credentials that the options say."""
    import botocore.session  # noqa: PLC0415 - see the top

    session = botocore.session.Session(profile=options.profile)
    # Clients for credentials are made from it too, and any of them may have its URL from the environment or a file.
    session.register("request-created", partial(check_plaintext, allowed=options.allow_insecure))
    if options.region is not None:
        session.set_config_variable("region", options.region)
    if options.access_key is not None and options.secret_key is not None:
        token = options.session_token
        session.set_credentials(
            options.access_key.reveal(), options.secret_key.reveal(), token.reveal() if token is not None else None
        )
    found = named(session.get_credentials)
    if options.role_arn is not None:
        found = _assumed(session, options, options.role_arn, found)
    if found is not None:
        session._credentials = NamedCredentials(found)  # noqa: SLF001 - as its providers leave them; it has no setter
    return session


def _assumed(session: Any, options: KinesisClientOptions, role: str, source: Any) -> Any:
    """The credentials of a role that is assumed by others; they are made anew before they expire."""
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials  # noqa: PLC0415
    from botocore.exceptions import NoCredentialsError  # noqa: PLC0415

    if source is None:
        raise NoCredentialsError
    external, name = options.role_external_id, options.role_session_name
    extra = {"ExternalId": external.reveal() if external is not None else None, "RoleSessionName": name}
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=partial(session.create_client, endpoint_url=options.sts_endpoint),
        source_credentials=source,
        role_arn=role,
        extra_args={key: value for key, value in extra.items() if value is not None},
    )
    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


_clients: Final = Cache(4)
"""By process and options: each takes some 10 MB, and a job that fetches new keys for each batch has ever new ones."""


def shared_client(options: KinesisClientOptions) -> KinesisClient:
    """The client of this process with these options: a task's worker keeps it for the next task.

    A client is not shared with a process that was forked after it was made.
    """
    return _clients.get((os.getpid(), options), lambda: KinesisClient(options))
