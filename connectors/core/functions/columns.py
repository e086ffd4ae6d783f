"""Arrow arrays put together from parts, with exactly the type that Spark expects.

The ``from_arrays`` of pyarrow refuse a NULL below a field that is not nullable, also where the parent is NULL; here
the parts are put together as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MAX_COLUMNS: Final = 50_000
"""Of a message with those in it. Spark needs more than half a minute for the first batch of that many."""


_WIDTHS: Final = {8, 16, 32, 64}


def bitmap(valid: np.ndarray[Any, Any]) -> pa.Buffer | None:
    """Return the validity bitmap of booleans; None when all are true."""
    if valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


def validity_of(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return for each value whether it is not NULL."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), dtype=np.bool_)
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    bits = np.frombuffer(array.buffers()[0], dtype=np.uint8)
    end = array.offset + len(array)
    return np.unpackbits(bits, count=end, bitorder="little")[array.offset :].astype(np.bool_)


def masked(array: pa.Array, valid: np.ndarray[Any, Any]) -> pa.Array:
    """Return an array with NULL wherever it is not valid, and nowhere else; copies no value."""
    if pa.types.is_struct(array.type):
        children = [array.field(index) for index in range(array.type.num_fields)]
        return struct_array(array.type, children, len(array), bitmap(valid))
    bits = bitmap(np.pad(valid, (array.offset, 0)) if array.offset else valid)
    return pa.Array.from_buffers(array.type, len(array), [bits, *array.buffers()[1:]], offset=array.offset)


def offsets_of(lengths: Sequence[int] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(np.asarray(lengths, dtype=np.int64), out=offsets[1:])
    return offsets


def struct_array(
    kind: pa.StructType, children: Sequence[pa.Array], length: int, validity: pa.Buffer | None = None
) -> pa.StructArray:
    return pa.Array.from_buffers(kind, length, [validity], children=list(children))


def selected(values: pa.StructArray, names: Iterable[str]) -> pa.StructArray:
    """Return a struct array with these of its fields, each once, in this order."""
    kind = pa.struct([values.type.field(name) for name in dict.fromkeys(names)])
    return struct_array(kind, [values.field(part.name) for part in kind], len(values), bitmap(validity_of(values)))


def list_array(
    kind: pa.ListType | pa.MapType, offsets: np.ndarray[Any, Any], values: pa.Array, validity: pa.Buffer | None = None
) -> pa.ListArray:
    """Return a list array, or a map array of entries, with these offsets (int32)."""
    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [validity, pa.py_buffer(np.ascontiguousarray(offsets))], children=[values]
    )


def map_array(kind: pa.MapType, offsets: np.ndarray[Any, Any], keys: pa.Array, items: pa.Array) -> pa.MapArray:
    """Return a map array with these offsets (int32)."""
    # So that they are counted: pyarrow up to 20 takes uncounted ones, as a cast leaves them, for nulls in a copy.
    _ = keys.null_count
    entries = struct_array(pa.struct([kind.key_field, kind.item_field]), [keys, items], len(keys))
    return list_array(kind, offsets, entries)


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


def spread(array: pa.Array, mask: np.ndarray[Any, Any]) -> pa.Array:
    """Return a column with these values, in their order, where the mask is true, and NULL elsewhere.

    As `take` would, but that moves all data: here texts and the items of lists stay where they are.
    """
    if len(array) == len(mask):
        return array
    if not len(array):
        return pa.nulls(len(mask), array.type)
    before = np.zeros(len(mask) + 1, np.int64)
    np.cumsum(mask, out=before[1:])
    rows = np.minimum(before[:-1], len(array) - 1)
    base = bitmap(mask)

    def place(array: pa.Array) -> pa.Array:
        kind = array.type
        validity = base if array.null_count == 0 else bitmap(mask & validity_of(array)[rows])
        if pa.types.is_struct(kind):
            return struct_array(kind, [place(child) for child in array.flatten()], len(mask), validity)
        if pa.types.is_primitive(kind) and kind.bit_width in _WIDTHS:
            data = np.frombuffer(array.buffers()[1], f"i{kind.bit_width // 8}")[array.offset :]
            return pa.Array.from_buffers(kind, len(mask), [validity, pa.py_buffer(data[rows])])
        if array.offset or not (pa.types.is_list(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)):
            return array.take(pa.array(rows, mask=~mask))
        bounds = offsets(array)[before]
        if pa.types.is_list(kind):
            return list_array(kind, bounds, array.values, validity)
        return pa.Array.from_buffers(kind, len(mask), [validity, pa.py_buffer(bounds), array.buffers()[2]])

    return place(array)
