"""Encodes on a Spark without Arrow functions, which is 4.0: by a function of rows, with the type as a further column.

What pandas has of a struct is no longer what it was: a NULL among integers makes numbers of 53 bits of them all, and a
NULL in an array of doubles becomes NaN. Rows have the values as they are, but no types; ``typeof`` has these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql import functions as spark_functions
from pyspark.sql.types import BinaryType

from connectors.core.errors import ConnectorError
from connectors.core.functions.call import Call
from connectors.core.functions.pandas_columns import named

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from connectors.core.processes.spark import ColumnOrName

Convert = Callable[[Any], Any]

_SCALARS: Final[dict[str, pa.DataType]] = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_PATTERNS: Final = {
    re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?"): pa.duration("us"),
    re.compile(r"(string collate|(var)?char\().*"): pa.string(),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


class RowFunction:
    """A function of a column that encodes.

    Args:
        call: encodes.
    """

    def __init__(self, call: Call) -> None:
        self._name = call.function
        self._function: Any = spark_functions.udf(_encoding(call), BinaryType(), useArrow=False)

    def __call__(self, data: ColumnOrName) -> Column:
        """Return the column of messages."""
        return named(self._function(data, spark_functions.typeof(data)), self._name, data)

    def register(self, spark: SparkSession, name: str) -> None:
        """Make it a function of SQL, of a struct and the name of its type."""
        spark.udf.register(name, self._function)


def _encoding(call: Call) -> Callable[..., bytes | None]:
    """Return the function of a row and the name of its type."""

    def encode(struct: Any, name: str | None = None) -> bytes | None:
        if name is None:
            example = f"{call.function}_order(event, typeof(event))"
            how = f"Give the type too, as in {example}, or use Spark 4.1 or newer."
            raise _missing(f"{call.function} in SQL, with one argument", how)
        kind, convert = reading(name)
        value = struct if convert is None or struct is None else convert(struct)
        encoded: bytes | None = call(pa.array([value], kind))[0].as_py()
        return encoded

    return encode


def _missing(needed_by: str, action: str) -> ConnectorError:
    return ConnectorError(
        "SPARK_FEATURE_MISSING", "This needs Arrow functions, which this Spark does not have", needed_by, action
    )


@lru_cache(16)
def reading(name: str) -> tuple[pa.DataType, Convert | None]:
    """Return the Arrow type for the name of a type, as ``typeof`` has it, and what makes Arrow's values of a row's.

    Raises:
        ConnectorError: SPARK_FEATURE_MISSING, for a type that only Spark itself can send to Python.
    """
    kind = _arrow_type(name)
    return kind, _conversion(kind)


def _arrow_type(name: str) -> pa.DataType:
    begin, inner = name.partition("<")[::2]
    parts = _parts(inner[:-1])
    if begin == "array":
        return pa.list_(_arrow_type(inner[:-1]))
    if begin == "map":
        return pa.map_(*map(_arrow_type, parts))
    if begin == "struct":
        return pa.struct([(field, _arrow_type(kind)) for field, _, kind in (part.partition(":") for part in parts)])
    if decimal := _DECIMAL.fullmatch(name):
        return pa.decimal128(*map(int, decimal.groups()))
    for pattern, kind in _PATTERNS.items():
        if pattern.fullmatch(name):
            return kind
    if name not in _SCALARS:
        raise _missing(f"a column of the type {name}", "Leave the column out, cast it, or use Spark 4.1 or newer.")
    return _SCALARS[name]


def _parts(text: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    parts, begin, depth = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(text[begin:place])
            begin = place + 1
    return [*parts, text[begin:]] if text else parts


def _conversion(kind: pa.DataType) -> Convert | None:
    """Return what makes a value of Arrow's of one of a row that is not None; None where it is the same."""
    if kinds.is_struct(kind):
        return _struct_conversion([_conversion(field.type) for field in kind])
    if kinds.is_map(kind):
        key, item = (_of_each(_conversion(part)) for part in (kind.key_type, kind.item_type))
        return lambda value: list(zip(key(value), item(value.values()), strict=True))
    if kinds.is_list(kind):
        inner = _conversion(kind.value_type)
        return None if inner is None else _of_each(inner)
    if kinds.is_timestamp(kind) and kind.tz is not None:
        return _micros
    return None


def _of_each(convert: Convert | None) -> Callable[[Any], Sequence[Any]]:
    if convert is None:
        return list
    return lambda values: [None if value is None else convert(value) for value in values]


def _struct_conversion(parts: Sequence[Convert | None]) -> Convert:
    changed = [(place, part) for place, part in enumerate(parts) if part is not None]

    def convert(row: Any) -> tuple[Any, ...]:
        values = list(row)
        for place, part in changed:
            if values[place] is not None:
                values[place] = part(values[place])
        return tuple(values)

    return convert


def _micros(value: datetime) -> int:
    """Return microseconds since 1970: rows have times in the time zone of the process."""
    return round(value.replace(microsecond=0).timestamp()) * 1_000_000 + value.microsecond
