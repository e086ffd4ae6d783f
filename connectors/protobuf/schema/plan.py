"""The plan: the fields of a message as a tree, with the column of each, which all codecs follow.

`compile_plan` makes it for `from_protobuf`; `encode_plan` for `to_protobuf`, by the type of a struct too. The rules are
those of Spark's ``utils/SchemaConverters.scala`` (types, recursion, what is dropped) and
``ProtobufDeserializer.scala`` (the value of an absent field).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds
from google.protobuf.descriptor import FieldDescriptor
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from connectors.core.functions.columns import MAX_COLUMNS
from connectors.core.processes.spark import spark_type
from connectors.protobuf.errors import ProtobufAnalysisError, analysis_error
from connectors.protobuf.options import MAX_DEPTH, ProtobufOptions
from connectors.protobuf.schema.descriptors import (
    EnumPlan,
    FieldType,
    MessageType,
    Schema,
    is_repeated,
    is_required,
    map_entry,
)


class ValueKind(StrEnum):
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


DUMMY_FIELD: Final = "__dummy_field_in_empty_struct"  # the column that stands for a message without fields
MAX_LEVELS: Final = 100  # of messages in messages: no parser of protobuf reads more

_JSON_BYTES: Final = 100.0  # of an Any as JSON, for a byte: an empty message has its name there

F: Final = FieldDescriptor
UINT64: Final = pa.decimal128(20, 0)
INT32S: Final = {F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32, F.TYPE_UINT32, F.TYPE_FIXED32}
INT64S: Final = {F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64, F.TYPE_UINT64, F.TYPE_FIXED64}
UNSIGNED_BITS: Final = {F.TYPE_UINT32: 32, F.TYPE_FIXED32: 32, F.TYPE_UINT64: 64, F.TYPE_FIXED64: 64}
_FLOATS: Final = {F.TYPE_FLOAT, F.TYPE_DOUBLE}
_SCALARS: Final[dict[int, pa.DataType]] = {
    **dict.fromkeys(INT32S, pa.int32()),
    **dict.fromkeys(INT64S, pa.int64()),
    F.TYPE_BOOL: pa.bool_(),
    F.TYPE_FLOAT: pa.float32(),
    F.TYPE_DOUBLE: pa.float64(),
    F.TYPE_STRING: pa.string(),
    F.TYPE_BYTES: pa.binary(),
}
_UPCAST: Final[dict[int, pa.DataType]] = {F.TYPE_UINT32: pa.int64(), F.TYPE_UINT64: UINT64}
_TIMES: Final = {
    "Duration": (ValueKind.DURATION, pa.duration("us")),
    "Timestamp": (ValueKind.TIMESTAMP, pa.timestamp("us", tz="UTC")),
}
_DUMMY_STRUCT: Final = pa.struct([pa.field(DUMMY_FIELD, pa.string())])
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Int32", "UInt32", "Int64", "UInt64", "String", "Bytes", "Float", "Double")
)


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """A field and its column; the last three attributes are for encoding only."""

    name: str  # of the column
    number: int
    proto_type: int  # FieldDescriptor.TYPE_...
    kind: ValueKind
    shape: Shape
    presence: bool  # whether absent and zero differ
    required: bool
    default: Any  # the value of an absent field where proto2 declares one; else None
    packed: bool
    lenient: bool  # whether a string may be other than UTF-8
    oneof: int | None  # the number of the oneof it is a member of
    enum: EnumPlan | None
    value_arrow: pa.DataType  # of one value
    children: tuple[FieldPlan, ...] = ()  # of a message; key and value; the value of a wrapper; seconds and nanos
    dropped: tuple[FieldPlan, ...] = ()  # of a message, as in MessagePlan; decoding only
    emit_zero: bool = False  # whether an absent field is zero, not NULL; decoding only
    index: int = 0  # of the column in its struct
    path: tuple[str, str] = ("", "")  # in SQL and in protobuf, for errors
    zero_is_absent: bool = False  # whether the ptars encoder declares a presence that the field has not

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the column, as Spark translates its own."""
        if self.shape is Shape.REPEATED:
            return pa.list_(pa.field("element", self.value_arrow, nullable=False))
        return self.value_arrow

    @property
    def nullable(self) -> bool:
        return not (self.required and self.shape is Shape.SINGULAR)

    @property
    def is_scalar(self) -> bool:
        return self.kind in {ValueKind.SCALAR, ValueKind.ENUM}

    @property
    def zero(self) -> Any:
        if self.proto_type == F.TYPE_STRING:
            return b"" if self.lenient else ""
        if self.proto_type == F.TYPE_BYTES:
            return b""
        if self.proto_type in _FLOATS:
            return 0.0
        if self.enum is not None and self.enum.closed:
            return next(iter(self.enum.names))
        return False if self.proto_type == F.TYPE_BOOL else 0

    @property
    def upb_default(self) -> Any:
        return self.default.encode() if self.lenient and isinstance(self.default, str) else self.default

    @property
    def null(self) -> Any:
        return self.zero if self.default is None else self.upb_default


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """The whole tree for decoding a message.

    Fields are dropped that have no column and still decide about others or about the row: members of a oneof, and
    required messages.
    """

    name: str
    fields: tuple[FieldPlan, ...]
    dropped: tuple[FieldPlan, ...]
    complete: bool  # whether each field of each message in it is a column
    dummy: bool  # whether it is an empty message, retained with a dummy column

    @property
    def arrow_type(self) -> pa.StructType:
        """The Arrow type of what `from_protobuf` returns."""
        return _DUMMY_STRUCT if self.dummy else _struct(self.fields)

    @property
    def spark_type(self) -> DataType:
        return _spark_type(_DUMMY_STRUCT) if self.dummy else _spark_struct(self.fields)


def as_signed(value: int, bits: int) -> int:
    """Return an unsigned number of so many bits as the signed one with the same bits."""
    return value - (1 << bits) if value >> (bits - 1) == 1 else value


def plan_field(field: FieldType, schema: Schema, kind: ValueKind, arrow: pa.DataType, **more: Any) -> FieldPlan:
    """Return the plan of a field whose values have this kind and Arrow type; `more` are other attributes."""
    repeated = is_repeated(field)
    presence = bool(field.has_presence)
    has_default = presence and not repeated and field.message_type is None and field.has_default_value
    oneof = field.containing_oneof
    described: dict[str, Any] = {
        "name": field.name,
        "number": field.number,
        "proto_type": field.type,
        "shape": Shape.REPEATED if repeated else Shape.SINGULAR,
        "presence": presence,
        "required": is_required(field),
        "default": field.default_value if has_default else None,
        "packed": repeated and bool(field.is_packed),
        "lenient": field.type == F.TYPE_STRING and schema.lenient(field),
        "oneof": oneof.index if oneof is not None and len(oneof.fields) > 1 else None,
        "enum": schema.enum(field),
    }
    return FieldPlan(kind=kind, value_arrow=arrow, **{**described, **more})


def compile_plan(root: MessageType, schema: Schema, options: ProtobufOptions) -> MessagePlan:
    """Compile the plan by which a message is decoded; raises ProtobufAnalysisError for what cannot be a column."""
    compiler = _Compiler(schema, options)
    fields, dropped = compiler.fields(root, {root.full_name: 1}, "top-level record")
    return MessagePlan(
        root.full_name, fields, dropped, compiler.complete, dummy=not fields and options.retain_empty_message_types
    )


def select_fields(plan: MessagePlan, names: Iterable[str]) -> MessagePlan:
    """Return the plan with only these top-level columns, in this order; raises PROTOBUF_FIELD_MISSING for others."""
    by_name = {field.name: field for field in plan.fields}
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in by_name:
            raise field_missing(name, plan.name, [], where="fields", action=f"The fields are: {', '.join(by_name)}.")
    return replace(plan, fields=tuple(by_name[name] for name in names), dummy=False)


def field_missing(name: str, message: str, matches: list[str], **more: str) -> ProtobufAnalysisError:
    """Return the error for a name that no field of a message has, or several; `more` are `where` and `action`."""
    listed = f"[{', '.join(matches)}]"
    return analysis_error(
        "PROTOBUF_FIELD_MISSING", field=name, protobufSchema=message, matchSize=len(matches), matches=listed, **more
    )


def longest_text(fields: Iterable[FieldPlan]) -> float:
    """Return how many bytes of a string a byte of a message can become: as the name of an enum, or in JSON of an Any.

    A value that an enum does not declare has a name of Java's, and what is not UTF-8 is replaced by three bytes.
    """
    longest = 3.0
    for field in fields:
        if field.kind is ValueKind.ANY_JSON:
            longest = max(longest, _JSON_BYTES)
        if field.enum is not None and kinds.is_string(field.value_arrow):
            longest = max(longest, field.enum.longest)
        longest = max(longest, longest_text(field.children))
    return longest


def _struct(fields: Iterable[FieldPlan]) -> pa.StructType:
    return pa.struct([pa.field(field.name, field.arrow_type, nullable=field.nullable) for field in fields])


def _spark_struct(fields: Iterable[FieldPlan]) -> StructType:
    return StructType(
        [
            StructField(
                field.name,
                _spark_struct(field.children)
                if field.kind is ValueKind.MESSAGE and field.shape is Shape.SINGULAR
                else _spark_type(field.arrow_type),
                field.nullable,
            )
            for field in fields
        ]
    )


@cache  # a message has many fields and few types, and each conversion takes some microseconds
def _spark_type(kind: pa.DataType) -> DataType:
    """Return the type in Spark, whose own function in 4.0 takes it that each list and map may hold NULL."""
    if kinds.is_list(kind):
        return ArrayType(_spark_type(kind.value_type), kind.value_field.nullable)
    if kinds.is_map(kind):
        return MapType(_spark_type(kind.key_type), _spark_type(kind.item_type), kind.item_field.nullable)
    if kinds.is_struct(kind):
        return StructType([StructField(field.name, _spark_type(field.type), field.nullable) for field in kind])
    return spark_type(kind)


def _is_time(message: MessageType, name: str) -> bool:
    """Return whether Spark takes a message for a Timestamp or Duration: by short name and fields, in any package."""
    if message.name != name or [field.name for field in message.fields] != ["seconds", "nanos"]:
        return False
    seconds, nanos = message.fields
    return seconds.type in INT64S and nanos.type in INT32S and not (is_repeated(seconds) or is_repeated(nanos))


class _Compiler:
    def __init__(self, schema: Schema, options: ProtobufOptions) -> None:
        self._schema = schema
        self._options = options
        self.complete = True
        self._columns = 0
        self._recursive = False

    def fields(
        self, message: MessageType, depths: dict[str, int], path: str
    ) -> tuple[tuple[FieldPlan, ...], tuple[FieldPlan, ...]]:
        """Return the columns of a message, and what it drops; `depths` counts the messages from the root down to it."""
        if sum(depths.values()) > MAX_LEVELS:
            what = f"The message {next(iter(depths))} has messages nested more than {MAX_LEVELS} levels deep"
            raise ProtobufAnalysisError("PROTOBUF_TOO_DEEP", what, "from_protobuf")
        declared = self._schema.fields(message, extensions=self._options.extensions)
        self._columns += len(declared)
        if self._columns > MAX_COLUMNS:
            root, depth = next(iter(depths)), self._options.recursive_fields_max_depth
            what = f"The message {root} has more than {MAX_COLUMNS} columns, counting those of its messages"
            action = "Declare messages that you do not need as bytes: these are the same on the wire."
            action = f"Lower recursive.fields.max.depth, which is {depth}." if self._recursive else action
            raise ProtobufAnalysisError("PROTOBUF_TOO_MANY_COLUMNS", what, "from_protobuf", action)
        plans = [self._field(field, depths) for field in declared]
        columns = tuple(plan for plan in plans if plan is not None)
        self._check_names([plan.name for plan in columns], [field.name for field in declared], path)
        self.complete &= len(columns) == len(plans)
        dropped = [
            plan_field(field, self._schema, ValueKind.DROPPED, pa.null())
            for field, plan in zip(declared, plans, strict=True)
            if plan is None
        ]
        return columns, tuple(plan for plan in dropped if plan.required or plan.oneof is not None)

    def _check_names(self, columns: list[str], declared: list[str], path: str) -> None:
        groups: dict[str, list[str]] = {}
        for name in declared:
            groups.setdefault(self._options.key(name), []).append(name)
        for name in columns:
            same = groups[self._options.key(name)]
            if len(same) > 1:
                raise field_missing(name, path, same)

    def _field(self, field: FieldType, depths: dict[str, int]) -> FieldPlan | None:
        message = field.message_type
        if message is None:
            return self._scalar(field)
        for name, (kind, arrow) in _TIMES.items():
            if _is_time(message, name):
                parts = tuple(self._scalar(part) for part in message.fields)
                return plan_field(field, self._schema, kind, arrow, children=parts)
        if self._options.convert_any_fields_to_json and message.full_name == "google.protobuf.Any":
            return plan_field(field, self._schema, ValueKind.ANY_JSON, pa.string())
        if self._options.unwrap_primitive_wrapper_types and message.full_name in _WRAPPERS:
            return self._wrapper(field)
        if is_repeated(field) and message.GetOptions().map_entry:
            return self._map(field, depths)
        return self._message(field, depths)

    def _scalar(self, field: FieldType) -> FieldPlan:
        kind, arrow = ValueKind.SCALAR, _SCALARS.get(field.type)
        if field.type == F.TYPE_ENUM:
            kind, arrow = ValueKind.ENUM, pa.int32() if self._options.enums_as_ints else pa.string()
        elif self._options.upcast_unsigned_ints:
            arrow = _UPCAST.get(field.type, arrow)
        if arrow is None:
            raise analysis_error("PROTOBUF_TYPE_NOT_SUPPORT", protobufType=field.type, where=field.full_name)
        zero = self._options.emit_default_values and not field.has_presence and not is_repeated(field)
        return plan_field(field, self._schema, kind, arrow, emit_zero=zero)

    def _wrapper(self, field: FieldType) -> FieldPlan:
        value = self._scalar(field.message_type.fields[0])
        if is_repeated(field) or is_required(field) or field.containing_type.GetOptions().map_entry:
            value = replace(value, emit_zero=True)  # where the column has no place for NULL
        return plan_field(field, self._schema, ValueKind.WRAPPER, value.value_arrow, children=(value,))

    def _map(self, field: FieldType, depths: dict[str, int]) -> FieldPlan | None:
        key, value = (self._field(part, depths) for part in map_entry(field))
        if key is None or value is None:
            return None
        arrow = pa.map_(key.arrow_type, pa.field("value", value.arrow_type, nullable=False))
        return plan_field(field, self._schema, ValueKind.MESSAGE, arrow, shape=Shape.MAP, children=(key, value))

    def _message(self, field: FieldType, depths: dict[str, int]) -> FieldPlan | None:
        message = field.message_type
        depth, limit = depths.get(message.full_name, 0), self._options.recursive_fields_max_depth
        if depth and not 0 < limit <= MAX_DEPTH:
            raise analysis_error("RECURSIVE_PROTOBUF_SCHEMA", fieldDescriptor=field.full_name)
        self._recursive |= depth > 0
        if depth and depth >= limit:
            return None
        fields, dropped = self.fields(message, {**depths, message.full_name: depth + 1}, f"field '{field.full_name}'")
        if fields:
            return plan_field(field, self._schema, ValueKind.MESSAGE, _struct(fields), children=fields, dropped=dropped)
        if self._options.retain_empty_message_types:
            return plan_field(field, self._schema, ValueKind.EMPTY, _DUMMY_STRUCT)
        return None
