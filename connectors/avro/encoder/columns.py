"""Encodes columns: what Spark's ``AvroSerializer`` writes, each field of all rows at once.

An encoder takes values without NULLs; those that may be NULL are taken out before, and their places filled after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from connectors.avro.encoder.pieces import expanded, fixed, joined, lists, minimal, raw_values, varints
from connectors.avro.errors import AvroDataError
from connectors.avro.schema.leaf import FIRST_DAY, FIRST_MICROS
from connectors.avro.schema.parser import AvroType
from connectors.avro.schema.types import non_null
from connectors.core.functions.columns import validity_of

Encode = Callable[[pa.Array], pa.BinaryArray]
_NUMBERS: Final = {
    "null": "null",
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "duration[us]": "long",
    "float": "float",
    "double": "double",
}
_THOUSAND: Final = 1000
_OF_SPARK: Final = {b"variant", b"geometry", b"geography"}  # marks structs that stand for these types


class ColumnEncoder:
    """Encodes values of a type by a schema. `strict` refuses dates of before the calendars agree.

    Raises:
        AvroDataError: AVRO_SCHEMA_INCOMPATIBLE where the type does not fit the schema.
    """

    def __init__(
        self, kind: pa.DataType, schema: AvroType, *, strict: bool = False, case_sensitive: bool = False
    ) -> None:
        self._strict, self._case_sensitive = strict, case_sensitive
        self._encode = self._nullable(kind, schema, ())

    def encode(self, values: pa.Array) -> pa.BinaryArray:
        """Return the message of each value; NULL stays NULL."""
        valid = validity_of(values)
        return expanded(self._encode(_without_nulls(values, valid)), valid, null=True)

    def _nullable(self, kind: pa.DataType, schema: AvroType, path: tuple[str, ...]) -> Encode:
        branches = non_null(schema) if schema.kind == "union" else [schema]
        if schema.kind != "union" or not branches:
            return self._required(kind, schema if branches else AvroType("null"), path, schema)
        null, names = _null_branch(schema), {branch.kind for branch in branches}
        if len(branches) == 1:
            chosen = branches[0]
        elif kinds.is_int64(kind) and names == {"int", "long"}:
            chosen = next(branch for branch in branches if branch.kind == "long")
        elif kinds.is_float64(kind) and names == {"float", "double"}:
            chosen = next(branch for branch in branches if branch.kind == "double")
        else:
            return self._members(kind, schema, null, path)
        encode, branch = self._value(kind, chosen, path), 2 * schema.branches.index(chosen)

        def union(array: pa.Array) -> pa.BinaryArray:
            valid = validity_of(array)
            if null < 0 and not valid.all():
                raise _null_error(path, schema)
            values = expanded(encode(_without_nulls(array, valid)), valid)
            return joined([fixed(np.where(valid, branch, 2 * null).astype(np.uint8), 1), values], len(array))

        return union

    def _required(self, kind: pa.DataType, schema: AvroType, path: tuple[str, ...], declared: AvroType) -> Encode:
        encode = self._value(kind, schema, path)

        def required(array: pa.Array) -> pa.BinaryArray:
            if array.null_count and schema.kind != "null":
                raise _null_error(path, declared)
            return encode(array)

        return required

    def _members(self, kind: pa.DataType, schema: AvroType, null: int, path: tuple[str, ...]) -> Encode:
        """Return the encoder of structs ``member0``, ``member1`` and so on; the first member that isn't null counts."""
        branches = non_null(schema)
        wanted = [f"member{place}" for place in range(len(branches))]
        if not kinds.is_struct(kind):
            raise _incompatible(path, f"schema is incompatible (type = {kind}, avroType = union)")
        if [part.name for part in kind] != wanted:
            raise _incompatible(path, f"a union has the members {', '.join(wanted)}, and the struct has others")
        encoders = [
            self._value(part.type, branch, (*path, part.name)) for part, branch in zip(kind, branches, strict=True)
        ]

        def union(array: pa.Array) -> pa.BinaryArray:
            valid, left = validity_of(array), np.arange(len(array))
            left = left[valid]
            indexes, parts, order = np.full(len(array), null), [], []
            for place, encode in enumerate(encoders):
                member = array.field(place)
                here = validity_of(member)[left]
                rows, left = left[here], left[~here]
                indexes[rows] = schema.branches.index(branches[place])
                parts.append(encode(member.take(pa.array(rows))))
                order.append(rows)
            if (indexes < 0).any():
                raise _null_error(path, schema)
            written = np.concatenate(order)
            source = np.argsort(written, kind="stable")
            mask = np.zeros(len(array), np.bool_)
            mask[written] = True
            values = expanded(pa.concat_arrays(parts).take(pa.array(source)), mask)
            return joined([varints(indexes), values], len(array))

        return union

    def _value(self, kind: pa.DataType, schema: AvroType, path: tuple[str, ...]) -> Encode:
        special = [key for part in kind for key in part.metadata or {}] if kinds.is_struct(kind) else []
        for name in _OF_SPARK.intersection(special):
            what = f"The column has a {name.decode()}, in {_place(path)}"
            raise AvroDataError("AVRO_TYPE_NOT_SUPPORTED", what, "to_avro")
        if kinds.is_struct(kind) and schema.kind == "record":
            return self._record(kind, schema, path)
        if kinds.is_map(kind) and schema.kind == "map" and _is_text(kind.key_type):
            assert schema.items is not None  # noqa: S101 - of a map
            return _map(self._nullable(kind.item_type, schema.items, (*path, "value")))
        if (kinds.is_list(kind) or kinds.is_large_list(kind)) and schema.kind == "array":
            assert schema.items is not None  # noqa: S101 - of an array
            return _list(self._nullable(kind.value_type, schema.items, (*path, "element")))
        encode = self._scalar(kind, schema, path)
        if encode is None:
            raise _incompatible(path, f"schema is incompatible (type = {kind}, avroType = {schema.kind})")
        return encode

    def _scalar(self, kind: pa.DataType, schema: AvroType, path: tuple[str, ...]) -> Encode | None:
        if kinds.is_decimal(kind):
            return _decimal(kind, schema)
        if _is_text(kind) or _is_bytes(kind):
            return _text(kind, schema, path)
        if kinds.is_date32(kind) and schema.kind == "int":
            return lambda array: varints(self._checked(raw_values(array, np.int32), FIRST_DAY, path))
        if kinds.is_timestamp(kind) and schema.kind == "long":
            return self._timestamp(kind, schema, path)
        if kinds.is_time64(kind) and schema.kind == "long" and schema.logical == "time-micros":
            return lambda array: varints(raw_values(array, np.int64) // _THOUSAND)
        return _number(kind) if _NUMBERS.get(str(kind)) == schema.kind else None

    def _timestamp(self, kind: pa.DataType, schema: AvroType, path: tuple[str, ...]) -> Encode | None:
        local = "local-" if kind.tz is None else ""
        if schema.logical not in {"", f"{local}timestamp-millis", f"{local}timestamp-micros"}:
            return None
        millis = schema.logical != f"{local}timestamp-micros"

        def encode(array: pa.Array) -> pa.BinaryArray:
            values = raw_values(array, np.int64)
            if not local:
                self._checked(values, FIRST_MICROS, path)
            return varints(values // _THOUSAND if millis else values)

        return encode

    def _checked(self, values: Any, first: int, path: tuple[str, ...]) -> Any:
        if self._strict and (values < first).any():
            what = f"The column has a date from before the Julian and Gregorian calendars agree, in {_place(path)}"
            raise AvroDataError("AVRO_DATE_TOO_OLD", what, "to_avro")
        return values

    def _record(self, kind: pa.StructType, schema: AvroType, path: tuple[str, ...]) -> Encode:
        places = self._matched(kind, schema, path)
        encoders: list[tuple[int, Encode]] = []
        for field in schema.fields:
            place = places.get(field.name, -1)
            if place < 0:
                encoder = _absent(field.type)
            else:
                encoder = self._nullable(kind.field(place).type, field.type, (*path, field.name))
            encoders.append((place, encoder))

        def record(array: pa.Array) -> pa.BinaryArray:
            pieces = [encode(array if place < 0 else array.field(place)) for place, encode in encoders]
            return joined(pieces, len(array))

        return record

    def _matched(self, kind: pa.StructType, schema: AvroType, path: tuple[str, ...]) -> dict[str, int]:
        places: dict[str, int] = {}
        for place, part in enumerate(kind):
            matches = [field.name for field in schema.fields if self._key(field.name) == self._key(part.name)]
            if not matches:
                raise _incompatible((*path, part.name), "the schema has no such field")
            if len(matches) > 1 or matches[0] in places:
                raise _incompatible((*path, part.name), "several fields have this name")
            places[matches[0]] = place
        for field in schema.fields:
            if field.name not in places and _null_branch(field.type) < 0:
                raise _incompatible((*path, field.name), "the field is required, and there is no such column")
        return places

    def _key(self, name: str) -> str:
        return name if self._case_sensitive else name.lower()


def _without_nulls(array: pa.Array, valid: Any) -> pa.Array:
    return array if valid.all() else array.filter(pa.array(valid))


def _null_branch(schema: AvroType) -> int:
    return next((place for place, branch in enumerate(schema.branches) if branch.kind == "null"), -1)


def _absent(schema: AvroType) -> Encode:
    null = _null_branch(schema)
    return lambda array: varints(np.full(len(array), null))


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))


def _binary(array: pa.Array) -> pa.BinaryArray:
    return array.view(pa.binary()) if kinds.is_string(array.type) else array.cast(pa.binary())


def _number(kind: pa.DataType) -> Encode:
    if kinds.is_null(kind):
        return lambda array: joined([], len(array))
    if kinds.is_boolean(kind):
        return lambda array: fixed(raw_values(array.cast(pa.uint8()), np.uint8), 1)
    width = kind.bit_width // 8
    if kinds.is_floating(kind):
        return lambda array: fixed(raw_values(array, f"<f{width}"), width)
    return lambda array: varints(raw_values(array, f"<i{width}"))


def _text(kind: pa.DataType, schema: AvroType, path: tuple[str, ...]) -> Encode | None:
    if schema.kind == ("string" if _is_text(kind) else "bytes"):
        return _sized
    if _is_text(kind):
        return _enum(schema, path) if schema.kind == "enum" else None
    return _fixed(schema, path) if schema.kind == "fixed" else None


def _sized(array: pa.Array) -> pa.BinaryArray:
    values = _binary(array)
    return joined([varints(raw_values(pc.binary_length(values), np.int32)), values], len(array))


def _fixed(schema: AvroType, path: tuple[str, ...]) -> Encode:
    def encode(array: pa.Array) -> pa.BinaryArray:
        values = _binary(array)
        sizes = raw_values(pc.binary_length(values), np.int32)
        wrong = sizes[sizes != schema.size]
        if len(wrong):
            what = f"{wrong[0]} bytes of binary data cannot be written into FIXED type with size of {schema.size} bytes"
            raise _incompatible(path, what)
        return values

    return encode


def _enum(schema: AvroType, path: tuple[str, ...]) -> Encode:
    symbols = pa.array(schema.symbols, pa.string())

    def encode(array: pa.Array) -> pa.BinaryArray:
        indexes = pc.index_in(array.cast(pa.string()), value_set=symbols)
        if indexes.null_count:
            unknown = array.filter(indexes.is_null())[0].as_py()
            listed = ", ".join(f'"{symbol}"' for symbol in schema.symbols)
            raise _incompatible(path, f'"{unknown}" cannot be written since it\'s not defined in enum {listed}')
        return varints(raw_values(indexes, np.int32))

    return encode


def _decimal(kind: pa.DataType, schema: AvroType) -> Encode | None:
    if schema.logical != "decimal" or (schema.precision, schema.scale) != (kind.precision, kind.scale):
        return None

    def encode(array: pa.Array) -> pa.BinaryArray:
        numbers = raw_values(array, "V16").view(np.uint8).reshape(len(array), 16)[:, ::-1]
        if schema.kind == "bytes":
            return _sized(minimal(numbers))
        extra = max(0, schema.size - 16)
        sign = np.repeat((numbers[:, :1] >> 7) * np.uint8(255), extra, axis=1)
        return fixed(np.hstack([sign, numbers[:, max(0, 16 - schema.size) :]]), schema.size)

    return encode


def _list(encode: Encode) -> Encode:
    def of_lists(array: pa.Array) -> pa.BinaryArray:
        offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        items = array.values[int(offsets[0]) : int(offsets[-1])]
        return lists(encode(items), offsets - offsets[0])

    return of_lists


def _map(encode: Encode) -> Encode:
    def of_maps(array: pa.MapArray) -> pa.BinaryArray:
        offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        begin, end = int(offsets[0]), int(offsets[-1])
        entries = joined([_sized(array.keys[begin:end]), encode(array.items[begin:end])], end - begin)
        return lists(entries, offsets - offsets[0])

    return of_maps


def _place(path: Sequence[str]) -> str:
    return f"field '{'.'.join(path)}'" if path else "top-level record"


def _incompatible(path: tuple[str, ...], why: str) -> AvroDataError:
    what = f"Cannot convert SQL {_place(path)} to Avro {_place(path)} because {why}"
    action = "Cast or rename the columns, or give another schema."
    return AvroDataError("AVRO_SCHEMA_INCOMPATIBLE", what, "to_avro", action)


def _null_error(path: tuple[str, ...], schema: AvroType) -> AvroDataError:
    name = path[-1] if path else "value"
    what = f"Cannot write null value for field `{name}` defined as non-null Avro data type {schema.kind}"
    return AvroDataError("AVRO_CANNOT_WRITE_NULL_FIELD", what, "to_avro")
