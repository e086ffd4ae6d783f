"""What becomes of a value that Spark's ``from_json`` has read: the value of its column, or NULL where it isn't one.

All of it are Spark's expressions. None depends on the day, on the session's time zone, or on how many texts Spark takes
for a date.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql import types as spark

from connectors.json.options import JsonOptions
from connectors.json.schema.columns import JsonColumn

Convert = Callable[[Column], Column]
Find = Callable[[JsonColumn, str], Callable[..., Column] | None]
"""Gives for a column, and its path, what finds a fault in its values; None for those in which there is none."""
_HALF: Final = 16  # hexadecimal digits of 64 bits
_DAYS: Final = (-719_162, 2_932_896)  # from 0001-01-01 to 9999-12-31, the dates of Spark, since 1970
_DAY_MICROS: Final = 86_400_000_000
_MICROS: Final = (_DAYS[0] * _DAY_MICROS, (_DAYS[1] + 1) * _DAY_MICROS - 1)
_RFC_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_RFC_TIME: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})\z"
_FIRST_YEAR: Final = "0001"
_WITHIN: Final = ("0001-01-02", "9999-12-31")  # before and after these an offset may lead out of the years of Spark
_PATH_BYTES: Final = 800  # of the 1,000 that an error may have
_REASONS: Final = {
    "date": "is not a date of RFC 3339 in the years 1 to 9999",
    "timestamp": "is not a date-time of RFC 3339 in the years 1 to 9999",
    "base64": "is not base64",
    "days": "is not a number of days to a date in the years 1 to 9999",
    "millis": "is not a number of milliseconds to a time in the years 1 to 9999",
    "decimal": "is not base64 of a decimal",
}


def with_once(value: Column, body: Convert) -> Column:
    """Return an expression of a value that is evaluated once, however often the expression has it.

    Elsewhere Spark would parse a message again for each column of it. The value is the start of an aggregate over
    nothing: a transform of an array of one would copy each row that is made.
    """

    def of_one(value: Column) -> Column:  # Spark looks at the parameters; `body` may have any number
        return body(value)

    return F.aggregate(F.array(), value, lambda bound, _: bound, of_one)


def first_found(column: JsonColumn, find: Find, path: str = "") -> Callable[..., Column] | None:
    """Return what gives the first text that is found in a value, or in two of the same form; None if there can be none.

    Args:
        column: the column of the value.
        find: gives for a column what finds something in a value of it.
        path: where the column is.
    """
    fault = find(column, path.removeprefix(".").encode()[:_PATH_BYTES].decode(errors="ignore") or "it")
    if fault is not None:
        return fault
    if column.items is not None:
        inner = first_found(column.items, find, f"{path}[]")
        return None if inner is None else _in_list(inner, is_map=column.kind == "map")
    fields = [(name, first_found(field, find, f"{path}.{name}")) for name, field in column.fields]
    parts = [(name, part) for name, part in fields if part is not None]
    if not parts:
        return None
    return lambda *values: F.coalesce(*(part(*(value.getField(name) for value in values)) for name, part in parts))


def _in_list(inner: Callable[..., Column], *, is_map: bool) -> Callable[..., Column]:
    def of_one(item: Column) -> Column:
        return inner(item)

    def of_two(one: Column, other: Column) -> Column:
        return inner(one, other)

    def first(*values: Column) -> Column:
        lists = [F.map_values(value) for value in values] if is_map else values
        texts = F.transform(lists[0], of_one) if len(lists) == 1 else F.zip_with(lists[0], lists[1], of_two)
        return F.get(F.filter(texts, lambda text: text.isNotNull()), F.lit(0))

    return first


def pruned(column: JsonColumn, leaf: Callable[[JsonColumn], JsonColumn | None]) -> JsonColumn | None:
    """Return the column with what is made of its innermost ones; None if nothing is left."""
    if column.items is not None:
        items = pruned(column.items, leaf)
        return None if items is None else JsonColumn(column.kind, items=items)
    if column.kind != "struct":
        return leaf(column)
    every = [(name, pruned(inner, leaf)) for name, inner in column.fields]
    fields = tuple((name, inner) for name, inner in every if inner is not None)
    return JsonColumn("struct", fields=fields) if fields else None


def last_entries(column: JsonColumn) -> Convert | None:
    """Return what leaves, of the entries of maps that have the same key, the last one; None if there are no maps."""
    if column.items is not None:
        inner = last_entries(column.items)
        if column.kind == "array":
            return None if inner is None else lambda read: F.transform(read, inner)
        if inner is None:
            return _last_entries
        return lambda read: F.transform_values(_last_entries(read), lambda _, value: inner(value))
    parts = [(name, last_entries(field)) for name, field in column.fields]
    if all(part is None for _, part in parts):
        return None
    return lambda row: struct_of(row, parts)


def _last_entries(entries: Column) -> Column:
    """Return a map without the entries that a later one with the same key replaces; by sorting, if there are any."""
    keys, values = F.map_keys(entries), F.map_values(entries)
    places = F.sort_array(F.transform(keys, lambda key, place: F.struct(key.alias("key"), place.alias("place"))))

    def last(ordered: Column) -> Column:
        def is_last(entry: Column, index: Column) -> Column:
            following = F.get(ordered, index + 1)
            return following.isNull() | (following.getField("key") != entry.getField("key"))

        return F.sort_array(F.transform(F.filter(ordered, is_last), lambda entry: entry.getField("place")))

    def chosen(retained: Column) -> Column:
        return F.map_from_arrays(
            F.transform(retained, lambda place: F.get(keys, place)),
            F.transform(retained, lambda place: F.get(values, place)),
        )

    return F.when(_twice(entries), with_once(with_once(places, last), chosen)).otherwise(entries)


def any_twice(column: JsonColumn) -> Convert | None:
    """Return what says whether any map in a value has a key twice; None if there are no maps."""
    if column.items is not None:
        inner = any_twice(column.items)
        if column.kind == "array":
            return None if inner is None else lambda read: F.exists(read, inner)
        if inner is None:
            return _twice
        return lambda read: _twice(read) | F.exists(F.map_values(read), inner)
    parts = [(name, twice) for name, field in column.fields if (twice := any_twice(field)) is not None]
    if not parts:
        return None
    return lambda row: reduce(Column.__or__, (twice(row.getField(name)) for name, twice in parts))


def _twice(entries: Column) -> Column:
    """Return whether two keys have the same hash, which Spark finds faster than the same key."""
    hashes = F.transform(F.map_keys(entries), lambda key: F.xxhash64(key))  # noqa: PLW0108 - Spark looks at the parameters
    return F.size(F.array_distinct(hashes)) < F.size(hashes)


def struct_of(row: Column, parts: list[tuple[str, Convert | None]]) -> Column:
    """Return a struct of fields, each with what makes its value, if anything does."""
    fields = [(name, row.getField(name), convert) for name, convert in parts]
    struct = F.struct(*((field if convert is None else convert(field)).alias(name) for name, field, convert in fields))
    return F.when(row.isNotNull(), struct)


def conversion(column: JsonColumn, options: JsonOptions) -> Convert | None:
    """Return what makes a value of what from_json reads, or NULL; None where it is that already."""
    if column.items is not None:
        convert = conversion(column.items, options)
        if convert is None:
            return None
        if column.kind == "array":
            return lambda read: F.transform(read, convert)
        return lambda read: F.transform_values(read, lambda _, value: convert(value))
    if column.kind != "struct":
        return _scalar(column, options)
    parts = [(name, conversion(inner, options)) for name, inner in column.fields]
    if all(part is None for _, part in parts):
        return None
    return lambda row: struct_of(row, parts)


def reason_of(column: JsonColumn, options: JsonOptions) -> str | None:
    """Return why a conversion gives NULL for a value; None if it does not."""
    if column.kind == "tinyint":
        return "is beyond the range of int8"
    if options.pattern_of(column.meaning) is not None:
        return f"is not a {column.meaning} of the option {column.meaning}Format in the years 1 to 9999"
    reason = _REASONS.get(column.meaning)
    digits = f" of {column.precision} digits, {column.scale} of them after the point"
    return reason and reason + (digits if column.meaning == "decimal" else "")


def _scalar(column: JsonColumn, options: JsonOptions) -> Convert | None:
    if column.kind == "tinyint":
        return lambda read: F.when(read.between(-128, 127), read.cast("tinyint"))
    pattern = options.pattern_of(column.meaning)
    if pattern is not None:
        return lambda text: _by_pattern(text, column.kind, pattern)
    millis = [micros // 1000 for micros in _MICROS]
    by_meaning: dict[str, Convert] = {
        "date": lambda text: F.when(text.rlike(_RFC_DATE) & (text >= _FIRST_YEAR), text.try_cast(spark.DateType())),
        "timestamp": _time,
        "base64": _bytes,
        "days": lambda read: F.when(read.between(*_DAYS), F.date_from_unix_date(read)),
        "millis": lambda read: F.when(read.between(*millis), F.timestamp_millis(read)),
        "decimal": lambda text: with_once(F.hex(_bytes(text)), lambda digits: _decimal(digits, column)),
    }
    return by_meaning.get(column.meaning)


def _bytes(text: Column) -> Column:
    """Return the bytes of a text in base64; NULL for one with white space or without its padding, which Spark takes."""
    padding = F.endswith(text, F.lit("=")).cast("int") + F.endswith(text, F.lit("==")).cast("int")
    size = F.length(text) * 3 - padding * 4
    return with_once(
        F.try_to_binary(text, F.lit("base64")), lambda read: F.when(F.octet_length(read) * 4 == size, read)
    )


def _in_range(value: Column, kind: str) -> Column:
    if kind == "date":
        return F.unix_date(value).between(*_DAYS)
    return F.unix_micros(value).between(*_MICROS)


def _time(text: Column) -> Column:
    time = F.upper(text).try_cast(spark.TimestampType())
    within = text.between(*_WITHIN) | ((text >= _FIRST_YEAR) & _in_range(time, "timestamp"))
    return F.when(text.rlike(_RFC_TIME) & within, time)


def _by_pattern(text: Column, kind: str, options: dict[str, str]) -> Column:
    """Return what Spark reads by the user's pattern, which has no say in what else is a date."""
    items = spark.ArrayType(spark.DateType() if kind == "date" else spark.TimestampType())
    read = F.get(F.from_json(F.to_json(F.array(text)), items, options), F.lit(0))
    return with_once(F.when(text.isNotNull(), read), lambda value: F.when(_in_range(value, kind), value))


def _decimal(digits: Column, column: JsonColumn) -> Column:
    """Return the decimal of an unscaled number in two's complement, in hexadecimal; NULL if it has too many digits."""
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
