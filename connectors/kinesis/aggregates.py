"""Aggregates of the Kinesis Producer Library (KPL): many user records in one record of a shard, read and written.

The format is in ``proto/kpl/messages.proto``: four magic bytes, an AggregatedRecord in protobuf, and its MD5. A record
with a wrong checksum or a malformed message is no aggregate.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_MORE: Final = 0x80
"""The bit of a varint that says that more bytes follow."""
_LAST_SHIFT: Final = 63
_LARGEST_INDEX: Final = (1 << 31) - 1
_PARTITION_KEYS: Final = 1
_HASH_KEYS: Final = 2
_RECORDS: Final = 3
_PARTITION_KEY_INDEX: Final = 1
_HASH_KEY_INDEX: Final = 2
_DATA: Final = 3
LONGEST_KEY: Final = 256
"""Characters of a partition key."""
_LARGEST_HASH_KEY: Final = (1 << 128) - 1
_HASH_KEY: Final = re.compile(r"0|[1-9][0-9]{0,38}")


def _tag(field: int, kind: int) -> bytes:
    return bytes((field << 3 | kind,))


_KEY_TAG: Final = _tag(_PARTITION_KEYS, _LENGTH)
_HASH_KEY_TAG: Final = _tag(_HASH_KEYS, _LENGTH)
_RECORD_TAG: Final = _tag(_RECORDS, _LENGTH)
_KEY_INDEX_TAG: Final = _tag(_PARTITION_KEY_INDEX, _VARINT)
_HASH_KEY_INDEX_TAG: Final = _tag(_HASH_KEY_INDEX, _VARINT)
_DATA_TAG: Final = _tag(_DATA, _LENGTH)


class Aggregate:
    """The records of an AggregatedRecord, parsed on demand: only the position of each is held, in 24 bytes.

    Raises an `IndexError` or a `ValueError` when it is malformed.
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
                keys: list[Any] = self._keys if number == _PARTITION_KEYS else self._hash_keys
                keys.append(_legal_key(message[slice(*_bytes(begin, end))].decode(), number))
        if max(self._key, default=-1) >= len(self._keys) or max(self._hash_key, default=-1) >= len(self._hash_keys):
            raise IndexError("there is no such key")
        self._hash_keys.append(None)  # the last one: the index -1, of no hash key, points to it
        key_sizes = [len(key.encode()) for key in self._keys]
        hash_key_sizes = [len(key or "") for key in self._hash_keys]
        positions = zip(self._begins, self._ends, self._key, self._hash_key, strict=True)
        sizes = (end - begin + key_sizes[key] + hash_key_sizes[hash_key] for begin, end, key, hash_key in positions)
        self._sizes = array("q", accumulate(sizes, initial=0))

    def _note(self, at: int, end: int) -> None:
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
        return self._sizes[end] - self._sizes[first]

    def within(self, first: int, rows: int, size: int, more: int) -> int:
        """Return the end of that many rows and bytes from ``first`` on; a record takes ``more`` bytes in addition."""
        sizes, before = self._sizes, self._sizes[first]
        fits = range(first + 1, min(first + rows, len(self)) + 1)
        return first + bisect_right(fits, size, key=lambda end: sizes[end] - before + (end - first) * more)

    def rows(self, first: int, end: int) -> tuple[list[bytes], list[str], list[str | None]]:
        """Return data, partition keys and explicit hash keys of the records from ``first`` to before ``end``."""
        message, keys, hash_keys = self._message, self._keys, self._hash_keys
        positions = zip(self._begins[first:end], self._ends[first:end], strict=True)
        return (
            [message[at:to] for at, to in positions],
            [keys[index] for index in self._key[first:end]],
            [hash_keys[index] for index in self._hash_key[first:end]],
        )


def open_aggregate(data: bytes) -> Aggregate | None:
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
    """Yield each field's number and where its bytes begin and end; a number begins at -1, and ends at its value."""
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
    """Return a number of one to ten bytes, and where the next field is."""
    byte = message[at]
    if byte < _MORE:
        return byte, at + 1
    value, shift = 0, 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, at
        shift += 7
        if shift > _LAST_SHIFT:
            raise ValueError("a number is too long")


def _bytes(begin: int, end: int) -> tuple[int, int]:
    if begin < 0:
        raise ValueError("a number stands where bytes belong")
    return begin, end


def is_hash_key(text: str) -> bool:
    """Return whether the service takes a text as an explicit hash key."""
    return _HASH_KEY.fullmatch(text) is not None and int(text) <= _LARGEST_HASH_KEY


def _legal_key(key: str, table: int) -> str:
    """Return a key that PutRecord accepts; any other raises a `ValueError`.

    Long keys in a small aggregate would fill a worker's memory, since every record can name the same one. Rows with a
    key that the service refuses could not be written to a stream again.
    """
    if not (1 <= len(key) <= LONGEST_KEY if table == _PARTITION_KEYS else is_hash_key(key)):
        raise ValueError("the service refuses this key")
    return key


def _number(begin: int, value: int) -> int:
    if begin >= 0 or value > _LARGEST_INDEX:
        raise ValueError("bytes, or a number without sense, stand where an index belongs")
    return value


class AggregateBuilder:
    """Builds the data of an aggregate, of at most ``limit`` bytes, with each key in it once."""

    def __init__(self, limit: int) -> None:
        self.size = len(MAGIC) + _DIGEST_BYTES
        self._limit = limit
        self._key_indexes: dict[str, bytes] = {}
        self._hash_key_indexes: dict[str, bytes] = {}
        self._keys: list[bytes] = []
        self._hash_keys: list[bytes] = []
        self._records: list[bytes] = []

    def add(self, data: bytes, key: str, hash_key: str | None = None) -> bool:
        """Add a record, unless it does not fit."""
        key_entry = hash_key_entry = hash_key_index = b""
        key_index = self._key_indexes.get(key)
        if key_index is None:
            key_index = _KEY_INDEX_TAG + _encoded(len(self._keys))
            key_entry = _text_field(_KEY_TAG, key)
        if hash_key is not None:
            hash_key_index = self._hash_key_indexes.get(hash_key, b"")
            if not hash_key_index:
                hash_key_index = _HASH_KEY_INDEX_TAG + _encoded(len(self._hash_keys))
                hash_key_entry = _text_field(_HASH_KEY_TAG, hash_key)
        head = key_index + hash_key_index + _DATA_TAG + _encoded(len(data))
        head = _RECORD_TAG + _encoded(len(head) + len(data)) + head
        size = self.size + len(key_entry) + len(hash_key_entry) + len(head) + len(data)
        if size > self._limit:
            return False
        if key_entry:
            self._key_indexes[key] = key_index
            self._keys.append(key_entry)
        if hash_key is not None and hash_key_entry:
            self._hash_key_indexes[hash_key] = hash_key_index
            self._hash_keys.append(hash_key_entry)
        self._records += head, data
        self.size = size
        return True

    def data(self) -> bytes:
        message = b"".join((*self._keys, *self._hash_keys, *self._records))
        return b"".join((MAGIC, message, hashlib.md5(message, usedforsecurity=False).digest()))


def _text_field(tag: bytes, text: str) -> bytes:
    encoded = text.encode()
    return tag + _encoded(len(encoded)) + encoded


def _encoded(number: int) -> bytes:
    if number < _MORE:
        return number.to_bytes(1, "little")
    encoded = bytearray()
    while number >= _MORE:
        encoded.append(number & 0x7F | _MORE)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
