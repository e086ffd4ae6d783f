"""The calls of Kinesis. Every error that leaves is a `ConnectorError`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from botocore.exceptions import ClientError, NoCredentialsError

from connectors.core.errors import SourceGoneError
from connectors.kinesis.client.errors import NOT_FOUND, refuses_keys
from connectors.kinesis.client.responses import Page, parse_page, service_time_ms
from connectors.kinesis.client.session import BODY, SignedRequest, named_errors, open_client, open_session, sign
from connectors.kinesis.offsets import Kind, Position
from connectors.kinesis.options.client import KinesisClientOptions, stream_named
from connectors.kinesis.shards import Listing, Shard

__all__ = ["KinesisClient"]

_KINDS: Final = {
    Kind.TRIM: "TRIM_HORIZON",
    Kind.TIME: "AT_TIMESTAMP",
    Kind.AFTER: "AFTER_SEQUENCE_NUMBER",
    Kind.AT: "AT_SEQUENCE_NUMBER",
    Kind.LATEST: "LATEST",
}
_HOUR_MS: Final = 3_600_000


class KinesisClient:
    """Calls the service from several threads, ``connections`` of them at a time. The first call connects.

    Every call raises a `ConnectorError` when it fails; none is made again.
    """

    def __init__(self, options: KinesisClientOptions, connections: int = 10) -> None:
        self._options = options
        self._connections = connections
        self._lock = threading.Lock()
        self._opened: tuple[Any, Any] | None = None
        self._keys = 0
        """How often the keys were read again."""

    def call(self, operation: str, where: str, **parameters: Any) -> dict[str, Any]:
        """Make one call about a stream or shard, which ``where`` names in errors.

        ``operation`` is its name in Python, such as ``describe_stream_summary``. The response gets ``AnsweredAt``, the
        service's time in milliseconds.
        """
        name = "".join(part.capitalize() for part in operation.split("_"))
        with named_errors(name, where, self._options):
            response = self._respond(operation, parameters)
        response["AnsweredAt"] = service_time_ms(response["ResponseMetadata"].get("HTTPHeaders", {}).get("date"))
        return response

    def _respond(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Make a call; when its keys are refused, once more with keys that are read again."""
        keys = self._keys
        try:
            response: dict[str, Any] = getattr(self._open()[1], operation)(**parameters)
        except ClientError as error:
            if not (refuses_keys(error.response) and self.renew(keys)):
                raise
            response = getattr(self._open()[1], operation)(**parameters)
        return response

    def _open(self) -> tuple[Any, Any]:
        with self._lock:
            if self._opened is None:
                with named_errors("Opening a client", "kinesis", self._options):
                    session = open_session(self._options)
                    self._opened = session, open_client(session, self._options, self._connections)
            return self._opened

    def renew(self, keys: int) -> bool:
        """Make the next call read its keys again: somebody may have changed them in a shared file.

        Nothing is done when the refused ``keys`` (see `SignedRequest`) are not the newest. Returns whether there may be
        others: not when the options give the keys.
        """
        if self._options.access_key is not None:
            return False
        with self._lock:
            if self._keys == keys:
                self._opened, self._keys = None, keys + 1
        return True

    def credentials(self) -> str:
        """Return how credentials are found, as botocore names it; a role is assumed once."""
        with named_errors("Finding credentials", "kinesis", self._options):
            credentials = open_session(self._options).get_credentials()
            if credentials is None:
                raise NoCredentialsError
            credentials.get_frozen_credentials()
        return str(credentials.method)

    def address(self) -> tuple[str, str]:
        """Return region and URL of the service."""
        meta = self._open()[1].meta
        return str(meta.region_name), str(meta.endpoint_url)

    def describe(self, stream: str) -> dict[str, Any]:
        """Return the summary of a stream, under the service's names.

        Raises:
            SourceGoneError: it does not exist, or is being deleted.
        """
        response = self.call("describe_stream_summary", stream, **stream_named(stream))
        summary: dict[str, Any] = response["StreamDescriptionSummary"]
        if summary["StreamStatus"] == "DELETING":
            raise SourceGoneError(NOT_FOUND, "The stream is being deleted", stream, "Read another stream.")
        return summary

    def listing(self, stream: str, page_size: int = 1000) -> Listing:
        """Return a stream and its shards, listed ``page_size`` shards at a time."""
        summary = self.describe(stream)
        pages = list(self._shard_pages(stream, page_size))
        return Listing(
            stream=stream,
            arn=summary["StreamARN"],
            created_ms=round(summary["StreamCreationTimestamp"].timestamp() * 1000),
            retention_ms=int(summary["RetentionPeriodHours"]) * _HOUR_MS,
            at_ms=pages[0]["AnsweredAt"],
            shards={shard["ShardId"]: _listed_shard(shard) for page in pages for shard in page["Shards"]},
        )

    def _shard_pages(self, stream: str, page_size: int) -> Iterator[dict[str, Any]]:
        response = self.call("list_shards", stream, MaxResults=page_size, **stream_named(stream))
        yield response
        while token := response.get("NextToken"):
            # A stream and a token together are refused.
            response = self.call("list_shards", stream, MaxResults=page_size, NextToken=token)
            yield response

    def iterator(self, stream: str, shard: str, position: Position) -> str:
        """Return an iterator at a position; it is valid for five minutes.

        Fails with `INVALID_ARGUMENT` when the position is not one of this shard.
        """
        begin = _position_parameters(position, "ShardIteratorType", "StartingSequenceNumber")
        where = f"{stream}, {shard}"
        response = self.call("get_shard_iterator", where, ShardId=shard, **stream_named(stream), **begin)
        return str(response["ShardIterator"])

    def records(self, iterator: str, limit: int, stream: str, shard: str) -> Page:
        """Return the records that follow an iterator, as far as one response goes.

        Fails with `EXPIRED_ITERATOR` when a new iterator helps.
        """
        named = stream_named(stream) if stream.startswith("arn:") else {}
        response = self.call("get_records", f"{stream}, {shard}", ShardIterator=iterator, Limit=limit, **named)
        return parse_page(response[BODY], response["AnsweredAt"], f"{stream}, {shard}")

    def subscription(self, consumer: str, shard: str, position: Position) -> SignedRequest:
        """Return the signed request that subscribes a consumer, by its ARN, to a shard."""
        keys = self._keys
        parameters = {
            "ConsumerARN": consumer,
            "ShardId": shard,
            "StartingPosition": _position_parameters(position, "Type", "SequenceNumber"),
        }
        insecure = self._options.allow_insecure
        with named_errors("SubscribeToShard", f"{consumer}, {shard}", self._options):
            signed = sign(*self._open(), "SubscribeToShard", parameters, allow_insecure=insecure)
        return replace(signed, keys=keys)

    def put_records(self, stream: str, body: bytes) -> bytes:
        """Make one PutRecords whose body is finished; return the body of the response."""
        response: bytes = self.call("put_records", stream, **stream_named(stream), **{BODY: body})[BODY]
        return response


def _position_parameters(position: Position, kind: str, number: str) -> dict[str, Any]:
    """Return the parameters for a position; ``kind`` and ``number`` are the names of two of them."""
    parameters: dict[str, Any] = {kind: _KINDS[position.kind]}
    if position.kind in {Kind.AFTER, Kind.AT}:
        parameters[number] = str(position.number)
    if position.kind is Kind.TIME:
        parameters["Timestamp"] = position.number / 1000
    return parameters


def _listed_shard(listed: Mapping[str, Any]) -> Shard:
    parents = [listed.get("ParentShardId"), listed.get("AdjacentParentShardId")]
    closed = "EndingSequenceNumber" in listed["SequenceNumberRange"]
    return Shard(listed["ShardId"], tuple(parent for parent in parents if parent), closed)
