"""Spark's expressions that decode: its own ``from_json``, and what makes a value of what that has read.

The JSON of a message never leaves the JVM.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql import types as spark

from connectors.json.conversions import (
    Convert,
    any_twice,
    conversion,
    first_found,
    last_entries,
    pruned,
    reason_of,
    struct_of,
    with_once,
)
from connectors.json.errors import MALFORMED
from connectors.json.options import JsonOptions
from connectors.json.places import NO_JSON, fault_of
from connectors.json.schema.columns import JsonColumn

_FAILED: Final = f"[{MALFORMED}] A message is not JSON of the columns of its schema"
_DIGITS: Final = r"""["'][-+.,\\\p{Nd}]"""  # Spark reads a text of digits for a decimal, with commas in it
_BEGINS: Final = r"(?<![^\s:\[,]..)"  # else most texts that end before a comma look like such a text
_PLAIN_NAME: Final = re.compile(r"[\w .-]+", re.ASCII)  # in JSON as it is, but for \u
_NUMBER_FOR_TEXT: Final = r"^(true|false|-?[0-9]+(\.[0-9]+)?(E-?[0-9]+)?)\z"  # as Spark writes one into a STRING
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
    "date": spark.StringType(),
    "timestamp": spark.StringType(),
    "base64": spark.StringType(),
    "decimal": spark.StringType(),
    "days": spark.IntegerType(),
    "millis": spark.LongType(),
}


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
    if as_read and column.kind == "tinyint":  # as a byte Spark takes 128 for -128
        return spark.ShortType()
    return _SCALARS[column.kind]


def decoded_json(
    text: Column, column: JsonColumn, options: JsonOptions, frame: Column | None = None, subject: str | None = None
) -> Column:
    """Return what a column of JSON holds; with an error column STRUCT<value, error>.

    Args:
        text: the JSON.
        column: what is read.
        options: those of the call.
        frame: of a row, if there is an error column: a struct of ``error``, why there is no text, and for an error with
            details ``schema``, the id of its schema. Where `error` is NULL, the result says why a text is not JSON of
            the columns.
        subject: of the call, for an error with details.
    """
    decoding = partial(_Decoding, column, options, subject)
    if frame is None:
        whole = decoding(text)
        if not whole.uses_text_again():
            return whole.decoded()
        return with_once(text, lambda message: decoding(message).decoded())
    # Since no function that Spark calls may have a UDF in it.
    row = F.struct(text.alias("text"), frame.alias("frame"))
    return with_once(row, lambda both: decoding(both["text"], both["frame"]).decoded())


def _read(text: Column, column: JsonColumn, options: Mapping[str, str], corrupt: str | None = None) -> Column:
    """Return what from_json reads, which reads a text, a number or a boolean only within something else."""
    kind = spark_type(column, as_read=True)
    if corrupt is not None and isinstance(kind, spark.StructType):
        kind = spark.StructType([*kind, spark.StructField(corrupt, spark.StringType())])
    if isinstance(kind, spark.StructType | spark.ArrayType | spark.MapType | spark.VariantType):
        return F.from_json(text, kind, dict(options))  # type: ignore[arg-type]  # takes a VARIANT too
    listed = F.from_json(F.concat(F.lit("["), text, F.lit("]")), spark.ArrayType(kind), dict(options))
    return with_once(listed, lambda items: _only(items, permissive=options["mode"] == "PERMISSIVE"))


def _only(items: Column, *, permissive: bool) -> Column:
    one = F.when(F.size(items) == 1, items.getItem(0))
    several = F.raise_error(F.lit(f"{_FAILED}: it is several (from_json_registry)."))
    return one if permissive else F.when(F.size(items) > 1, several).otherwise(one)


class _Decoding:
    """Decodes a text that is already evaluated.

    Whatever is used twice is bound by `with_once`, and nothing else is: each costs time.
    """

    def __init__(
        self, column: JsonColumn, options: JsonOptions, subject: str | None, text: Column, frame: Column | None = None
    ) -> None:
        self._column, self._options, self._text = column, options, text
        self._frame, self._subject = F.lit(None) if frame is None else frame, subject
        unused = (options.corrupt_record or _unused_name(column)) if column.kind == "struct" else None
        # Given in any case: else a property may have the name that Spark takes by default.
        self._for_spark = {**options.for_spark(), **({"columnNameOfCorruptRecord": unused} if unused else {})}
        self._corrupt = unused if options.corrupt_record or options.error_column else None
        # What is read of the text a second time, where a message may have a value of another type, or too large a one.
        self._typed, self._fractions = pruned(column, self._of_one_type), pruned(column, _fractional)

    def uses_text_again(self) -> bool:
        """Return whether anything but the first from_json looks at the text."""
        shown = self._corrupt is not None or self._options.error_column
        return shown or self._typed is not None or self._fractions is not None

    def decoded(self) -> Column:
        """Return the value, or STRUCT<value, error>."""
        read = _read(self._text, self._column, self._for_spark, self._corrupt)
        plain = not (self._column.checked() or self._options.error_column)
        return read if plain else with_once(read, self._of_row)

    def _of_row(self, row: Column) -> Column:
        twice, convert = any_twice(self._column), conversion(self._column, self._options)
        if twice is None:
            return self._checked(row, row, convert)
        fields = self._column.fields + (((self._corrupt, JsonColumn("string")),) if self._corrupt else ())
        last = last_entries(dataclasses.replace(self._column, fields=fields))
        assert last is not None  # noqa: S101 - there are maps
        read = F.when(twice(row), last(row)).otherwise(row)
        if convert is None and self._corrupt is None:
            return self._checked(row, read, None)
        return with_once(read, lambda row_read: self._checked(row, row_read, convert))

    def _checked(self, row: Column, read: Column, convert: Convert | None) -> Column:
        """Return what becomes of a row that was read, `read` without entries that a later one replaces."""
        faults = [fault for check in (self._mistaken, self._infinite) if (fault := check(row)) is not None]
        again = F.coalesce(*faults) if faults else None
        unread = first_found(self._column, self._unread)
        value = convert(read) if convert else read
        if self._corrupt and convert is None:
            value = struct_of(read, [(name, None) for name, _ in self._column.fields])
        if self._options.permissive and not (self._corrupt or self._options.error_column):
            return self._right(value, again)
        if unread is None and not self._options.permissive:
            return value if again is None else self._or_end(value, again)
        if again is None:
            again = F.lit(None).cast("string")
        parts = F.struct(value.alias("value"), again.alias("again"))
        return with_once(parts, lambda part: self._outcome(row, read, part, unread))

    def _right(self, value: Column, fault: Column | None) -> Column:
        """Return the value, with nothing in it if there is a fault that Spark has not seen."""
        if fault is None:
            return value
        nothing = F.lit(None).cast(spark_type(self._column))
        if self._column.kind == "struct":
            empty = [F.lit(None).cast(spark_type(inner)).alias(name) for name, inner in self._column.fields]
            nothing = F.struct(*empty)
        return F.when(fault.isNull(), value).otherwise(nothing)

    def _or_end(self, value: Column, fault: Column) -> Column:
        message = F.concat(F.lit(f"{_FAILED}: "), fault, F.lit(" (from_json_registry)."))
        return F.when(fault.isNotNull(), F.raise_error(message)).otherwise(value)

    def _outcome(self, row: Column, read: Column, parts: Column, unread: Callable[..., Column] | None) -> Column:
        """Return the value, or the error, of what was made of a row, and what is wrong with it."""
        value, again = parts.getField("value"), parts.getField("again")
        fault = again if unread is None else F.coalesce(again, unread(read, value))
        if not self._options.permissive:
            return self._or_end(value, fault)
        corrupt = self._no_json(row)
        if self._options.corrupt_record:
            fields = [F.when(again.isNull(), value.getField(name)).alias(name) for name, _ in self._column.fields]
            shown = F.when(corrupt | fault.isNotNull(), self._text).alias(self._options.corrupt_record)
            whole = F.when(row.isNotNull(), F.struct(*fields, shown))
        else:
            whole = self._right(value, again)
        if not self._options.error_column:
            return whole
        no_text = F.when(self._text.isNull(), F.lit("is not UTF-8"))
        why = fault_of(self._text, row, self._column, self._for_spark)
        bad = F.when(corrupt, F.coalesce(why, F.lit(NO_JSON)))
        if self._column.items is not None:  # of these Spark gives what it has read, and not that something is missing
            bad = bad.when(row.isNotNull(), why)
        error = F.coalesce(self._frame["error"], no_text, fault, bad)
        if self._options.error_details:
            error = with_once(error, self._details)
        return F.struct(whole.alias("value"), error.alias("error"))

    def _details(self, reason: Column) -> Column:
        code = F.nullif(F.regexp_extract(reason, r"^\[([A-Z0-9_]+)\] ", 1), F.lit(""))
        details = {
            "code": F.coalesce(code, F.lit(MALFORMED)),
            "reason": reason,
            "schema": self._frame["schema"],
            "subject": F.lit(self._subject).cast("string"),
        }
        return F.when(reason.isNotNull(), F.struct(*(value.alias(name) for name, value in details.items())))

    def _no_json(self, row: Column) -> Column:
        if self._corrupt:
            return row.getField(self._corrupt).isNotNull()
        return self._text.isNotNull() & row.isNull() & (F.trim(self._text) != "null")

    def _unread(self, column: JsonColumn, path: str) -> Callable[..., Column] | None:
        reason = reason_of(column, self._options)
        if reason is None:
            return None
        return lambda read, value: F.when(read.isNotNull() & value.isNull(), F.lit(f"{path} {reason}"))

    def _mistaken(self, row: Column) -> Column | None:
        """Return what is a text in place of a number, or the other way round, where Spark makes no difference.

        It is read again only if a message may have such values.
        """
        typed = self._typed
        if typed is None:
            return None
        suspect = first_found(typed, _number_for_text)
        may = self._text_for_number(_names(typed))
        if suspect is not None:
            may = may | suspect(row).isNotNull()
        fault = first_found(typed, _of_another_type)
        read = _read(self._text, typed, {**self._for_spark, "mode": "PERMISSIVE"})
        return F.when(may, with_once(read, fault)) if fault is not None else None

    def _text_for_number(self, names: set[str]) -> Column:
        """Return whether a message may have a text of digits for a number of these names."""
        if not names:
            return F.expr("false")
        options = self._options
        if options.allow_comments or options.allow_backslash:
            return self._text.rlike(_DIGITS)
        any_digits = self._text.rlike(_DIGITS + _BEGINS)
        if options.allow_unquoted or not all(map(_PLAIN_NAME.fullmatch, names)):
            return any_digits
        pattern = rf"""["'](?:{"|".join(map(re.escape, sorted(names)))})["']\s*:\s*["']"""
        return any_digits & (self._text.rlike(pattern) | F.contains(self._text, F.lit("\\u")))

    def _of_one_type(self, column: JsonColumn) -> JsonColumn | None:
        if column.kind == "decimal" and column.meaning == "number":
            return JsonColumn("variant", "number")
        patterned = self._options.pattern_of(column.meaning) is not None
        return JsonColumn("variant", "text") if patterned or column.meaning in ("base64", "decimal") else None

    def _infinite(self, row: Column) -> Column | None:
        """Return which number is too large for its type, and not the word Infinity: it is read again without words."""
        numbers = self._fractions
        if numbers is None:
            return None
        infinite = first_found(numbers, _too_large)
        options = {**self._for_spark, "mode": "PERMISSIVE", "allowNonNumericNumbers": "false"}
        read = _read(self._text, numbers, options)
        return F.when(infinite(row).isNotNull(), with_once(read, infinite)) if infinite is not None else None


def _of_another_type(column: JsonColumn, path: str) -> Callable[..., Column] | None:
    if column.kind != "variant":
        return None
    if column.meaning == "number":
        return lambda read: F.when(F.schema_of_variant(read) == "STRING", F.lit(f"{path} is a text, and no number"))
    kinds = ("STRING", "VOID")
    return lambda read: F.when(~F.schema_of_variant(read).isin(*kinds), F.lit(f"{path} is not text"))


def _number_for_text(column: JsonColumn, _: str) -> Callable[..., Column] | None:
    """Return what gives a text where Spark may have read a number; the comparisons, since the pattern takes long."""
    if column.meaning != "text":
        return None
    words = ("true", "false")
    return lambda read: F.when(((read < ":") | read.isin(*words)) & read.rlike(_NUMBER_FOR_TEXT), F.lit(""))


def _fractional(column: JsonColumn) -> JsonColumn | None:
    return column if column.kind in ("float", "double") else None


def _names(typed: JsonColumn, name: str = "") -> set[str]:
    """Return the names that stand before numbers; an empty one for the items of an array or a map, which have none."""
    if typed.items is not None:
        return _names(typed.items)
    if typed.kind == "struct":
        return {inner for name, field in typed.fields for inner in _names(field, name)}
    return {name} if typed.meaning == "number" else set()


def _too_large(column: JsonColumn, path: str) -> Callable[..., Column] | None:
    if column.kind not in ("float", "double"):
        return None
    return lambda read: F.when(F.abs(read) == float("inf"), F.lit(f"{path} is beyond the range of {column.kind}"))


def _unused_name(column: JsonColumn) -> str:
    names = {name.lower() for name, _ in column.fields}
    return next(name for number in count() if (name := f"_corrupt_record{number or ''}") not in names)
