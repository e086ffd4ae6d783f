"""Pieces of messages: a BINARY array has the bytes that one field adds to each message, and Arrow joins several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connectors.core.functions.columns import bitmap, offsets_of

_ONE_BYTE: Final = 128
_NOTHING: Final = pa.scalar(b"", pa.binary())
Numbers = npt.NDArray[Any]


def raw_values(array: pa.Array, dtype: npt.DTypeLike) -> Numbers:
    """Return the numbers of an array without NULLs, as they are in memory."""
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros(0, dtype)
    return np.frombuffer(data, dtype, count=array.offset + len(array))[array.offset :]


def _array(offsets: Numbers, data: Numbers) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def fixed(data: Numbers, width: int) -> pa.BinaryArray:
    """Return pieces of one width, which stand in their order in `data`."""
    count = data.nbytes // width
    return _array(np.arange(count + 1, dtype=np.int32) * np.int32(width), np.ascontiguousarray(data).view(np.uint8))


def constant(data: bytes, count: int) -> pa.BinaryArray:
    return fixed(np.frombuffer(data * count, np.uint8), len(data))


def varints(values: Numbers) -> pa.BinaryArray:
    """Return numbers as Avro writes an int or a long."""
    values = values.astype(np.int64, copy=False)
    raw = ((values << 1) ^ (values >> 63)).view(np.uint64)
    largest = int(raw.max()) if len(raw) else 0
    if largest < _ONE_BYTE:
        return fixed(raw.astype(np.uint8), 1)
    most = -(-largest.bit_length() // 7)
    digits = np.empty((len(raw), most), np.uint8)
    sizes = np.ones(len(raw), np.int64)
    for place in range(most):
        rest = raw >> np.uint64(7 * (place + 1)) if place < most - 1 else np.zeros(1, np.uint64)
        more = rest != 0
        digits[:, place] = ((raw >> np.uint64(7 * place)) & np.uint64(127)) | (more.astype(np.uint64) << np.uint64(7))
        sizes += more
    return _array(offsets_of(sizes), digits[np.arange(most) < sizes[:, None]])


def minimal(numbers: Numbers) -> pa.BinaryArray:
    """Return numbers of 16 bytes, most significant first, without the bytes that their signs make superfluous."""
    sign = (numbers[:, :1] >> 7).astype(np.uint8)
    needed = numbers != sign * np.uint8(255)
    lead = np.where(needed.any(axis=1), needed.argmax(axis=1), 15)
    same_sign = (numbers[np.arange(len(numbers)), lead] >> 7) == sign[:, 0]
    first = np.where(same_sign, lead, lead - 1)
    return _array(offsets_of(16 - first), numbers[np.arange(16) >= first[:, None]])


def joined(pieces: Sequence[pa.BinaryArray], count: int) -> pa.BinaryArray:
    if not pieces:
        return _array(np.zeros(count + 1, np.int32), np.zeros(0, np.uint8))
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, _NOTHING)


def expanded(pieces: pa.BinaryArray, valid: npt.NDArray[np.bool_], *, null: bool = False) -> pa.BinaryArray:
    """Return pieces for more rows: nothing, or NULL, in those that are not valid."""
    if valid.all():
        return pieces
    sizes = np.zeros(len(valid), np.int64)
    sizes[valid] = np.diff(raw_offsets(pieces))
    buffers = [bitmap(valid) if null else None, pa.py_buffer(offsets_of(sizes)), _data(pieces)]
    return pa.Array.from_buffers(pa.binary(), len(valid), buffers)


def lists(items: pa.BinaryArray, offsets: Numbers) -> pa.BinaryArray:
    """Return lists as one block each; `offsets` say which items are in each."""
    counts = np.diff(offsets)
    headers = expanded(varints(counts[counts > 0]), counts > 0)
    bounds = np.ascontiguousarray(raw_offsets(items)[offsets])
    bodies = pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(bounds), _data(items)])
    return joined([headers, bodies, constant(b"\0", len(counts))], len(counts))


def raw_offsets(pieces: pa.BinaryArray) -> Numbers:
    """Return where each piece begins in the data, and where the last one ends."""
    if len(pieces) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(pieces.buffers()[1], np.int32)[pieces.offset : pieces.offset + len(pieces) + 1]


def _data(pieces: pa.BinaryArray) -> pa.Buffer:
    return pieces.buffers()[2] or pa.py_buffer(b"")
