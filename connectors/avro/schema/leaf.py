"""Single values: times and decimals, and which of them have no place in a column."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from connectors.avro.schema.parser import AvroType
from connectors.core.functions.bad_rows import BadRowError

MICROS: Final = 1000
FIRST_DAY: Final = -141427  # 1582-10-15, the first day of the Gregorian calendar
FIRST_MICROS: Final = -2_208_988_800_000_000  # 1900-01-01: from there on the calendars agree in every time zone


def is_millis(reader: AvroType) -> bool:
    return reader.logical.endswith("timestamp-millis")


def is_checked_time(reader: AvroType) -> bool:
    """Return whether datetimeRebaseMode is about this type; local times are not rebased."""
    return reader.logical in {"date", "timestamp-millis", "timestamp-micros"}


def decimal_of(data: bytes, precision: int, scale: int) -> Decimal:
    """Return the decimal in the bytes of an Avro value; BadRowError where it has too many digits."""
    if not data:
        raise BadRowError("has a decimal of no byte")
    number = int.from_bytes(data, "big", signed=True)
    if abs(number) >= 10**precision:
        raise BadRowError(f"has a decimal of more than {precision} digits")
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))
