"""Single values: what Avro's numbers and bytes become in a column, and which ones cannot.

Strings stay the bytes that they are, times are numbers: `column_of` gives them their types without a copy. As in Spark,
a string that is not UTF-8 stays as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.schema.parser import AvroType
from connectors.core.functions.bad_rows import BadRowError
from connectors.core.functions.columns import list_array, offsets, struct_array

MICROS: Final = 1000
_LARGEST: Final = 2**63 - 1
FIRST_DAY: Final = -141427  # 1582-10-15, the first day of the Gregorian calendar
FIRST_MICROS: Final = -2_208_988_800_000_000  # 1900-01-01: from there on the calendars agree in every time zone


def is_millis(reader: AvroType) -> bool:
    """Return whether a number is a time in milliseconds, which becomes microseconds."""
    return reader.logical.endswith("timestamp-millis")


def is_checked_time(reader: AvroType) -> bool:
    """Return whether datetimeRebaseMode is about this type; local times are not rebased."""
    return reader.logical in {"date", "timestamp-millis", "timestamp-micros"}


def converter(writer_kind: str, reader: AvroType, arrow: pa.DataType, *, strict: bool) -> Callable[[Any], Any] | None:
    """Return what a value becomes; None where it stays as it is. The function raises BadRowError.

    `strict` refuses dates and timestamps for which the calendars do not agree.
    """
    if kinds.is_decimal(arrow):
        return lambda data: decimal_of(data, reader.precision, reader.scale)
    if reader.kind == "float" and writer_kind in {"int", "long"}:
        return lambda value: struct.unpack("<f", struct.pack("<f", value))[0]
    if kinds.is_floating(arrow) and writer_kind in {"int", "long"}:
        return float
    if is_millis(reader):
        return lambda value: _checked(_micros(value), reader, strict=strict)
    if strict and is_checked_time(reader):
        return lambda value: _checked(value, reader, strict=True)
    return None


def _micros(millis: int) -> int:
    micros = millis * MICROS
    if not -_LARGEST - 1 <= micros <= _LARGEST:
        raise BadRowError(f"long overflow: a timestamp of {millis} milliseconds")
    return micros


def _checked(value: int, reader: AvroType, *, strict: bool) -> int:
    if strict and is_checked_time(reader) and value < (FIRST_DAY if reader.logical == "date" else FIRST_MICROS):
        raise BadRowError(f"has a {reader.logical} of before the calendars agree, and datetimeRebaseMode=EXCEPTION")
    return value


def decimal_of(data: bytes, precision: int, scale: int) -> Decimal:
    """Return the decimal in the bytes of an Avro value; BadRowError where it has too many digits."""
    if not data:
        raise BadRowError("has a decimal of no byte")
    number = int.from_bytes(data, "big", signed=True)
    if abs(number) >= 10**precision:
        raise BadRowError(f"has a decimal of more than {precision} digits")
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))


def column_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return the column of values of this type: a dictionary for a struct, and pairs for a map."""
    return _retyped(pa.array(values, _raw_type(kind)), kind)


def _raw_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which values are read."""
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
