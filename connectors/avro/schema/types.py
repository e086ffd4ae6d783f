"""The columns of an Avro schema, by Spark's ``SchemaConverters.toSqlType``, and the schema of a column.

The logical types time-micros, timestamp-nanos and local-timestamp-nanos are BIGINT on every Spark, as they are on 4.0:
also where Spark has written a TIME, since functions of Python can return only one of its precisions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.types as kinds
import pyspark.sql.types as spark

from connectors.avro.errors import AvroAnalysisError, AvroDataError
from connectors.avro.options import AvroOptions
from connectors.avro.schema.parser import NAME, NO_DEFAULT, AvroField, AvroType
from connectors.core.functions.columns import MAX_COLUMNS

_WHERE: Final = "from_avro"
_ATOMS: Final[Mapping[str, type[spark.DataType]]] = {
    "null": spark.NullType,
    "boolean": spark.BooleanType,
    "int": spark.IntegerType,
    "long": spark.LongType,
    "float": spark.FloatType,
    "double": spark.DoubleType,
    "bytes": spark.BinaryType,
    "string": spark.StringType,
    "enum": spark.StringType,
    "fixed": spark.BinaryType,
}
_LOGICAL: Final[Mapping[str, type[spark.DataType]]] = {
    "date": spark.DateType,
    "timestamp-millis": spark.TimestampType,
    "timestamp-micros": spark.TimestampType,
    "local-timestamp-millis": spark.TimestampNTZType,
    "local-timestamp-micros": spark.TimestampNTZType,
}
_ARROW: Final[Mapping[type[spark.DataType], pa.DataType]] = {
    spark.NullType: pa.null(),
    spark.BooleanType: pa.bool_(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.BinaryType: pa.binary(),
    spark.StringType: pa.string(),
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", tz="UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.DayTimeIntervalType: pa.duration("us"),
}
_NULL: Final = AvroType("null")
_WRITTEN: Final = {
    "bool": AvroType("boolean"),
    "int8": AvroType("int"),
    "int16": AvroType("int"),
    "int32": AvroType("int"),
    "int64": AvroType("long"),
    "float": AvroType("float"),
    "double": AvroType("double"),
    "string": AvroType("string"),
    "large_string": AvroType("string"),
    "binary": AvroType("bytes"),
    "large_binary": AvroType("bytes"),
    "null": _NULL,
    "date32[day]": AvroType("int", logical="date"),
    "duration[us]": AvroType("long"),
    "time64[ns]": AvroType("long", logical="time-micros"),
}
_UNITS: Final = ("day", "hour", "minute", "second")
_DAY_TIME: Final = re.compile(r"interval (day|hour|minute|second)(?: to (hour|minute|second))?")
_TIME: Final = re.compile(r"time(\(\d\))?")
_MAX_PRECISION: Final = 38
_MOST_OF_SINGLE: Final = 3  # branches of a union that is one value: null, and int and long, say
_MOST_LEVELS: Final = 150  # of records in records, as many as in a message

Typed = tuple[spark.DataType, bool]
"""A type, and whether it is nullable."""


def non_null(union: AvroType) -> list[AvroType]:
    return [branch for branch in union.branches if branch.kind != "null"]


def is_single(union: AvroType) -> bool:
    """Return whether a union is one value in Spark, not a struct of members."""
    if len(union.branches) > _MOST_OF_SINGLE:
        return False  # a union may have any number, and is asked for each of them
    names = sorted(branch.kind for branch in non_null(union))
    return len(names) == 1 or names in (["int", "long"], ["double", "float"])


def items_of(schema: AvroType) -> AvroType:
    assert schema.items is not None  # noqa: S101 - of an array or a map
    return schema.items


def member_name(branch: AvroType, place: int, options: AvroOptions) -> str:
    """Return the name of the field that a branch of a union becomes; the place is that without null."""
    return f"{options.stable_prefix}{branch.short_name}" if options.stable_identifiers else f"member{place}"


def spark_type(schema: AvroType, options: AvroOptions) -> spark.DataType:
    """Return the type of the column; raises AvroAnalysisError for a schema that has none."""
    try:
        typed = _Columns(options).typed(schema, {})
    except RecursionError:
        raise too_deep() from None
    if typed is None:
        raise _recursive(schema.name)
    return typed[0]


class _Columns:
    def __init__(self, options: AvroOptions) -> None:
        self._options = options
        self._count = 0
        self._recursive = False

    def typed(self, schema: AvroType, seen: Mapping[str, int]) -> Typed | None:
        """Return None for what is dropped, because it is nested too deeply in itself; `seen` counts the records."""
        if schema.kind == "record":
            return self._record(schema, seen)
        if schema.kind == "union":
            return self._union(schema, seen)
        if schema.items is not None:
            inner = self.typed(schema.items, seen)
            if inner is None:
                return None
            kind, nullable = inner
            nullable = nullable or self._options.permissive
            made = spark.ArrayType(kind, nullable) if schema.kind == "array" else None
            return made or spark.MapType(spark.StringType(), kind, nullable), False
        return _scalar(schema), schema.kind == "null"

    def _record(self, schema: AvroType, seen: Mapping[str, int]) -> Typed | None:
        depth = seen.get(schema.name, 0)
        if depth > 0 and self._options.recursive_field_max_depth <= 0:
            raise _recursive(schema.name)
        if depth > 0 and depth >= self._options.recursive_field_max_depth:
            return None
        if sum(seen.values()) >= _MOST_LEVELS:
            raise too_deep()
        self._recursive |= depth > 0
        self._add(len(schema.fields))
        inside = {**seen, schema.name: depth + 1}
        fields, names = [], set[str]()
        for field in schema.fields:
            key = field.name if self._options.case_sensitive else field.name.lower()
            if key in names:
                what = f"The record {schema.name} has several fields named {field.name!r}, apart from case"
                raise AvroAnalysisError("AVRO_FIELD_AMBIGUOUS", what, _WHERE)
            names.add(key)
            typed = self.typed(field.type, inside)
            if typed is not None:
                fields.append(spark.StructField(field.name, typed[0], typed[1] or self._options.permissive))
        return spark.StructType(fields), False

    def _union(self, schema: AvroType, seen: Mapping[str, int]) -> Typed | None:
        branches = non_null(schema)
        nullable = len(branches) < len(schema.branches)
        if len(branches) == 1:
            inner = self.typed(branches[0], seen)
            return None if inner is None else (inner[0], inner[1] or nullable)
        if is_single(schema):
            return spark.LongType() if branches[0].kind in {"int", "long"} else spark.DoubleType(), nullable
        self._add(len(branches))
        fields, names = [], set[str]()
        for place, branch in enumerate(branches):
            typed = self.typed(branch, seen)
            if typed is None:
                continue
            name = member_name(branch, place, self._options)
            if name.lower() in names:
                what = f"Two types of a union would have the stable identifier {name!r}, apart from case"
                raise AvroAnalysisError("AVRO_FIELD_AMBIGUOUS", what, "enableStableIdentifiersForUnionType")
            names.add(name.lower())
            fields.append(spark.StructField(name, typed[0], nullable=True))
        return spark.StructType(fields), nullable

    def _add(self, count: int) -> None:
        self._count += count
        if self._count > MAX_COLUMNS:
            depth = self._options.recursive_field_max_depth
            action = f"Lower recursiveFieldMaxDepth, which is {depth}." if self._recursive else ""
            raise too_many_columns("The Avro schema", action)


def _scalar(schema: AvroType) -> spark.DataType:
    if schema.logical == "decimal":
        if schema.precision > _MAX_PRECISION:
            raise _unsupported(f"a decimal of {schema.precision} digits, and Spark's have at most {_MAX_PRECISION}")
        return spark.DecimalType(schema.precision, schema.scale)
    if schema.catalyst and not (schema.logical == "time-micros" and _TIME.fullmatch(schema.catalyst.lower())):
        interval = _DAY_TIME.fullmatch(schema.catalyst.lower())
        if interval is None or schema.kind != "long":
            raise _unsupported(f"{schema.kind} with {schema.catalyst!r}, a type of Spark's that Python does not have")
        first, last = interval.groups()
        return spark.DayTimeIntervalType(_UNITS.index(first), _UNITS.index(last or first))
    return _LOGICAL.get(schema.logical, _ATOMS[schema.kind])()


def _recursive(name: str) -> AvroAnalysisError:
    what = f"The Avro schema is recursive: the record {name} contains itself"
    return AvroAnalysisError("RECURSIVE_AVRO_SCHEMA", what, _WHERE)


def too_many_columns(subject: str, action: str = "") -> AvroAnalysisError:
    """Return the error for a schema that expands without bounds: each record may hold several of the next one."""
    what = f"{subject} has more than {MAX_COLUMNS} columns, counting those of its records"
    return AvroAnalysisError("AVRO_TOO_MANY_COLUMNS", what, _WHERE, action)


def too_deep() -> AvroAnalysisError:
    what = "The Avro schema has records nested too many levels deep"
    return AvroAnalysisError("AVRO_TOO_DEEP", what, _WHERE)


def _unsupported(what: str) -> AvroAnalysisError:
    return AvroAnalysisError("AVRO_TYPE_NOT_SUPPORTED", f"The Avro schema has {what}", _WHERE)


def arrow_type(kind: spark.DataType) -> pa.DataType:
    if isinstance(kind, spark.StructType):
        return pa.struct([pa.field(field.name, arrow_type(field.dataType), field.nullable) for field in kind])
    if isinstance(kind, spark.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, spark.MapType):
        value = pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull)
        return pa.map_(pa.field("key", pa.string(), nullable=False), value)
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return _ARROW[type(kind)]


def avro_type(kind: pa.DataType, *, nullable: bool, name: str = "topLevelRecord", namespace: str = "") -> AvroType:
    """Return the schema that a column is written by where none is given: Spark's ``SchemaConverters.toAvroType``.

    Records have the name, or those of the columns that they are in.
    """
    made = _plain_type(kind, name, namespace)
    return AvroType("union", branches=(made, _NULL)) if nullable and made.kind != "null" else made


def _plain_type(kind: pa.DataType, name: str, namespace: str) -> AvroType:
    full = f"{namespace}.{name}" if namespace else name
    if kinds.is_struct(kind):
        wrong = next((part.name for part in kind if not NAME.fullmatch(part.name)), None)
        if wrong is not None:
            what = f"A column has the name {wrong!r}, which is not a valid Avro field name"
            raise AvroDataError("AVRO_SCHEMA_INCOMPATIBLE", what, "to_avro", "Rename the column.")
        fields = []
        for part in kind:
            inner = avro_type(part.type, nullable=part.nullable, name=part.name, namespace=full)
            fields.append(AvroField(part.name, inner, NO_DEFAULT, ()))
        return AvroType("record", full, fields=fields)
    if kinds.is_map(kind):
        nullable = kind.item_field.nullable
        return AvroType("map", items=avro_type(kind.item_type, nullable=nullable, name=name, namespace=namespace))
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        nullable = kind.value_field.nullable
        return AvroType("array", items=avro_type(kind.value_type, nullable=nullable, name=name, namespace=namespace))
    if kinds.is_decimal(kind):
        size = next(size for size in range(1, 17) if 2 ** (8 * size - 1) >= 10**kind.precision)
        decimal = {"logical": "decimal", "precision": kind.precision, "scale": kind.scale}
        return AvroType("fixed", f"{full}.fixed", size=size, **decimal)
    if kinds.is_timestamp(kind):
        return AvroType("long", logical="timestamp-micros" if kind.tz else "local-timestamp-micros")
    if str(kind) not in _WRITTEN:
        raise AvroDataError("AVRO_TYPE_NOT_SUPPORTED", f"The column has the type {kind}", "to_avro")
    return _WRITTEN[str(kind)]
