"""Encoding by ptars, given columns of exactly the types that it declares.

Left to itself ptars drops what it does not expect, in silence: a column of another type becomes zeros, an unknown enum
name becomes the first value. So every column is converted here by the plan. A batch that holds something without a
place in protobuf (an unknown enum value, a NULL in an array, a number out of range) is left to upb, which raises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from google.protobuf.descriptor import FieldDescriptor

from connectors.core.functions.columns import bitmap, list_array, masked, numbers, offsets, struct_array, validity_of
from connectors.core.processes.pool import Cache
from connectors.protobuf.ptars.declarations import ptars_handler
from connectors.protobuf.ptars.decoder import PtarsError, guarded
from connectors.protobuf.schema.descriptors import EnumPlan
from connectors.protobuf.schema.plan import UNSIGNED_BITS, FieldPlan, Shape, ValueKind, as_signed
from connectors.protobuf.upb.encoder import TYPES, UpbEncoder

F: Final = FieldDescriptor
_MICROS: Final = 1_000_000
_UINT32_LIMIT: Final = 1 << 32
_NEVER_PACKED: Final = {F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE}
_FLOATS: Final[dict[int, npt.DTypeLike]] = {F.TYPE_FLOAT: np.uint32, F.TYPE_DOUBLE: np.uint64}


class _Writer:
    def __init__(self, fields: Sequence[FieldPlan]) -> None:
        self._fields = tuple(sorted(map(_form, _used(fields)), key=lambda field: field.number))
        handler = guarded(partial(ptars_handler, upcast=True), self._fields)
        self._schema: pa.Schema = guarded(handler.array_to_record_batch, pa.array([], pa.binary())).schema
        self._write = handler.record_batch_to_array

    def write(self, structs: pa.StructArray) -> pa.BinaryArray:
        valid = validity_of(structs)
        columns = _message(self._fields, structs, valid, list(self._schema))
        if [column.type for column in columns] != self._schema.types:
            raise PtarsError("types differ")  # none that ptars would not expect may reach it
        batch = pa.RecordBatch.from_arrays(columns, names=self._schema.names)
        array = guarded(self._write, batch)
        if valid.all():
            return array
        return pa.Array.from_buffers(pa.binary(), len(array), [bitmap(valid), *array.buffers()[1:]])


class PtarsEncoder:
    """Encodes by ptars, and by upb where ptars cannot."""

    def __init__(self, upb: UpbEncoder) -> None:
        self._upb = upb
        self._writers = Cache(TYPES)

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        kind = structs.type

        def make() -> _Writer | None:
            fields = self._upb.plan(kind)
            try:
                return _Writer(fields) if _supported(fields) else None
            except PtarsError:
                return None

        writer = self._writers.get(kind, make)
        if writer is None or len(structs) == 0:
            return self._upb.encode(structs)
        try:
            return writer.write(_compact(structs))
        except PtarsError:
            return self._upb.encode(structs)


def _compact(structs: pa.StructArray) -> pa.StructArray:
    """Return the same values with no offset anywhere."""

    def has_offset(array: pa.Array) -> bool:
        if array.offset:
            return True
        if kinds.is_struct(array.type):
            return any(has_offset(array.field(index)) for index in range(array.type.num_fields))
        if kinds.is_map(array.type):
            return has_offset(array.keys) or has_offset(array.items)
        nested = kinds.is_list(array.type) or kinds.is_large_list(array.type)
        return nested and has_offset(array.values)

    if not has_offset(structs):
        return structs
    return pa.concat_arrays([structs, structs.slice(0, 0)])


def _supported(fields: Sequence[FieldPlan]) -> bool:
    used = _used(fields)
    for field in used:
        if field.proto_type == F.TYPE_GROUP or field.number > 1 << 16:
            return False
        if field.shape is Shape.REPEATED and not field.packed and field.proto_type not in _NEVER_PACKED:
            return False  # ptars packs all numbers, whatever is declared
        if field.kind is ValueKind.MESSAGE and not _supported(field.children):
            return False
    return bool(used)


def _used(fields: Sequence[FieldPlan]) -> list[FieldPlan]:
    """Return the fields that are ever written: a column of the type VOID is not."""
    return [field for field in fields if field.kind is not ValueKind.EMPTY]


def _form(field: FieldPlan) -> FieldPlan:
    """Return a field as it is declared to ptars: sorted by number, floats with presence, so that -0.0 stays."""
    children = field.children
    if field.kind is ValueKind.MESSAGE and field.shape is not Shape.MAP:
        children = tuple(sorted(map(_form, _used(children)), key=lambda child: child.number))
    elif field.shape is Shape.MAP:
        # Entries always have key and value, as in Java; ptars leaves zeros out of a map.
        entry = (dataclasses.replace(_form(child), presence=True, zero_is_absent=False) for child in children)
        return dataclasses.replace(field, shape=Shape.REPEATED, children=tuple(entry))
    elif field.kind is ValueKind.WRAPPER:
        children = tuple(map(_form, children))
    if field.kind in {ValueKind.TIMESTAMP, ValueKind.DURATION}:
        # Without presence also in proto2: zeros are left out, as by Java's own Timestamp.
        children = tuple(dataclasses.replace(child, presence=False) for child in children)
    floats = field.proto_type in _FLOATS and field.shape is Shape.SINGULAR
    return dataclasses.replace(
        field, children=children, presence=field.presence or floats, zero_is_absent=not field.presence
    )


def _message(
    fields: Sequence[FieldPlan], structs: pa.StructArray, valid: np.ndarray[Any, Any], forms: Sequence[pa.Field]
) -> list[pa.Array]:
    # What stands below a NULL struct is anything; flattened, it is NULL too.
    parts = structs.flatten() if structs.null_count else [structs.field(i) for i in range(structs.type.num_fields)]
    columns = [_column(field, parts[field.index], valid, form.type) for field, form in zip(fields, forms, strict=True)]
    groups: dict[int, list[int]] = {}
    for place, field in enumerate(fields):
        if field.oneof is not None:
            groups.setdefault(field.oneof, []).append(place)
    for places in groups.values():
        # The last column in the order of the struct wins.
        later = np.zeros(len(structs), dtype=np.bool_)
        for place in sorted(places, key=lambda place: fields[place].index, reverse=True):
            here = validity_of(columns[place])
            if (here & later).any():
                columns[place] = masked(columns[place], here & ~later)
            later |= here
    return columns


def _column(field: FieldPlan, column: pa.Array, valid: np.ndarray[Any, Any], form: pa.DataType) -> pa.Array:
    if kinds.is_map(column.type):
        return _map(field, column, form)
    if field.shape is Shape.REPEATED:
        return _list(field, column, form)
    present = validity_of(column)
    if not field.is_scalar:
        if field.required and not (present | ~valid).all():
            raise PtarsError("a required message is NULL")
        return _values(field, column, form, present)
    array = _scalars(field, column, form)
    if field.required and not present.all():
        default = field.null
        if field.proto_type in UNSIGNED_BITS and not kinds.is_unsigned_integer(form):
            default = as_signed(default, UNSIGNED_BITS[field.proto_type])
        return pc.fill_null(array, pa.scalar(default, form))
    if field.zero_is_absent and field.proto_type in _FLOATS:
        zero = numbers(array, _FLOATS[field.proto_type]) == 0
        if zero.any():
            return masked(array, present & ~zero)
    return array


def _values(field: FieldPlan, column: pa.Array, form: pa.DataType, present: np.ndarray[Any, Any]) -> pa.StructArray:
    parts = [form.field(index) for index in range(form.num_fields)]
    if field.kind is ValueKind.MESSAGE:
        children = _message(field.children, column, present, parts)
    elif field.kind is ValueKind.WRAPPER:
        children = [_column(field.children[0], column, present, parts[0].type)]
    else:
        unit = pa.timestamp("us", tz="UTC") if field.kind is ValueKind.TIMESTAMP else pa.duration("us")
        micros = numbers(column.cast(unit), np.int64)
        if field.kind is ValueKind.DURATION and len(micros) and micros.min() < 0:
            rest = np.fmod(micros, _MICROS)  # towards zero, also for the smallest, which has no absolute value
            seconds = (micros - rest) // _MICROS
        else:
            seconds, rest = np.divmod(micros, _MICROS)
        children = [pa.array(seconds, pa.int64()), pa.array(rest * 1000, pa.int64()).cast(pa.int32())]
        first, second = field.children
        if first.number > second.number:
            children.reverse()
        children = [child.cast(part.type) for child, part in zip(children, parts, strict=True)]
    return struct_array(form, children, len(column), bitmap(present))


def _list(field: FieldPlan, column: pa.Array, form: pa.DataType) -> pa.Array:
    if kinds.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_field))
    values = column.values
    if values.null_count:
        raise PtarsError("a NULL in an array")
    present = validity_of(column)
    if field.is_scalar:
        inner = _scalars(field, values, form.value_type)
    else:
        inner = _values(field, values, form.value_type, np.ones(len(values), dtype=np.bool_))
    return list_array(form, offsets(column), inner, bitmap(present))


def _map(field: FieldPlan, column: pa.MapArray, form: pa.ListType) -> pa.Array:
    parts = [form.value_type.field(index).type for index in range(2)]
    sides = []
    for part, values, kind in zip(field.children, (column.keys, column.items), parts, strict=True):
        if part.kind is ValueKind.EMPTY:
            raise PtarsError("a map of NULL")
        if part.is_scalar:
            array = _scalars(part, values, kind)
            sides.append(pc.fill_null(array, pa.scalar(part.zero, kind)) if array.null_count else array)
        else:
            present = validity_of(values)
            if not present.all():
                raise PtarsError("a NULL message in a map")
            sides.append(_values(part, values, kind, present))
    entries = struct_array(form.value_type, sides, len(column.keys))
    return list_array(form, offsets(column), entries, bitmap(validity_of(column)))


def _scalars(field: FieldPlan, column: pa.Array, form: pa.DataType) -> pa.Array:
    array = _signed(field, column, form)
    return array.view(form) if kinds.is_unsigned_integer(form) else array


def _signed(field: FieldPlan, column: pa.Array, form: pa.DataType) -> pa.Array:
    kind = column.type
    if field.enum is not None:
        return _enum(field.enum, column)
    if kinds.is_date32(kind):
        return column.view(pa.int32())
    if kinds.is_int64(kind) and field.proto_type == F.TYPE_UINT32:
        wide = numbers(column, np.int64)
        present = validity_of(column)
        if ((wide < -(_UINT32_LIMIT >> 1)) | (wide >= _UINT32_LIMIT))[present].any():
            raise PtarsError("out of the range of uint32")
        return masked(pa.array(wide.astype(np.uint32).view(np.int32)), present)
    if kinds.is_decimal128(kind):
        halves = np.frombuffer(column.buffers()[1], dtype=np.int64, count=2 * len(column)).reshape(-1, 2)
        present = validity_of(column)
        if halves[present, 1].any():
            raise PtarsError("out of the range of uint64")
        return masked(pa.array(np.ascontiguousarray(halves[:, 0])), present)
    if kinds.is_unsigned_integer(form):
        form = {32: pa.int32(), 64: pa.int64()}[form.bit_width]
    return column if kind == form else column.cast(form)


def _enum(enum: EnumPlan, column: pa.Array) -> pa.Array:
    present = validity_of(column)
    if kinds.is_int32(column.type):
        listed = pa.array(list(enum.names), pa.int32())
        if not pc.all(pc.or_(pc.is_in(column, value_set=listed), pa.array(~present))).as_py():
            raise PtarsError("an unknown number of an enum")
        return column
    names = pa.array(list(enum.numbers), pa.string())
    place = pc.index_in(column.cast(pa.string()), value_set=names)
    if place.null_count != column.null_count:
        raise PtarsError("an unknown name of an enum")
    return pa.array(list(enum.numbers.values()), pa.int32()).take(place)
