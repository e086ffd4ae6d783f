"""Message ids, ack ids, and deliveries as protobuf bytes.

Delivering is the hot path of the server, so a message is serialised once, when it is published, and a response is
joined from these bytes by hand. The layout is that of google.pubsub.v1 (https://protobuf.dev/programming-guides/encoding):
``PullResponse`` and ``StreamingPullResponse`` hold ``ReceivedMessage`` as field 1, and that holds ``ack_id`` as
field 1, ``message`` as field 2 and ``delivery_attempt`` as field 3.
"""

from __future__ import annotations

import base64
import random
import secrets
from collections.abc import Sequence

__all__ = ["AckIds", "MessageIds", "frame_attempt", "frame_message", "frame_received", "varint"]

_FIELD_1 = b"\x0a"
_FIELD_2 = b"\x12"
_FIELD_3_NUMBER = b"\x18"
_ID_BLOCK = 4096
_IDS_IN_BLOCK = 1024
_NUMBER_DIGITS = 12
_TAG_DIGITS = 8


def varint(value: int) -> bytes:
    """``value`` (not negative) as a protobuf varint."""
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT_VARINTS = [varint(value) for value in range(8192)]


def _varint(value: int) -> bytes:
    return _SHORT_VARINTS[value] if value < len(_SHORT_VARINTS) else varint(value)


def frame_message(serialized: bytes) -> bytes:
    """A serialised ``PubsubMessage`` as the field ``message`` of a ``ReceivedMessage``."""
    return _FIELD_2 + varint(len(serialized)) + serialized


def frame_attempt(attempt: int) -> bytes:
    """The field ``delivery_attempt`` of a ``ReceivedMessage``."""
    return _FIELD_3_NUMBER + varint(attempt)


def frame_received(framed_messages: Sequence[bytes], first_number: int, ack_prefix: bytes) -> bytes:
    """The ``received_messages`` of a response.

    Args:
        framed_messages: what `frame_message` gave, one for each message.
        first_number: delivery number of the first message; the others follow without gaps.
        ack_prefix: what `AckIds.prefix` gave.
    """
    ack_length = len(ack_prefix) + _NUMBER_DIGITS
    ack_start = _FIELD_1 + varint(ack_length) + ack_prefix
    fixed = len(ack_start) + _NUMBER_DIGITS
    parts: list[bytes] = []
    for number, framed in enumerate(framed_messages, first_number):
        parts += (_FIELD_1, _varint(fixed + len(framed)), ack_start, b"%012x" % number, framed)
    return b"".join(parts)


class AckIds:
    """Ack ids as the service gives them: opaque, one for each delivery, 170 to 220 characters.

    The last characters are the number of the delivery; before them stands a tag of this server, so that a text which
    is not an ack id is told apart from one whose delivery is over.
    """

    def __init__(self) -> None:
        # Never from the seed: the ack ids of a server that ran before must mean nothing to this one.
        self._tag = secrets.token_hex(_TAG_DIGITS // 2)

    def prefix(self) -> bytes:
        """The part of an ack id that the deliveries of one response share."""
        noise = secrets.token_bytes(113 + secrets.randbelow(37))
        return base64.urlsafe_b64encode(noise).rstrip(b"=") + self._tag.encode()

    def number(self, ack_id: str) -> int | None:
        """The delivery that an ack id stands for, or None if this server never made such an ack id."""
        if ack_id[-_NUMBER_DIGITS - _TAG_DIGITS : -_NUMBER_DIGITS] != self._tag:
            return None
        try:
            return int(ack_id[-_NUMBER_DIGITS:], 16)
        except ValueError:
            return None


class MessageIds:
    """Message ids as the service gives them: decimal, 17 digits, with gaps, not in the order of publishing.

    Args:
        seed: where the order comes from.
        start_ns: server time at the start, nanoseconds since 1970. Ids begin at a tenth-microsecond count of it, so
            a server that is restarted never repeats the ids of the one before, as the service never does.
    """

    def __init__(self, seed: random.Random, start_ns: int) -> None:
        self._random = seed
        self._next_block = start_ns // 100
        self._left: list[int] = []

    def take(self) -> str:
        """A new id."""
        if not self._left:
            block = range(self._next_block, self._next_block + _ID_BLOCK)
            self._left = self._random.sample(block, _IDS_IN_BLOCK)
            self._next_block += _ID_BLOCK
        return str(self._left.pop())
