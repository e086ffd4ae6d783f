"""Keys of message ids; the spool recognizes duplicates by them (rule R8).

The key of an id that is a canonical decimal number (ASCII digits, no leading zero, below 2^64) is that number: 8 bytes.
Every other id, and every value of another name space (`OtherIds`), has a BLAKE2b hash of 128 bits under a key of the
spool: 16 bytes. Numbers and hashes are searched apart, so two different strings never share a key because they look
alike ("00123" and "123"), and by chance only with a probability of 2^-64 for 2^32 ids.

A row with a value of another name space has its number beside the hash, so duplicates are recognised by either: also
when the option that names the attribute was set, changed or removed in between.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HASH_BYTES = 16
HASH_TYPE = np.dtype("S16")

_MESSAGE_IDS = b"message-id"
"""Name space of the service's own message ids; numbers exist only here."""

_MOST_DIGITS = 20
_SAFE_DIGITS = 19
_ZERO, _NINE = ord("0"), ord("9")
_NO_ROWS, _NO_HASHES = np.empty(0, np.int64), np.empty(0, HASH_TYPE)

Numbers = npt.NDArray[np.uint64]
Hashes = npt.NDArray[np.bytes_]


@dataclass(frozen=True, slots=True)
class OtherIds:
    """Values of an attribute by which rows are duplicates, though their ids differ: strings, one per row, or null.

    Equal values of different attributes are unrelated.
    """

    attribute: str
    values: pa.Array


@dataclass(frozen=True)
class IdKeys:
    """The keys of a run of rows, in row order.

    Attributes:
        numbers: the number of each row whose id is one, else 0.
        hash_rows: the indexes of the rows with a hash, ascending; only there does a number of 0 mean none.
        hashes: their hashes, in the same order (`S16`: all 16 bytes are compared).
    """

    numbers: Numbers
    hash_rows: npt.NDArray[np.int64]
    hashes: Hashes

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def ascending_numbers(self) -> Numbers:
        """The numbers that are keys, sorted once for all uses."""
        return np.sort(self.numbers if not len(self.hash_rows) else self.numbers[self.numbered()])

    def numbered(self) -> npt.NDArray[np.bool_]:
        mask = np.ones(len(self.numbers), np.bool_)
        mask[self.hash_rows] = self.numbers[self.hash_rows] != 0
        return mask

    @classmethod
    def concatenate(cls, parts: list[IdKeys]) -> IdKeys:
        starts = np.cumsum([0, *map(len, parts)])
        hash_rows = [part.hash_rows + start for part, start in zip(parts, starts[:-1], strict=True)]
        return cls(
            np.concatenate([np.empty(0, np.uint64), *(part.numbers for part in parts)]),
            np.concatenate([_NO_ROWS, *hash_rows]),
            np.concatenate([_NO_HASHES, *(part.hashes for part in parts)]),
        )


def keys_of(ids: pa.Array, hash_key: bytes, other: OtherIds | None = None) -> IdKeys:
    """Return the keys of rows.

    `ids` are strings without nulls, one per row; `hash_key`, 16 bytes, is the spool's. With `other`, rows with
    equal values are duplicates too; where there is none, the id alone counts.
    """
    rows = len(ids)
    canonical = _canonical(ids)
    valued = np.zeros(rows, np.bool_)
    if other is not None:
        valued = other.values.is_valid().to_numpy(zero_copy_only=False)
    elif canonical.all():
        return numbers_only(_numbers(ids))
    numbers = np.zeros(rows, np.uint64)
    if canonical.any():
        numbers[canonical] = _numbers(ids.filter(pa.array(canonical)))
    hash_rows = np.flatnonzero(~canonical | valued)
    hashes = np.zeros(len(hash_rows), HASH_TYPE)
    by_value = valued[hash_rows]
    hashes[~by_value] = _hashes(ids.filter(pa.array(~canonical & ~valued)), hash_key, _MESSAGE_IDS)
    if other is not None:
        name = b"attribute\0" + other.attribute.encode()
        space = hashlib.blake2b(name, digest_size=hashlib.blake2b.PERSON_SIZE).digest()
        hashes[by_value] = _hashes(other.values.drop_null(), hash_key, space)
    return IdKeys(numbers, hash_rows, hashes)


def no_keys(rows: int) -> IdKeys:
    """Return the keys of rows that have no ids: all equal, so that they take little space."""
    return numbers_only(np.zeros(rows, np.uint64))


def numbers_only(numbers: Numbers) -> IdKeys:
    return IdKeys(numbers, _NO_ROWS, _NO_HASHES)


def _hashes(values: pa.Array, hash_key: bytes, space: bytes) -> Hashes:
    digests = [
        hashlib.blake2b(text.encode(), digest_size=HASH_BYTES, key=hash_key, person=space).digest()
        for text in values.to_pylist()
    ]
    return np.array(digests, HASH_TYPE)


def _numbers(ids: pa.Array) -> Numbers:
    return np.asarray(ids.cast(pa.uint64()).to_numpy(zero_copy_only=False), np.uint64)


def _canonical(ids: pa.Array) -> npt.NDArray[np.bool_]:
    if len(ids) == 0:
        return np.zeros(0, np.bool_)
    offsets, data = _string_buffers(ids)
    lengths = np.diff(offsets)
    good = (lengths > 0) & (lengths <= _MOST_DIGITS)
    if not good.any():
        return good
    other = (data < _ZERO) | (data > _NINE)
    if other.any():
        counted = np.concatenate([[0], np.cumsum(other)])
        good &= counted[offsets[1:]] == counted[offsets[:-1]]
    first = data[np.minimum(offsets[:-1], max(len(data) - 1, 0))]
    good &= (first != _ZERO) | (lengths == 1)
    for row in np.flatnonzero(good & (lengths > _SAFE_DIGITS)):
        good[row] = int(ids[int(row)].as_py()) < 1 << 64
    return good


def _string_buffers(ids: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the offsets of an array of strings, from 0, and the bytes they point into."""
    wide = pa.types.is_large_string(ids.type) or pa.types.is_large_binary(ids.type)
    _, offset_buffer, data_buffer = ids.buffers()
    raw = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)[ids.offset : ids.offset + len(ids) + 1]
    offsets = raw.astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]
