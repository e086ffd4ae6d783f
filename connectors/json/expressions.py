"""Spark's expressions that decode: its own ``from_json``, and what makes a value of the JSON that Kafka Connect writes.

The JSON of a message never leaves the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql import types as spark

from connectors.json.options import JsonOptions
from connectors.json.schema.columns import JsonColumn

__all__ = ["decoded_json", "spark_type"]

_MOST_MILLIS: Final = (2**63 - 1) // 1000  # that Spark's microseconds can hold
_HALF: Final = 16  # hexadecimal digits of 64 bits
_FAILED: Final = "[MALFORMED_JSON_MESSAGE] A message is no JSON of the columns of its schema (from_json_registry)."
_SCALARS: Final[dict[str, spark.DataType]] = {
    "boolean": spark.BooleanType(),
    "tinyint": spark.ByteType(),
    "smallint": spark.ShortType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "string": spark.StringType(),
    "binary": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "variant": spark.VariantType(),
}
_CODES: Final[dict[str, spark.DataType]] = {
    "days": spark.IntegerType(),
    "millis": spark.LongType(),
    "decimal": spark.BinaryType(),
}
Convert = Callable[[Column], Column]


def spark_type(column: JsonColumn, *, as_read: bool = False) -> spark.DataType:
    """Return the type of a column; `as_read` that which from_json reads."""
    if column.kind == "struct":
        return spark.StructType(
            [spark.StructField(name, spark_type(inner, as_read=as_read)) for name, inner in column.fields]
        )
    if column.items is not None:
        items = spark_type(column.items, as_read=as_read)
        return spark.ArrayType(items) if column.kind == "array" else spark.MapType(spark.StringType(), items)
    if as_read and column.meaning in _CODES:
        return _CODES[column.meaning]
    if column.kind == "decimal":
        return spark.DecimalType(column.precision, column.scale)
    return _SCALARS[column.kind]


def decoded_json(text: Column, column: JsonColumn, options: JsonOptions) -> Column:
    """Return what a column of JSON holds; with an error column STRUCT<value, corrupt>.

    The latter is a boolean: whether a text is no JSON of the columns. A NULL is no such text.
    """
    decoded = _struct if column.kind == "struct" else _whole
    return decoded(text, column, options)


def _struct(text: Column, column: JsonColumn, options: JsonOptions) -> Column:
    kind = spark_type(column, as_read=True)
    assert isinstance(kind, spark.StructType)  # noqa: S101 - of a struct
    corrupt = options.corrupt_record or _unused_name(column)
    given = {**options.for_spark(), "columnNameOfCorruptRecord": corrupt}
    if options.corrupt_record or options.error_column:
        kind = spark.StructType([*kind, spark.StructField(corrupt, spark.StringType())])
    read = F.from_json(text, kind, given)
    if not (options.error_column or column.coded()):
        return read
    parts = [(name, _conversion(inner, options)) for name, inner in column.fields]
    parts += [(corrupt, None)] if options.corrupt_record else []

    def made(row: Column) -> Column:
        value = F.when(row.isNotNull(), _fields_of(row, parts))
        return F.struct(value.alias("value"), row.getField(corrupt).isNotNull().alias("corrupt"))

    return _with(read, made if options.error_column else lambda row: F.when(row.isNotNull(), _fields_of(row, parts)))


def _fields_of(row: Column, parts: Sequence[tuple[str, Convert | None]]) -> Column:
    fields = [(name, row.getField(name), convert) for name, convert in parts]
    return F.struct(*((field if convert is None else convert(field)).alias(name) for name, field, convert in fields))


def _with(value: Column, body: Convert) -> Column:
    """Return an expression of a value that is evaluated once, however often the expression has it.

    Elsewhere Spark would parse a message again for each column of it.
    """
    return F.transform(F.array(value), body).getItem(0)


def _unused_name(column: JsonColumn) -> str:
    names = {name.lower() for name, _ in column.fields}
    return next(name for number in count() if (name := f"_corrupt_record{number or ''}") not in names)


def _whole(text: Column, column: JsonColumn, options: JsonOptions) -> Column:
    """Decode what is no struct; from_json reads a text, a number or a boolean only within something else."""
    kind = spark_type(column, as_read=True)
    convert = _conversion(column, options) or (lambda read: read)
    if isinstance(kind, spark.ArrayType | spark.MapType | spark.VariantType):
        read = F.from_json(text, kind, options.for_spark())  # type: ignore[arg-type]  # takes a VARIANT too
    else:
        listed = F.from_json(F.concat(F.lit("["), text, F.lit("]")), spark.ArrayType(kind), options.for_spark())
        read = _with(listed, lambda items: _only(items, options))
    if not options.error_column:
        return _with(read, convert) if column.coded() else read

    def made(pair: Column) -> Column:
        corrupt = pair["text"].isNotNull() & pair["read"].isNull() & (F.trim(pair["text"]) != "null")
        return F.struct(convert(pair["read"]).alias("value"), corrupt.alias("corrupt"))

    return _with(F.struct(text.alias("text"), read.alias("read")), made)


def _only(items: Column, options: JsonOptions) -> Column:
    one = F.when(F.size(items) == 1, items.getItem(0))
    return one if options.permissive else F.when(F.size(items) > 1, F.raise_error(F.lit(_FAILED))).otherwise(one)


def _conversion(column: JsonColumn, options: JsonOptions) -> Convert | None:
    """Return what makes a value of what from_json reads; None where it is that already."""
    if not column.coded():
        return None
    if column.meaning == "days":
        return F.date_from_unix_date
    if column.meaning == "millis":
        return lambda read: _checked(
            F.when(read.between(-_MOST_MILLIS, _MOST_MILLIS), F.timestamp_millis(read)), read, options
        )
    if column.meaning == "decimal":
        return lambda read: _checked(_decimal(read, column), read, options)
    if column.items is not None:
        return _of_items(column, column.items, options)
    parts = [(name, _conversion(inner, options)) for name, inner in column.fields]
    return lambda row: F.when(row.isNotNull(), _fields_of(row, parts))


def _of_items(column: JsonColumn, items: JsonColumn, options: JsonOptions) -> Convert:
    convert = _conversion(items, options)
    assert convert is not None  # noqa: S101 - an item is coded, since the column is and has no meaning itself
    if column.kind == "array":
        return lambda read: F.transform(read, convert)
    return lambda read: F.transform_values(read, lambda _, value: convert(value))


def _checked(value: Column, read: Column, options: JsonOptions) -> Column:
    """Return the value; under FAILFAST an error where there is none for what was read."""
    if options.permissive:
        return value
    return F.when(read.isNotNull() & value.isNull(), F.raise_error(F.lit(_FAILED))).otherwise(value)


def _decimal(data: Column, column: JsonColumn) -> Column:
    """Return the decimal of the bytes of an unscaled number, in two's complement; NULL if it has too many digits."""
    digits = F.hex(data)
    negative = F.substring(digits, 1, 1) >= "8"
    padding = F.when(negative, F.lit("F")).otherwise(F.lit("0"))
    padded = F.concat(F.repeat(padding, F.greatest(F.lit(0), F.lit(2 * _HALF) - F.length(digits))), digits)
    high = F.conv(F.substring(padded, 1, _HALF), 16, -10).cast("decimal(20,0)")
    low = F.conv(F.substring(padded, _HALF + 1, _HALF), 16, 10).cast("decimal(20,0)")
    whole = F.lit(str(2**64)).cast("decimal(20,0)")
    # Towards zero, else the upper half of a number that has 38 digits may have 39.
    high, low = F.when(negative, high + 1).otherwise(high), F.when(negative, low - whole).otherwise(low)
    number = F.try_add(F.try_multiply(high.cast("decimal(20,0)"), whole), low)
    text = F.concat(number.cast("string"), F.lit(f"E-{column.scale}"))
    fits = F.length(digits).between(1, 2 * _HALF)
    return F.when(fits, text.try_cast(spark.DecimalType(column.precision, column.scale)))
