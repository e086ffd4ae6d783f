"""Messages of AWS's event-stream encoding, whole and damaged."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Mapping

_PRELUDE = struct.Struct(">II")
_CRC = struct.Struct(">I")
_TEXT = 7
"""The type of a header that is a text."""


def event_message(
    payload: bytes, headers: Mapping[str, str], *, raw_headers: bytes = b"", lengths: tuple[int, int] | None = None
) -> bytes:
    """One message with right checksums.

    Args:
        payload: its payload.
        headers: headers that are texts.
        raw_headers: bytes after them.
        lengths: what it says to be its whole length, and that of its headers; the right ones by default.
    """
    head = b"".join(
        bytes([len(name)]) + name.encode() + bytes([_TEXT]) + struct.pack(">H", len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    head += raw_headers
    prelude = _PRELUDE.pack(*(lengths or (16 + len(head) + len(payload), len(head))))
    return _sealed(prelude, head + payload)


def _sealed(prelude: bytes, rest: bytes) -> bytes:
    data = prelude + _CRC.pack(zlib.crc32(prelude)) + rest
    return data + _CRC.pack(zlib.crc32(data))


def damaged(message: bytes) -> bytes:
    """The message with a wrong byte, cut, or with lengths or headers altered under right checksums."""
    prelude, rest = message[: _PRELUDE.size], message[_PRELUDE.size + _CRC.size : -_CRC.size]
    match random.randrange(5):
        case 0:
            data = bytearray(message)
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            return bytes(data)
        case 1:
            return message[: random.randrange(len(message))]
        case 2:
            return random.randbytes(len(message))
        case 3:
            lengths = [random.choice([0, 15, 16, 17, len(message), 2**24, 2**31, 2**32 - 1]) for _ in range(2)]
            return _sealed(_PRELUDE.pack(*lengths), rest)
    altered = bytearray(rest)
    for _ in range(random.randint(1, 3)):
        altered[random.randrange(min(len(altered), 100))] = random.randrange(256)
    return _sealed(prelude, bytes(altered))
