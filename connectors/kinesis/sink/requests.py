"""The bodies of PutRecords, by msgspec: botocore would look at each record twice, to validate it and to write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from connectors.kinesis.client.responses import decoded, malformed

if TYPE_CHECKING:
    from connectors.kinesis.sink.rows import Entry

__all__ = ["Result", "put_body", "put_results"]


class _Record(msgspec.Struct, gc=False):
    """A record of a request, under the names of the service; its data are written as base64."""

    Data: bytes
    PartitionKey: str
    ExplicitHashKey: str | msgspec.UnsetType = msgspec.UNSET


class _Request(msgspec.Struct):
    Records: list[_Record]
    StreamName: str | msgspec.UnsetType = msgspec.UNSET
    StreamARN: str | msgspec.UnsetType = msgspec.UNSET


class Result(msgspec.Struct, gc=False):
    """What became of a record; nothing is said of one that was put."""

    ErrorCode: str | None = None
    ErrorMessage: str | None = None


class _Answer(msgspec.Struct):
    Records: list[Result]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Answer)


def put_body(stream: str, records: Sequence[Entry]) -> bytes:
    """The body of a request.

    Args:
        stream: name or ARN.
        records: what is put.
    """
    written = [
        _Record(each.data, each.key)
        if each.explicit_hash_key is None
        else _Record(each.data, each.key, each.explicit_hash_key)
        for each in records
    ]
    if stream.startswith("arn:"):
        return _ENCODER.encode(_Request(written, StreamARN=stream))
    return _ENCODER.encode(_Request(written, StreamName=stream))


def put_results(body: bytes, count: int, stream: str) -> list[Result]:
    """What became of each record of a request, from its answer.

    Args:
        body: the answer.
        count: how many records were sent.
        stream: where to, for errors.

    Raises:
        ServiceUnavailableError: it is not an answer of PutRecords to so many; a cut connection can leave such.
    """
    results = decoded(_DECODER, body, "PutRecords", stream).Records
    if len(results) != count:
        said = ValueError(f"it says what became of {len(results)} records, and {count} were sent")
        raise malformed(f"The answer of PutRecords ({len(body)} bytes)", said, stream)
    return results
