"""The plan tree: compiled once from a descriptor and the options, it drives the schema and both codecs.

The rules are those of Spark's ``utils/SchemaConverters.scala`` (types, recursion, what is dropped) and
``ProtobufDeserializer.scala`` (what is emitted when a field is absent).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connectors.protobuf.errors import analysis_error, too_many_columns
from connectors.protobuf.options import MAX_DEPTH, ProtobufOptions
from connectors.protobuf.schema.descriptors import EnumPlan, FieldType, MessageType, Schema, enum_plan

__all__ = [
    "DUMMY_FIELD",
    "FieldPlan",
    "Kind",
    "MessagePlan",
    "Shape",
    "compile_plan",
    "select_fields",
]

DUMMY_FIELD: Final = "__dummy_field_in_empty_struct"
"""The column that stands for a message without fields."""

F: Final = FieldDescriptor
MAX_COLUMNS: Final = 50_000
"""Of a message with those in it. Spark needs more than half a minute for the first batch of so many."""
UINT64: Final = pa.decimal128(20, 0)

_INT32S: Final = {F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32, F.TYPE_UINT32, F.TYPE_FIXED32}
_INT64S: Final = {F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64, F.TYPE_UINT64, F.TYPE_FIXED64}
_SCALARS: Final[dict[int, tuple[DataType, pa.DataType]]] = {
    **dict.fromkeys(_INT32S, (IntegerType(), pa.int32())),
    **dict.fromkeys(_INT64S, (LongType(), pa.int64())),
    F.TYPE_BOOL: (BooleanType(), pa.bool_()),
    F.TYPE_FLOAT: (FloatType(), pa.float32()),
    F.TYPE_DOUBLE: (DoubleType(), pa.float64()),
    F.TYPE_STRING: (StringType(), pa.string()),
    F.TYPE_BYTES: (BinaryType(), pa.binary()),
}
_UPCAST: Final[dict[int, tuple[DataType, pa.DataType]]] = {
    F.TYPE_UINT32: (LongType(), pa.int64()),
    F.TYPE_UINT64: (DecimalType(20, 0), UINT64),
}
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Int32", "UInt32", "Int64", "UInt64", "String", "Bytes", "Float", "Double")
)


class Kind(StrEnum):
    """What a value is."""

    SCALAR = "scalar"
    ENUM = "enum"
    MESSAGE = "message"
    EMPTY = "empty"
    TIMESTAMP = "timestamp"
    DURATION = "duration"
    WRAPPER = "wrapper"
    ANY_JSON = "any_json"
    DROPPED = "dropped"


class Shape(StrEnum):
    """How many values a field has."""

    SINGULAR = "singular"
    REPEATED = "repeated"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One column.

    Attributes:
        name: of the column, which is the field's.
        number: on the wire.
        proto_type: ``FieldDescriptor.TYPE_...``.
        kind: what each value is.
        shape: how many values there are.
        presence: whether absent and zero differ.
        required: whether a message without it is refused.
        emit_zero: whether it is zero, not NULL, when it is absent.
        default: what it is when it is absent, where proto2 declares that; else None.
        packed: whether it is written packed.
        lenient: whether a string may be other than UTF-8.
        oneof: the number of the oneof it is a member of; None for none.
        children: the fields of a message; key and value of a map; the value of a wrapper; seconds and nanos.
        dropped: of a message, the fields that `MessagePlan.dropped` describes.
        enum: the enum, for kind ENUM.
        message: the full name of the message type, where there is one.
        value_spark: the Spark type of one value.
        value_arrow: the Arrow type of one value.
    """

    name: str
    number: int
    proto_type: int
    kind: Kind
    shape: Shape
    presence: bool
    required: bool
    emit_zero: bool
    default: Any
    packed: bool
    lenient: bool
    oneof: int | None
    children: tuple[FieldPlan, ...]
    dropped: tuple[FieldPlan, ...]
    enum: EnumPlan | None
    message: str
    value_spark: DataType
    value_arrow: pa.DataType

    @property
    def spark_type(self) -> DataType:
        """The Spark type of the column."""
        if self.shape is Shape.REPEATED:
            return ArrayType(self.value_spark, containsNull=False)
        return self.value_spark

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the column, as Spark translates `spark_type`."""
        if self.shape is Shape.REPEATED:
            return pa.list_(pa.field("element", self.value_arrow, nullable=False))
        return self.value_arrow

    @property
    def nullable(self) -> bool:
        """Whether the column may be NULL."""
        return not (self.required and self.shape is Shape.SINGULAR)


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """The whole tree.

    Attributes:
        name: the full name of the message.
        fields: its columns; none for an empty message that is retained as a dummy column.
        dropped: fields without a column that still decide about others or about the row: members of a oneof, and
            required messages.
        complete: whether each field of each message in it is a column.
        dummy: whether it is an empty message with a dummy column.
    """

    name: str
    fields: tuple[FieldPlan, ...]
    dropped: tuple[FieldPlan, ...]
    complete: bool
    dummy: bool

    @property
    def spark_type(self) -> StructType:
        """The schema of what `from_protobuf` returns."""
        return _struct(self.fields, dummy=self.dummy)[0]

    @property
    def arrow_type(self) -> pa.StructType:
        """The same in Arrow."""
        return _struct(self.fields, dummy=self.dummy)[1]


def compile_plan(root: MessageType, schema: Schema, options: ProtobufOptions) -> MessagePlan:
    """Compile the plan of a message.

    Args:
        root: the message, of the schema's pool.
        schema: the descriptor set.
        options: the options of the call.

    Raises:
        ProtobufAnalysisError: RECURSIVE_PROTOBUF_SCHEMA, PROTOBUF_FIELD_MISSING for names that differ in case only,
            PROTOBUF_TYPE_NOT_SUPPORT, or PROTOBUF_TOO_MANY_COLUMNS.
    """
    compiler = _Compiler(schema, options)
    fields, dropped = compiler.fields(root, {root.full_name: 1}, "top-level record")
    return MessagePlan(
        root.full_name, fields, dropped, compiler.complete, dummy=not fields and options.retain_empty_message_types
    )


def select_fields(plan: MessagePlan, names: Iterable[str]) -> MessagePlan:
    """The plan with only some of its top-level columns, in the order given.

    Raises:
        ProtobufAnalysisError: PROTOBUF_FIELD_MISSING for a name that the message has not.
    """
    by_name = {field.name: field for field in plan.fields}
    chosen = []
    for name in dict.fromkeys(names):
        if name not in by_name:
            raise analysis_error(
                "PROTOBUF_FIELD_MISSING",
                field=name,
                protobufSchema=plan.name,
                matchSize=0,
                matches="[]",
                where="fields",
                action=f"The fields are: {', '.join(by_name)}.",
            )
        chosen.append(by_name[name])
    return replace(plan, fields=tuple(chosen), dummy=False)


def _struct(fields: Iterable[FieldPlan], *, dummy: bool) -> tuple[StructType, pa.StructType]:
    if dummy:
        return StructType([StructField(DUMMY_FIELD, StringType())]), pa.struct([pa.field(DUMMY_FIELD, pa.string())])
    kept = tuple(fields)
    spark = StructType([StructField(each.name, each.spark_type, each.nullable) for each in kept])
    return spark, pa.struct([pa.field(each.name, each.arrow_type, nullable=each.nullable) for each in kept])


def _is_time(message: MessageType, name: str) -> bool:
    """Whether Spark takes it for a Timestamp or Duration: by its short name and its fields, in any package."""
    if message.name != name or [field.name for field in message.fields] != ["seconds", "nanos"]:
        return False
    seconds, nanos = message.fields
    return seconds.type in _INT64S and nanos.type in _INT32S and not (seconds.is_repeated or nanos.is_repeated)


class _Compiler:
    def __init__(self, schema: Schema, options: ProtobufOptions) -> None:
        self._schema = schema
        self._options = options
        self.complete = True
        self._columns = 0
        self._recursive = False
        self._enums: dict[tuple[str, bool], EnumPlan] = {}

    def fields(
        self, message: MessageType, depths: dict[str, int], path: str
    ) -> tuple[tuple[FieldPlan, ...], tuple[FieldPlan, ...]]:
        """The columns of a message, and what it drops. ``depths`` counts each message on the way down to it."""
        declared: list[FieldType] = list(message.fields)
        if self._options.extensions:
            declared += self._schema.extensions(message.full_name)
        self._columns += len(declared)
        if self._columns > MAX_COLUMNS:
            depth = self._options.recursive_fields_max_depth if self._recursive else None
            raise too_many_columns(next(iter(depths)), MAX_COLUMNS, depth)
        plans = [self._field(field, depths) for field in declared]
        kept = tuple(plan for plan in plans if plan is not None)
        self._check_names([plan.name for plan in kept], [field.name for field in declared], path)
        self.complete &= len(kept) == len(plans)
        gone = [field for field, plan in zip(declared, plans, strict=True) if plan is None]
        dropped = [self._plan(field, Kind.DROPPED, StructType(), pa.struct([])) for field in gone]
        return kept, tuple(plan for plan in dropped if plan.required or plan.oneof is not None)

    def _check_names(self, kept: list[str], declared: list[str], path: str) -> None:
        groups: dict[str, list[str]] = {}
        for name in declared:
            groups.setdefault(name if self._options.case_sensitive else name.lower(), []).append(name)
        for name in kept:
            same = groups[name if self._options.case_sensitive else name.lower()]
            if len(same) > 1:
                raise analysis_error(
                    "PROTOBUF_FIELD_MISSING",
                    field=name,
                    protobufSchema=path,
                    matchSize=len(same),
                    matches=f"[{', '.join(same)}]",
                    action="Set spark.sql.caseSensitive to true if the names differ in case only.",
                )

    def _field(self, field: FieldType, depths: dict[str, int]) -> FieldPlan | None:  # noqa: PLR0911 - one for each kind
        message = field.message_type
        if message is None:
            return self._scalar(field)
        if _is_time(message, "Duration"):
            return self._time(field, Kind.DURATION, DayTimeIntervalType(), pa.duration("us"))
        if _is_time(message, "Timestamp"):
            return self._time(field, Kind.TIMESTAMP, TimestampType(), pa.timestamp("us", tz="UTC"))
        if self._options.convert_any_fields_to_json and message.full_name == "google.protobuf.Any":
            return self._plan(field, Kind.ANY_JSON, StringType(), pa.string())
        if self._options.unwrap_primitive_wrapper_types and message.full_name in _WRAPPERS:
            value = self._scalar(message.fields[0])
            if field.is_repeated or field.is_required or field.containing_type.GetOptions().map_entry:
                value = replace(value, emit_zero=True)  # where the column has no place for NULL
            return self._plan(field, Kind.WRAPPER, value.value_spark, value.value_arrow, (value,))
        if field.is_repeated and message.GetOptions().map_entry:
            return self._map(field, depths)
        return self._message(field, depths)

    def _scalar(self, field: FieldType) -> FieldPlan:
        if field.type == F.TYPE_ENUM:
            spark, arrow = (IntegerType(), pa.int32()) if self._options.enums_as_ints else (StringType(), pa.string())
            return self._plan(field, Kind.ENUM, spark, arrow)
        if self._options.upcast_unsigned_ints and field.type in _UPCAST:
            return self._plan(field, Kind.SCALAR, *_UPCAST[field.type])
        if field.type not in _SCALARS:
            raise analysis_error("PROTOBUF_TYPE_NOT_SUPPORT", protobufType=field.type, where=field.full_name)
        return self._plan(field, Kind.SCALAR, *_SCALARS[field.type])

    def _time(self, field: FieldType, kind: Kind, spark: DataType, arrow: pa.DataType) -> FieldPlan:
        parts = tuple(self._scalar(each) for each in field.message_type.fields)
        return self._plan(field, kind, spark, arrow, parts)

    def _map(self, field: FieldType, depths: dict[str, int]) -> FieldPlan | None:
        entry = field.message_type.fields_by_name
        key, value = self._field(entry["key"], depths), self._field(entry["value"], depths)
        if key is None or value is None:
            return None
        spark = MapType(key.spark_type, value.spark_type, valueContainsNull=False)
        arrow = pa.map_(key.arrow_type, pa.field("value", value.arrow_type, nullable=False))
        return self._plan(field, Kind.MESSAGE, spark, arrow, (key, value), shape=Shape.MAP)

    def _message(self, field: FieldType, depths: dict[str, int]) -> FieldPlan | None:
        message = field.message_type
        depth, limit = depths.get(message.full_name, 0), self._options.recursive_fields_max_depth
        if depth and not 0 < limit <= MAX_DEPTH:
            raise analysis_error("RECURSIVE_PROTOBUF_SCHEMA", fieldDescriptor=field.full_name)
        self._recursive |= depth > 0
        if depth and depth >= limit:
            return None
        inner, gone = self.fields(message, {**depths, message.full_name: depth + 1}, f"field '{field.full_name}'")
        if inner:
            return self._plan(field, Kind.MESSAGE, *_struct(inner, dummy=False), inner, dropped=gone)
        if self._options.retain_empty_message_types:
            return self._plan(field, Kind.EMPTY, *_struct((), dummy=True))
        return None

    def _plan(
        self,
        field: FieldType,
        kind: Kind,
        spark: DataType,
        arrow: pa.DataType,
        children: tuple[FieldPlan, ...] = (),
        *,
        shape: Shape | None = None,
        dropped: tuple[FieldPlan, ...] = (),
    ) -> FieldPlan:
        repeated = bool(field.is_repeated)
        presence = bool(field.has_presence)
        declared = not repeated and field.message_type is None and field.has_default_value
        oneof = field.containing_oneof
        return FieldPlan(
            name=field.name,
            number=field.number,
            proto_type=field.type,
            kind=kind,
            shape=shape or (Shape.REPEATED if repeated else Shape.SINGULAR),
            presence=presence,
            required=bool(field.is_required),
            emit_zero=self._options.emit_default_values and not presence and not repeated,
            default=field.default_value if declared and presence else None,
            packed=repeated and bool(field.is_packed),
            lenient=field.type == F.TYPE_STRING and self._schema.lenient(field),
            oneof=oneof.index if oneof is not None and len(oneof.fields) > 1 else None,
            children=children,
            dropped=dropped,
            enum=self._enum(field) if field.type == F.TYPE_ENUM else None,
            message=field.message_type.full_name if field.message_type is not None else "",
            value_spark=spark,
            value_arrow=arrow,
        )

    def _enum(self, field: FieldType) -> EnumPlan:
        closed = self._schema.closed(field)
        key = field.enum_type.full_name, closed
        if key not in self._enums:
            self._enums[key] = enum_plan(field.enum_type, closed=closed)
        return self._enums[key]
