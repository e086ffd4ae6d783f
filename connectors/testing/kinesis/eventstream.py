"""Messages of the event-stream encoding (application/vnd.amazon.eventstream), as SubscribeToShard sends them."""

from __future__ import annotations

import json
import struct
import zlib

__all__ = ["CONTENT_TYPE", "INITIAL_RESPONSE", "event_message", "exception_message"]

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_JSON = "application/x-amz-json-1.1"
_STRING = 7
_PRELUDE_BYTES = 12
_CHECKSUM_BYTES = 4


def _header(name: str, value: str) -> bytes:
    return struct.pack(f"!B{len(name)}sBH", len(name), name.encode(), _STRING, len(value)) + value.encode()


def _message(headers: dict[str, str], payload: bytes) -> bytes:
    """Prelude with its checksum, headers, payload, and the checksum of it all; numbers are big-endian."""
    encoded = b"".join(_header(name, value) for name, value in headers.items())
    total = _PRELUDE_BYTES + len(encoded) + len(payload) + _CHECKSUM_BYTES
    prelude = struct.pack("!II", total, len(encoded))
    message = b"".join((prelude, struct.pack("!I", zlib.crc32(prelude)), encoded, payload))
    return message + struct.pack("!I", zlib.crc32(message))


def event_message(kind: str, payload: bytes) -> bytes:
    """An event with JSON."""
    return _message({":event-type": kind, ":content-type": _JSON, ":message-type": "event"}, payload)


def exception_message(kind: str, text: str) -> bytes:
    """An error inside of a stream, which is its last message."""
    headers = {":exception-type": kind, ":content-type": _JSON, ":message-type": "exception"}
    return _message(headers, json.dumps({"message": text}).encode())


INITIAL_RESPONSE = event_message("initial-response", b"{}")
"""The first message of each stream: boto3 demands it."""
