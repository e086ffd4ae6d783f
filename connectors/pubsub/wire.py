"""Pieces of protobuf's wire format, for whole Arrow columns at a time.

A field of strings or bytes is, for each value, its tag, its length as a varint, and its bytes
(https://protobuf.dev/programming-guides/encoding/): so the data buffer of a column whose values are "tag, length,
bytes" is a repeated field as it is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["concatenate", "cut", "delimited", "lengths", "prefixes", "string_field", "values_and_ends", "varint"]

_LENGTH_DELIMITED = 2
_SHORT = 0x80
_NOTHING = pa.scalar(b"", pa.binary())


def varint(value: int) -> bytes:
    """A number, seven bits a byte, the lowest first."""
    out = bytearray()
    while value >= _SHORT:
        out.append(value & 0x7F | _SHORT)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(maxsize=1 << 16)
def _prefix(field: int, length: int) -> bytes:
    return varint(field << 3 | _LENGTH_DELIMITED) + varint(length)


def string_field(field: int, value: str) -> bytes:
    """One field with one string."""
    encoded = value.encode()
    return _prefix(field, len(encoded)) + encoded


def prefixes(field: int, sizes: pa.Array) -> pa.Array:
    """Tag and length for values of these sizes in bytes."""
    distinct = pc.dictionary_encode(sizes)
    made = [_prefix(field, size) for size in distinct.dictionary.to_pylist()]
    return pa.array(made, pa.binary()).take(distinct.indices)


def lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    """The bytes of each string or binary; there must be no nulls."""
    found: npt.NDArray[np.int64] = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def concatenate(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Binaries joined row by row; one scalar stands for the same in each row."""
    return pc.binary_join_element_wise(*parts, _NOTHING)


def delimited(field: int, values: pa.Array) -> pa.Array:
    """Each value as a field: tag, length, bytes."""
    values = values.cast(pa.binary())
    return concatenate(prefixes(field, pc.binary_length(values)), values)


def values_and_ends(column: pa.Array) -> tuple[memoryview, npt.NDArray[np.int64]]:
    """The data buffer of a binary column, and where in it each value begins and, last, where it ends."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return memoryview(b"" if data is None else data), ends


def cut(ends: npt.NDArray[np.int64], max_values: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of values, first and behind last, within both limits; a value that alone is larger stands alone.

    Args:
        ends: as `values_and_ends` gives them.
        max_values: the most values of a range.
        max_bytes: the most bytes of a range.
    """
    first, rows = 0, len(ends) - 1
    while first < rows:
        fitting = int(np.searchsorted(ends, ends[first] + max_bytes, side="right")) - 1
        last = min(max(fitting, first + 1), first + max_values, rows)
        yield first, last
        first = last
