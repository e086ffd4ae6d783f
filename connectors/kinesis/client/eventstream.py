"""A parser of AWS's event-stream encoding, in which SubscribeToShard sends its messages.

A message is: its length and that of its headers, a CRC-32 of these eight bytes, the headers, the payload, and a CRC-32
of all that; numbers are big-endian (the AWS SDKs' specification "application/vnd.amazon.eventstream").
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from connectors.core.errors import ServiceUnavailableError

__all__ = ["Message", "MessageBuffer"]

_PRELUDE: Final = Struct("!III")
_CHECKSUM: Final = Struct("!I")
_SUMMED_BYTES: Final = 8
_LEAST_BYTES: Final = _PRELUDE.size + _CHECKSUM.size
_MOST_BYTES: Final = 32 << 20
"""More than a record of 10 MiB takes in base64."""
_VALUE_BYTES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of header values by their type; 6 and 7, bytes and texts, say their length themselves."""
_TEXT: Final = 7
_SIZED: Final = (6, _TEXT)


@dataclass(frozen=True, slots=True)
class Message:
    """A message, with those of its headers that are texts."""

    headers: dict[str, str]
    payload: bytes


class MessageBuffer:
    """Parses messages from bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that these bytes complete.

        Raises:
            ServiceUnavailableError: what arrived is damaged; nothing after it can be trusted.
        """
        self._buffer += data
        while len(self._buffer) >= _PRELUDE.size:
            total, headers, checksum = _PRELUDE.unpack_from(self._buffer)
            with memoryview(self._buffer) as view:
                if zlib.crc32(view[:_SUMMED_BYTES]) != checksum:
                    raise _damaged("the checksum of a length is wrong")
            if not _LEAST_BYTES + headers <= total <= _MOST_BYTES:
                raise _damaged(f"a message says that it has {total} bytes, {headers} of them headers")
            if len(self._buffer) < total:
                return
            message = bytes(memoryview(self._buffer)[:total])
            del self._buffer[:total]
            yield _parse(message, headers)


def _parse(message: bytes, header_bytes: int) -> Message:
    end = len(message) - _CHECKSUM.size
    if zlib.crc32(memoryview(message)[:end]) != _CHECKSUM.unpack_from(message, end)[0]:
        raise _damaged("the checksum of a message is wrong")
    body = _PRELUDE.size + header_bytes
    try:
        headers = dict(_headers(message[_PRELUDE.size : body]))
    except (IndexError, KeyError, UnicodeDecodeError):
        raise _damaged("the headers of a message cannot be read") from None
    return Message(headers, message[body:end])


def _headers(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the headers whose value is a text."""
    at = 0
    while at < len(data):
        begin, at = at + 1, at + 1 + data[at]
        name, kind = data[begin:at].decode(), data[at]
        at += 1
        if kind in _SIZED:
            size = (data[at] << 8) + data[at + 1]
            at += 2
        else:
            size = _VALUE_BYTES[kind]
        if at + size > len(data):
            raise IndexError(name)
        if kind == _TEXT:
            yield name, data[at : at + size].decode()
        at += size


def _damaged(what: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "KINESIS_EVENT_DAMAGED", f"What SubscribeToShard sent is damaged: {what}", "", "It subscribes again by itself."
    )
