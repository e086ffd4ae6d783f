"""Aggregates of the Kinesis Producer Library: many records of a user in one record of a shard.

The format is in ``proto/kpl/messages.proto``: four bytes that tell it, an AggregatedRecord in protobuf, and its MD5.
What only looks like one (a wrong checksum, a message that cannot be read) is a record like any other.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

__all__ = ["MAGIC", "Aggregate", "open_aggregate"]

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_LAST_SHIFT: Final = 63
_LARGEST_INDEX: Final = (1 << 31) - 1
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


class Aggregate:
    """The records of an aggregate, of which some are taken apart at a time.

    A record may take seven bytes of an aggregate of ten million, so of each only the place is noted, in 24 bytes.

    Args:
        message: an AggregatedRecord in protobuf.

    Raises:
        IndexError: it is cut short, or names a key that it does not have.
        ValueError: it is malformed in another way.
    """

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._keys: list[str] = []
        self._hash_keys: list[str | None] = []
        self._begins, self._ends, self._key, self._hash_key = (array("i") for _ in range(4))
        for number, begin, end in _fields(message, 0, len(message)):
            if number == _RECORDS:
                self._note(*_bytes(begin, end))
            elif number in {_PARTITION_KEYS, _HASH_KEYS}:
                found: list[Any] = self._keys if number == _PARTITION_KEYS else self._hash_keys
                found.append(_key(message, *_bytes(begin, end), _LONGEST[number]))
        if max(self._key, default=-1) >= len(self._keys) or max(self._hash_key, default=-1) >= len(self._hash_keys):
            raise IndexError("there is no such key")
        self._hash_keys.append(None)  # the last one, at which the index -1 of no hash key points
        keys, hash_keys = [len(each.encode()) for each in self._keys], [len(each or "") for each in self._hash_keys]
        places = zip(self._begins, self._ends, self._key, self._hash_key, strict=True)
        sizes = (end - begin + keys[key] + hash_keys[hash_key] for begin, end, key, hash_key in places)
        self._sizes = array("q", accumulate(sizes, initial=0))

    def _note(self, at: int, end: int) -> None:
        """Note the place of a record."""
        named, hash_key, begin, to = -1, -1, -1, -1
        for number, first, value in _fields(self._message, at, end):
            if number == _DATA:
                begin, to = _bytes(first, value)
            elif number == _PARTITION_KEY_INDEX:
                named = _number(first, value)
            elif number == _HASH_KEY_INDEX:
                hash_key = _number(first, value)
        if named < 0 or begin < 0:
            raise ValueError("a required field is missing")
        self._begins.append(begin)
        self._ends.append(to)
        self._key.append(named)
        self._hash_key.append(hash_key)

    def __len__(self) -> int:
        return len(self._begins)

    def size(self, first: int, end: int) -> int:
        """Return the bytes of the records from ``first`` to before ``end``: of their data and keys."""
        return self._sizes[end] - self._sizes[first]

    def within(self, first: int, rows: int, size: int, more: int) -> int:
        """Return the end of the records from ``first`` on that are at most so many, and so large.

        Args:
            first: of the records.
            rows: the most of them.
            size: the most bytes.
            more: bytes that each record takes beside its own.
        """
        sizes, before = self._sizes, self._sizes[first]
        fits = range(first + 1, min(first + rows, len(self)) + 1)
        return first + bisect_right(fits, size, key=lambda end: sizes[end] - before + (end - first) * more)

    def rows(self, first: int, end: int) -> tuple[list[bytes], list[str], list[str | None]]:
        """Return data, partition keys and explicit hash keys of the records from ``first`` to before ``end``."""
        message, keys, hash_keys = self._message, self._keys, self._hash_keys
        places = zip(self._begins[first:end], self._ends[first:end], strict=True)
        return (
            [message[at:to] for at, to in places],
            [keys[each] for each in self._key[first:end]],
            [hash_keys[each] for each in self._hash_key[first:end]],
        )


def open_aggregate(data: bytes) -> Aggregate | None:
    """Return the aggregate that a record of a shard is; None when it is none.

    Args:
        data: the data of the record.
    """
    if len(data) <= len(MAGIC) + _DIGEST_BYTES or not data.startswith(MAGIC):
        return None
    message = data[len(MAGIC) : -_DIGEST_BYTES]
    if hashlib.md5(message, usedforsecurity=False).digest() != data[-_DIGEST_BYTES:]:
        return None
    try:
        return Aggregate(message)
    except (IndexError, ValueError):
        return None


def _fields(message: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a part of a message: the number of each, and where its bytes begin and end.

    A field that is a number begins at -1, and its end is the number.
    """
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            size = 0
        else:
            size, at = _varint(message, at) if kind == _LENGTH else (_SIZES.get(kind, -1), at)
            if size < 0:
                raise ValueError("a field has a type that is not used any more")
        if at + size > end:
            raise IndexError("a field is cut short")
        yield (tag >> 3, -1, value) if kind == _VARINT else (tag >> 3, at, at + size)
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


def _bytes(begin: int, end: int) -> tuple[int, int]:
    if begin < 0:
        raise ValueError("a number stands where bytes belong")
    return begin, end


def _key(message: bytes, begin: int, end: int, longest: int) -> str:
    key = message[begin:end].decode()
    if len(key) > longest:
        raise ValueError("a key is longer than the service allows")
    return key


def _number(begin: int, value: int) -> int:
    if begin >= 0 or value > _LARGEST_INDEX:
        raise ValueError("bytes, or a number without sense, stand where an index belongs")
    return value
