"""Single values: what Avro's numbers and bytes become in a column, and which ones cannot.

Strings are kept as the bytes that they are, times as numbers: `decoder.rows` gives the column its type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.schema.parser import AvroType
from connectors.functions.bad_rows import BadRowError

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
