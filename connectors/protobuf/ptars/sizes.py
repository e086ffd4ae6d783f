"""How many bytes values take on the wire, for whole columns at a time.

By this the decoder sees that ptars has read every byte of a message: ptars skips a field of another wire type, or
damage below the root, in silence, and then the bytes of what it did read are fewer than those of the message.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

__all__ = ["Ints", "numbers", "offsets", "payload_sizes", "sums", "tag_size", "varint_sizes"]

Ints = npt.NDArray[np.int64]

F: Final = FieldDescriptor
_FIXED: Final = {
    F.TYPE_BOOL: 1,
    F.TYPE_FIXED32: 4,
    F.TYPE_SFIXED32: 4,
    F.TYPE_FLOAT: 4,
    F.TYPE_FIXED64: 8,
    F.TYPE_SFIXED64: 8,
    F.TYPE_DOUBLE: 8,
}
_ZIG_ZAG: Final[dict[int, tuple[npt.DTypeLike, npt.DTypeLike]]] = {
    F.TYPE_SINT32: (np.int32, np.uint32),
    F.TYPE_SINT64: (np.int64, np.uint64),
}
_NEGATIVE_SLACK: Final = 5


def tag_size(number: int) -> int:
    """Return the bytes of the tag of a field."""
    return 1 if number < 1 << 4 else 2 if number < 1 << 11 else 3 if number < 1 << 18 else 4 if number < 1 << 25 else 5


def varint_sizes(values: npt.NDArray[Any]) -> Ints:
    """Return the bytes of each number, as the shortest varint; numbers of a signed type must not be negative."""
    sizes = np.ones(len(values), dtype=np.int64)
    if len(values) == 0:
        return sizes
    unsigned = values.astype(np.uint64, copy=False)
    largest = int(unsigned.max())
    for bits in range(7, 64, 7):
        if largest >> bits:
            sizes += unsigned >= np.uint64(1 << bits)
    return sizes


def numbers(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the values of an array without offset, also those below NULL."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(data, dtype=dtype, count=len(array))


def offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return the offsets of strings, bytes, lists or maps, in an array without offset."""
    data = array.buffers()[1]
    if data is None or data.size == 0:
        return np.zeros(len(array) + 1, dtype=np.int32)
    return np.frombuffer(data, dtype=np.int32, count=len(array) + 1)


def sums(values: npt.NDArray[Any], bounds: npt.NDArray[np.int32]) -> Ints:
    """Return the sum of the values of each list."""
    total: Ints = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=total[1:])
    return total[bounds[1:]] - total[bounds[:-1]]


def payload_sizes(proto_type: int, array: pa.Array) -> tuple[Ints | int, Ints | None]:
    """Return the bytes of each value without its tag, and how many of them another writer may have spared.

    Only a negative int32 or enum has two forms: ten bytes, as all write it, or five.
    """
    fixed = _FIXED.get(proto_type)
    if fixed is not None:
        return fixed, None
    if proto_type in {F.TYPE_STRING, F.TYPE_BYTES}:
        lengths = np.diff(offsets(array)).astype(np.int64)
        return lengths + varint_sizes(lengths), None
    if proto_type in {F.TYPE_INT32, F.TYPE_ENUM}:
        values = numbers(array, np.int32)
        if len(values) == 0 or values.min() >= 0:
            return varint_sizes(values), None
        slack = (values < 0) * np.int64(_NEGATIVE_SLACK)
        return varint_sizes(values.astype(np.int64).view(np.uint64)), slack
    if proto_type in _ZIG_ZAG:
        signed, unsigned = _ZIG_ZAG[proto_type]
        values = numbers(array, signed)
        return varint_sizes(((values << 1) ^ (values >> (8 * values.itemsize - 1))).view(unsigned)), None
    return varint_sizes(numbers(array, np.uint32 if proto_type == F.TYPE_UINT32 else np.uint64)), None
