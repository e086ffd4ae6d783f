"""Arrow's arrays of what was read: numbers, texts, lists, and the parts of unions put to their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.decoder.places import Places
from connectors.avro.schema.plan import Node
from connectors.core.functions.columns import bitmap, list_array, offsets, offsets_of, spread, struct_array


@dataclass(slots=True)
class Items:
    """The items of lists, in the order in which they were read, and the lists that they are in."""

    node: Node
    owners: list[Places]
    columns: list[pa.Array]

    def add(self, owners: Places, column: pa.Array | None) -> None:
        if column is not None:
            self.owners.append(owners)
            self.columns.append(column)

    def column(self, node: Node, count: int) -> pa.Array:
        assert node.arrow is not None  # noqa: S101 - asked for only then
        if not self.columns:
            values = pa.array([], self.node.arrow)
            return list_array(node.arrow, np.zeros(count + 1, np.int32), values)
        owners = np.concatenate(self.owners)
        values = self.columns[0] if len(self.columns) == 1 else pa.concat_arrays(self.columns)
        if len(self.columns) > 1:
            order = np.argsort(owners, kind="stable")
            owners, values = owners[order], values.take(pa.array(order))
        if node.kind == "map":
            last = _last_of_each_key(owners, values.field(0))
            if last is not None:
                owners, values = owners[last], values.take(pa.array(last))
        return list_array(node.arrow, offsets_of(np.bincount(owners, minlength=count)), values)


def _last_of_each_key(owners: Places, keys: pa.Array) -> Places | None:
    """Return which entries of maps remain: of several with one key the last; None if all do."""
    codes = keys.view(pa.binary()).dictionary_encode()
    pairs = owners * (len(codes.dictionary) + 1) + codes.indices.to_numpy()
    _, first_from_end = np.unique(pairs[::-1], return_index=True)
    if len(first_from_end) == len(pairs):
        return None
    return np.sort(len(pairs) - 1 - first_from_end)


def numpy_type(arrow: pa.DataType) -> np.dtype[Any]:
    if kinds.is_float32(arrow) or kinds.is_float64(arrow):
        return np.dtype(f"f{arrow.bit_width // 8}")
    return np.dtype(f"i{arrow.bit_width // 8}")


def primitive(values: npt.NDArray[Any], arrow: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(arrow, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def texts(data: npt.NDArray[np.uint8], begin: Places, end: Places, kind: pa.DataType) -> pa.Array:
    """Return the bytes from each beginning to its end; places only grow within a batch."""
    bounds = np.empty(2 * len(begin) + 1, np.int32)
    bounds[:-1:2], bounds[1::2] = begin, end
    bounds[-1] = end[-1] if len(end) else 0
    gaps = pa.Array.from_buffers(kind, 2 * len(begin), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return gaps.take(pa.array(np.arange(0, 2 * len(begin), 2, dtype=np.uint32)))


def repeated(default: Any, kind: pa.DataType, count: int) -> pa.Array:
    return column_of([default], kind).take(pa.array(np.zeros(count, np.uint32)))


def column_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return the column of values: a dictionary for a struct, pairs for a map, bytes for a text, numbers for times."""
    return _retyped(pa.array(values, _raw_type(kind)), kind)


def _raw_type(kind: pa.DataType) -> pa.DataType:
    if kinds.is_struct(kind):
        return pa.struct([pa.field(field.name, _raw_type(field.type)) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(pa.binary(), _raw_type(kind.item_type))
    if kinds.is_list(kind):
        return pa.list_(_raw_type(kind.value_type))
    if kinds.is_string(kind):
        return pa.binary()
    if kinds.is_date32(kind):
        return pa.int32()
    return pa.int64() if kinds.is_timestamp(kind) or kinds.is_duration(kind) else kind


def _retyped(array: pa.Array, kind: pa.DataType) -> pa.Array:
    validity = array.buffers()[0] if array.null_count and not kinds.is_null(kind) else None
    if kinds.is_struct(kind):
        children = [_retyped(array.field(place), field.type) for place, field in enumerate(kind)]
        return struct_array(kind, children, len(array), validity)
    if kinds.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        parts = [_retyped(array.keys, kind.key_type), _retyped(array.items, kind.item_type)]
        return list_array(kind, offsets(array), struct_array(entries, parts, len(parts[0])), validity)
    if kinds.is_list(kind):
        return list_array(kind, offsets(array), _retyped(array.values, kind.value_type), validity)
    return array if array.type == kind else array.view(kind)


def scattered(
    parts: Sequence[tuple[Places, pa.Array]], kind: pa.DataType, count: int, missing: Places | None = None
) -> pa.Array:
    """Return a column with these values at these places, and NULL elsewhere and where it is missing.

    The places of each part only grow.
    """
    if not parts:
        return pa.nulls(count, kind)
    nothing_missing = missing is None or not len(missing)
    if len(parts) == 1 and nothing_missing:
        mask = np.zeros(count, np.bool_)
        mask[parts[0][0]] = True
        return spread(parts[0][1], mask)
    source = np.full(count, -1, np.int64)
    begin = 0
    for which, column in parts:
        source[which] = np.arange(begin, begin + len(column))
        begin += len(column)
    if not nothing_missing:
        source[missing] = -1
    values = parts[0][1] if len(parts) == 1 else pa.concat_arrays([column for _, column in parts])
    return values.take(pa.array(source, mask=source < 0))


def members(kind: pa.DataType, parts: list[tuple[int, Places, pa.Array]], count: int) -> pa.Array:
    """Return structs, each with the one member that it has; NULL where there is none."""
    valid = np.zeros(count, np.bool_)
    for member, which, _ in parts:
        valid[which] = member != -1
    columns = [
        scattered([(which, column) for member, which, column in parts if member == place], part.type, count)
        for place, part in enumerate(kind)
    ]
    return struct_array(kind, columns, count, bitmap(valid))
