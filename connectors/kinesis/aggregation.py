"""Aggregates of the Kinesis Producer Library: many records of a user in one record of a shard.

The format is in ``proto/kpl/messages.proto``: four bytes that tell it, an AggregatedRecord in protobuf, and its MD5.
What only looks like one (a wrong checksum, a message that cannot be read) is a record like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["MAGIC", "UserRecord", "user_records"]

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_LAST_SHIFT: Final = 63
_PARTITION_KEYS: Final = 1
_HASH_KEYS: Final = 2
_RECORDS: Final = 3
_PARTITION_KEY_INDEX: Final = 1
_HASH_KEY_INDEX: Final = 2
_DATA: Final = 3
_LONGEST: Final = {_PARTITION_KEYS: 256, _HASH_KEYS: 39}
"""The most characters that the service allows a key to have: PutRecord's PartitionKey, and the digits of 2^128 - 1.

A key stands once in an aggregate, and every record of it can name it: with keys of any length a small aggregate would
fill a worker's memory.
"""


class UserRecord(NamedTuple):
    """A record as its producer gave it to the KPL."""

    data: bytes
    partition_key: str
    explicit_hash_key: str | None


def user_records(data: bytes) -> list[UserRecord] | None:
    """The records of an aggregate, in their order; None when it is none.

    Args:
        data: the data of a record of a shard.
    """
    if len(data) <= len(MAGIC) + _DIGEST_BYTES or not data.startswith(MAGIC):
        return None
    message = data[len(MAGIC) : -_DIGEST_BYTES]
    if hashlib.md5(message, usedforsecurity=False).digest() != data[-_DIGEST_BYTES:]:
        return None
    try:
        return _parse(message)
    except (IndexError, ValueError):
        return None


def _parse(message: bytes) -> list[UserRecord]:
    """The records of an AggregatedRecord.

    Raises:
        IndexError: it is cut short, or names a key that it does not have.
        ValueError: it is malformed in another way.
    """
    keys: list[str] = []
    hash_keys: list[str] = []
    parts: list[bytes] = []
    for number, value in _fields(message):
        if number == _RECORDS:
            parts.append(_bytes(value))
        elif number in {_PARTITION_KEYS, _HASH_KEYS}:
            (keys if number == _PARTITION_KEYS else hash_keys).append(_key(value, _LONGEST[number]))
    found = []
    for part in parts:
        named: int | None = None
        hash_key: int | None = None
        content: bytes | None = None
        for number, value in _fields(part):
            if number == _PARTITION_KEY_INDEX:
                named = _number(value)
            elif number == _HASH_KEY_INDEX:
                hash_key = _number(value)
            elif number == _DATA:
                content = _bytes(value)
        if named is None or content is None:
            raise ValueError("a required field is missing")
        found.append(UserRecord(content, keys[named], None if hash_key is None else hash_keys[hash_key]))
    return found


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and the value of each field of a message, in their order."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        size, at = _varint(message, at) if kind == _LENGTH else (_SIZES.get(kind, -1), at)
        if size < 0:
            raise ValueError("a field has a type that is not used any more")
        if at + size > end:
            raise IndexError("a field is cut short")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of one to ten bytes, and where the next field is."""
    byte = message[at]
    if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
        return byte, at + 1
    value, shift = 0, 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - as above
            return value, at
        shift += 7
        if shift > _LAST_SHIFT:
            raise ValueError("a number is too long")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where bytes belong")  # noqa: TRY004 - the message is wrong, not the caller
    return value


def _key(value: int | bytes, longest: int) -> str:
    key = _bytes(value).decode()
    if len(key) > longest:
        raise ValueError("a key is longer than the service allows")
    return key


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes stand where a number belongs")  # noqa: TRY004 - as above
    return value
