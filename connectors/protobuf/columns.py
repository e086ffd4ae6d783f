"""Arrow arrays put together from parts, with exactly the type that Spark expects.

The ``from_arrays`` of pyarrow refuse a NULL below a field that is not nullable, also where the parent is NULL; here
the parts are put together as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["bitmap", "list_array", "map_array", "offsets_of", "struct_array", "validity_of"]


def bitmap(valid: np.ndarray[Any, Any]) -> pa.Buffer | None:
    """The validity bitmap of booleans; None when all are true."""
    if valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


def validity_of(array: pa.Array) -> np.ndarray[Any, Any]:
    """For each value whether it is not NULL."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    found: np.ndarray[Any, Any] = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def offsets_of(lengths: Sequence[int] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The offsets of lists with these lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(np.asarray(lengths, dtype=np.int64), out=offsets[1:])
    return offsets


def struct_array(
    kind: pa.StructType, children: Sequence[pa.Array], length: int, validity: pa.Buffer | None = None
) -> pa.StructArray:
    """A struct array of these children."""
    return pa.Array.from_buffers(kind, length, [validity], children=list(children))


def list_array(
    kind: pa.ListType, offsets: np.ndarray[Any, Any], values: pa.Array, validity: pa.Buffer | None = None
) -> pa.ListArray:
    """A list array with these offsets (int32)."""
    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [validity, pa.py_buffer(np.ascontiguousarray(offsets))], children=[values]
    )


def map_array(kind: pa.MapType, offsets: np.ndarray[Any, Any], keys: pa.Array, items: pa.Array) -> pa.MapArray:
    """A map array with these offsets (int32)."""
    entries = struct_array(pa.struct([kind.key_field, kind.item_field]), [keys, items], len(keys))
    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [None, pa.py_buffer(np.ascontiguousarray(offsets))], children=[entries]
    )
