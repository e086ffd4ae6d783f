"""Keys of message ids: what the spool keeps of an id to know it again (rule R8).

An id that is a canonical decimal number (ASCII digits, no leading zero, below 2^64) is kept as that number: 8 bytes.
Every other id, and every id of another name space (values of an attribute, a second topic), is kept as a BLAKE2b hash
of 128 bits under a key of the spool: 16 bytes. Numbers and hashes are looked up apart, so two different strings never
share a key by their looks ("00123" and "123"), and by chance only with a probability of 2^-64 for 2^32 ids.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["HASH_BYTES", "HASH_TYPE", "MESSAGE_ID", "Hashes", "IdKeys", "Numbers", "keys_of"]

HASH_BYTES = 16
HASH_TYPE = np.dtype("S16")
MESSAGE_ID = b"message-id"
"""Name space of the service's own message ids; numbers exist only here."""

_MOST_DIGITS = 20
_SAFE_DIGITS = 19
_ZERO, _NINE = ord("0"), ord("9")

Numbers = npt.NDArray[np.uint64]
Hashes = npt.NDArray[np.bytes_]


@dataclass(frozen=True, slots=True)
class IdKeys:
    """The keys of a run of rows, in row order.

    Attributes:
        numbers: the number of each row whose id is one, else 0; length is the number of rows.
        hash_rows: the indexes of the rows whose key is a hash, ascending.
        hashes: their hashes, in the same order (`S16`: all 16 bytes are compared).
    """

    numbers: Numbers
    hash_rows: npt.NDArray[np.int64]
    hashes: Hashes

    def __len__(self) -> int:
        return len(self.numbers)

    def numbered(self) -> npt.NDArray[np.bool_]:
        """Which rows have a number as their key."""
        mask = np.ones(len(self.numbers), np.bool_)
        mask[self.hash_rows] = False
        return mask

    @classmethod
    def concatenate(cls, parts: list[IdKeys]) -> IdKeys:
        """The keys of several runs of rows, one after the other."""
        starts = np.cumsum([0, *(len(part) for part in parts)])
        return cls(
            np.concatenate([np.empty(0, np.uint64), *(part.numbers for part in parts)]),
            np.concatenate(
                [
                    np.empty(0, np.int64),
                    *(part.hash_rows + start for part, start in zip(parts, starts[:-1], strict=True)),
                ]
            ),
            np.concatenate([np.empty(0, HASH_TYPE), *(part.hashes for part in parts)]),
        )


def keys_of(ids: pa.Array, hash_key: bytes, name_space: bytes = MESSAGE_ID) -> IdKeys:
    """The keys of an Arrow array of ids.

    Args:
        ids: strings without nulls, one a row.
        hash_key: the key of the spool's hash, 16 bytes.
        name_space: what the ids are ids of; other name spaces than `MESSAGE_ID` are always hashed.
    """
    rows = len(ids)
    canonical = _canonical(ids) if name_space == MESSAGE_ID else np.zeros(rows, np.bool_)
    if canonical.all():
        return IdKeys(_numbers(ids), np.empty(0, np.int64), np.empty(0, HASH_TYPE))
    numbers = np.zeros(rows, np.uint64)
    if canonical.any():
        numbers[canonical] = _numbers(ids.filter(pa.array(canonical)))
    hash_rows = np.flatnonzero(~canonical)
    hashes = [
        hashlib.blake2b(text.encode(), digest_size=HASH_BYTES, key=hash_key, person=name_space[:16]).digest()
        for text in ids.take(pa.array(hash_rows)).to_pylist()
    ]
    return IdKeys(numbers, hash_rows, np.array(hashes, HASH_TYPE))


def _numbers(ids: pa.Array) -> Numbers:
    return np.asarray(pc.cast(ids, pa.uint64()).to_numpy(zero_copy_only=False), np.uint64)


def _canonical(ids: pa.Array) -> npt.NDArray[np.bool_]:
    """Which ids are canonical decimal numbers below 2^64."""
    if len(ids) == 0:
        return np.zeros(0, np.bool_)
    offsets, data = _string_buffers(ids)
    lengths = np.diff(offsets)
    good = (lengths > 0) & (lengths <= _MOST_DIGITS)
    if not good.any():
        return good
    other = (data < _ZERO) | (data > _NINE)
    if other.any():
        seen = np.concatenate([[0], np.cumsum(other)])
        good &= seen[offsets[1:]] == seen[offsets[:-1]]
    first = data[np.minimum(offsets[:-1], max(len(data) - 1, 0))]
    good &= (first != _ZERO) | (lengths == 1)
    for row in np.flatnonzero(good & (lengths > _SAFE_DIGITS)):
        good[row] = int(ids[int(row)].as_py()) < 1 << 64
    return good


def _string_buffers(ids: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """The offsets of an array of strings, from 0, and the bytes they point into."""
    wide = pa.types.is_large_string(ids.type) or pa.types.is_large_binary(ids.type)
    _, offset_buffer, data_buffer = ids.buffers()
    raw = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)[ids.offset : ids.offset + len(ids) + 1]
    offsets = raw.astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]
