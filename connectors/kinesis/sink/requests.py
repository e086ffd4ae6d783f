"""The bodies of PutRecords, by msgspec: botocore would visit each record twice, to validate it and to write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from connectors.kinesis.client.responses import decoded, malformed

if TYPE_CHECKING:
    from connectors.kinesis.sink.rows import Entry

__all__ = ["Result", "put_body", "put_results"]


class _Record(msgspec.Struct, gc=False):
    """A record of a request, under the names of the service; its data become base64."""

    Data: bytes
    PartitionKey: str
    ExplicitHashKey: str | msgspec.UnsetType = msgspec.UNSET


class _Request(msgspec.Struct):
    Records: list[_Record]
    StreamName: str | msgspec.UnsetType = msgspec.UNSET
    StreamARN: str | msgspec.UnsetType = msgspec.UNSET


class Result(msgspec.Struct, gc=False):
    """The result of a record; empty for one that was put."""

    ErrorCode: str | None = None
    ErrorMessage: str | None = None


class _Response(msgspec.Struct):
    Records: list[Result]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Response)


def put_body(stream: str, records: Sequence[Entry]) -> bytes:
    """Return the body of a request; ``stream`` is a name or an ARN."""
    written = [
        _Record(entry.data, entry.key)
        if entry.explicit_hash_key is None
        else _Record(entry.data, entry.key, entry.explicit_hash_key)
        for entry in records
    ]
    if stream.startswith("arn:"):
        return _ENCODER.encode(_Request(written, StreamARN=stream))
    return _ENCODER.encode(_Request(written, StreamName=stream))


def put_results(body: bytes, count: int, stream: str) -> list[Result]:
    """Return the result of each record of a request that sent ``count``.

    Raises:
        ServiceUnavailableError: it is not a response of PutRecords to so many; a cut connection can leave such.
    """
    results = decoded(_DECODER, body, "PutRecords", stream).Records
    if len(results) != count:
        reason = ValueError(f"it has {len(results)} results, and {count} records were sent")
        raise malformed(f"The response of PutRecords ({len(body)} bytes)", reason, stream)
    return results
