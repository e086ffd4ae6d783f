"""The plan of `to_protobuf`: the columns of a struct matched with the fields of a message, and their types checked.

The rules are those of Spark's ``ProtobufSerializer.scala`` and ``utils/ProtobufUtils.scala``. A column's type is
known only when its first batch is there, so all of this happens on the executor, once for each type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as kinds
from google.protobuf.descriptor import FieldDescriptor
from pyspark.sql.pandas.types import from_arrow_type

from connectors.protobuf.errors import ProtobufAnalysisError, analysis_error
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.descriptors import EnumPlan, FieldType, MessageType, Schema, enum_plan
from connectors.protobuf.schema.plan import Kind, Shape

__all__ = ["EncodeField", "compile_encode_plan"]

F: Final = FieldDescriptor
_INT32: Final = {F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32, F.TYPE_UINT32, F.TYPE_FIXED32}
_INT64: Final = {F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64, F.TYPE_UINT64, F.TYPE_FIXED64}
_UNSIGNED64_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class EncodeField:
    """One column and the field that it goes to.

    Attributes:
        index: of the column in its struct; of key and value 0 and 1; 0 for the value of a wrapper.
        column: its name, for errors.
        number: of the field on the wire.
        proto_type: ``FieldDescriptor.TYPE_...``.
        kind: what each value is.
        shape: how many values there are.
        presence: whether zero is written.
        required: whether NULL is written as the default.
        default: the value that stands for NULL in a required scalar, as upb gives it.
        packed: whether it is written packed.
        lenient: whether a string may be other than UTF-8.
        oneof: the number of the oneof it is a member of; None for none.
        children: fields of a message; key and value; the value of a wrapper; seconds and nanos.
        enum: the enum, for kind ENUM.
        path: the SQL path and the protobuf path, for errors.
        zero_is_absent: set by the fast encoder, where it declares a presence that the field has not.
        dropped: always empty; see `connectors.protobuf.schema.plan.FieldPlan`.
    """

    index: int
    column: str
    number: int
    proto_type: int
    kind: Kind
    shape: Shape
    presence: bool
    required: bool
    default: object
    packed: bool
    lenient: bool
    oneof: int | None
    children: tuple[EncodeField, ...]
    enum: EnumPlan | None
    path: tuple[str, str]
    zero_is_absent: bool = False
    dropped: tuple[EncodeField, ...] = ()


def compile_encode_plan(
    struct: pa.DataType, root: MessageType, schema: Schema, options: ProtobufOptions
) -> tuple[EncodeField, ...]:
    """Match a struct with a message.

    Args:
        struct: the Arrow type of the column.
        root: the message.
        schema: its descriptor set.
        options: the options of the call.

    Raises:
        ProtobufAnalysisError: UNABLE_TO_CONVERT_TO_PROTOBUF_MESSAGE_TYPE, whose cause says which column or field.
    """
    try:
        if not kinds.is_struct(struct):
            raise _mismatch(struct, (), (), root.full_name)
        return _Matcher(schema, options).struct(struct, root, (), ())
    except ProtobufAnalysisError as error:
        raise analysis_error(
            "UNABLE_TO_CONVERT_TO_PROTOBUF_MESSAGE_TYPE",
            toType=f'"{_sql(struct)}"',
            protobufType=root.name,
            where=f"{error}" if kinds.is_struct(struct) else "the column is not a STRUCT",
            action=""
            if kinds.is_struct(struct)
            else "Put the columns of the message into one, as struct('id', 'name').",
        ) from error


def sql_path(path: tuple[str, ...]) -> str:
    """A column as Spark's errors write it."""
    return ".".join(f"`{part}`" for part in path)


def proto_path(path: tuple[str, ...]) -> str:
    """A field as Spark's errors write it (``toFieldStr``)."""
    return f"field '{'.'.join(path)}'" if path else "top-level record"


def _sql(kind: pa.DataType) -> str:
    try:
        return str(from_arrow_type(kind).simpleString()).upper() if not kinds.is_nested(kind) else _nested_sql(kind)
    except Exception as error:  # noqa: BLE001 - only the text of an error: a type without a Spark name keeps its own
        return f"{kind} ({type(error).__name__})"


def _nested_sql(kind: pa.DataType) -> str:
    if kinds.is_struct(kind):
        return f"STRUCT<{', '.join(f'{each.name}: {_sql(each.type)}' for each in kind)}>"
    if kinds.is_map(kind):
        return f"MAP<{_sql(kind.key_type)}, {_sql(kind.item_type)}>"
    return f"ARRAY<{_sql(kind.value_type)}>"


def _mismatch(
    kind: pa.DataType, columns: tuple[str, ...], fields: tuple[str, ...], proto: str
) -> ProtobufAnalysisError:
    return analysis_error(
        "CANNOT_CONVERT_SQL_TYPE_TO_PROTOBUF_FIELD_TYPE",
        sqlColumn=sql_path(columns),
        protobufColumn=proto_path(fields),
        protobufType=proto,
        sqlType=f'"{_sql(kind)}"',
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))


def _fits_scalar(kind: pa.DataType, field: FieldType) -> bool:
    """Whether Spark writes a column of this type to a field of this type."""
    proto = field.type
    small = kinds.is_int8(kind) or kinds.is_int16(kind) or kinds.is_int32(kind)
    return bool(
        (proto == F.TYPE_BOOL and kinds.is_boolean(kind))
        or (proto in _INT32 and (small or kinds.is_date32(kind)))
        or (proto == F.TYPE_UINT32 and kinds.is_int64(kind))
        or (proto in _INT64 and kinds.is_int64(kind))
        or (
            proto == F.TYPE_UINT64
            and kinds.is_decimal128(kind)
            and (kind.precision, kind.scale) == (_UNSIGNED64_DIGITS, 0)
        )
        or (proto == F.TYPE_FLOAT and kinds.is_float32(kind))
        or (proto == F.TYPE_DOUBLE and kinds.is_float64(kind))
        or (proto == F.TYPE_STRING and _is_text(kind))
        or (proto == F.TYPE_BYTES and _is_bytes(kind))
        or (proto == F.TYPE_ENUM and (_is_text(kind) or kinds.is_int32(kind)))
        or (kinds.is_null(kind) and field.message_type is None)
    )


class _Matcher:
    def __init__(self, schema: Schema, options: ProtobufOptions) -> None:
        self._schema = schema
        self._options = options

    def struct(
        self, struct: pa.StructType, message: MessageType, columns: tuple[str, ...], fields: tuple[str, ...]
    ) -> tuple[EncodeField, ...]:
        declared: list[FieldType] = list(message.fields)
        if self._options.extensions:
            declared += self._schema.extensions(message.full_name)
        by_name: dict[str, list[FieldType]] = {}
        for field in declared:
            by_name.setdefault(self._key(field.name), []).append(field)
        matched = []
        for index, column in enumerate(struct):
            field = self._find(column.name, by_name, fields)
            if field is None:
                raise analysis_error(
                    "NO_SQL_TYPE_IN_PROTOBUF_SCHEMA", catalystFieldPath=proto_path((*columns, column.name))
                )
            path = (*columns, column.name), (*fields, field.name)
            matched.append((field, self._field(index, column.type, field, *path)))
        found = {field.number for field, _ in matched}
        for field in declared:
            if field.is_required and field.number not in found:
                raise analysis_error("PROTOBUF_FIELD_MISSING_IN_SQL_SCHEMA", field=proto_path((*fields, field.name)))
        return tuple(made for _, made in matched)

    def _key(self, name: str) -> str:
        return name if self._options.case_sensitive else name.lower()

    def _find(self, name: str, by_name: dict[str, list[FieldType]], fields: tuple[str, ...]) -> FieldDescriptor | None:
        matches = by_name.get(self._key(name), [])
        if len(matches) > 1:
            raise analysis_error(
                "PROTOBUF_FIELD_MISSING",
                field=name,
                protobufSchema=proto_path(fields),
                matchSize=len(matches),
                matches=f"[{', '.join(field.name for field in matches)}]",
            )
        return matches[0] if matches else None

    def _field(
        self, index: int, kind: pa.DataType, field: FieldType, columns: tuple[str, ...], fields: tuple[str, ...]
    ) -> EncodeField:
        message = field.message_type
        is_map = message is not None and field.is_repeated and message.GetOptions().map_entry
        if is_map and kinds.is_map(kind):
            entry = message.fields_by_name
            parts: tuple[EncodeField, ...] = (
                self._field(0, kind.key_type, entry["key"], (*columns, "key"), (*fields, "key")),
                self._field(1, kind.item_type, entry["value"], (*columns, "value"), (*fields, "value")),
            )
            return self._made(index, field, Kind.MESSAGE, Shape.MAP, parts, columns, fields)
        if field.is_repeated and not is_map and _is_list(kind):
            value, parts = self._value(kind.value_type, field, (*columns, "element"), (*fields, "element"))
            return self._made(index, field, value, Shape.REPEATED, parts, columns, fields)
        if field.is_repeated and not kinds.is_null(kind):
            raise _mismatch(kind, columns, fields, _proto_type(field))
        value, parts = self._value(kind, field, columns, fields)
        return self._made(index, field, value, Shape.SINGULAR, parts, columns, fields)

    def _value(  # noqa: PLR0911 - one for each kind
        self, kind: pa.DataType, field: FieldType, columns: tuple[str, ...], fields: tuple[str, ...]
    ) -> tuple[Kind, tuple[EncodeField, ...]]:
        """What one value is, and its parts."""
        message = field.message_type
        if kinds.is_null(kind):
            return Kind.EMPTY, ()
        if message is None:
            if not _fits_scalar(kind, field):
                raise _mismatch(kind, columns, fields, _proto_type(field))
            return (Kind.ENUM if field.type == F.TYPE_ENUM else Kind.SCALAR), ()
        if kinds.is_struct(kind):
            if not message.fields and [each.name for each in kind] == ["__dummy_field_in_empty_struct"]:
                return Kind.MESSAGE, ()
            return Kind.MESSAGE, self.struct(kind, message, columns, fields)
        if kinds.is_timestamp(kind) and kind.tz is not None and _is_seconds_and_nanos(message):
            return Kind.TIMESTAMP, self._parts(message, fields)
        if kinds.is_duration(kind) and _is_seconds_and_nanos(message):
            return Kind.DURATION, self._parts(message, fields)
        if message.full_name.startswith("google.protobuf.") and message.name.endswith("Value"):
            inner = message.fields_by_name.get("value")
            if inner is not None and inner.message_type is None and _fits_scalar(kind, inner):
                return Kind.WRAPPER, (self._field(0, kind, inner, columns, (*fields, "value")),)
        raise _mismatch(kind, columns, fields, _proto_type(field))

    def _parts(self, message: MessageType, fields: tuple[str, ...]) -> tuple[EncodeField, ...]:
        return tuple(
            self._made(index, part, Kind.SCALAR, Shape.SINGULAR, (), (part.name,), (*fields, part.name))
            for index, part in enumerate(message.fields)
        )

    def _made(  # noqa: PLR0917 - one for each thing that differs
        self,
        index: int,
        field: FieldType,
        kind: Kind,
        shape: Shape,
        children: tuple[EncodeField, ...],
        columns: tuple[str, ...],
        fields: tuple[str, ...],
    ) -> EncodeField:
        oneof = field.containing_oneof
        scalar = field.message_type is None and not field.is_repeated
        return EncodeField(
            index=index,
            column=columns[-1],
            number=field.number,
            proto_type=field.type,
            kind=kind,
            shape=shape,
            presence=bool(field.has_presence),
            required=bool(field.is_required),
            default=field.default_value if scalar and field.is_required else None,
            packed=bool(field.is_repeated and field.is_packed),
            lenient=field.type == F.TYPE_STRING and self._schema.lenient(field),
            oneof=oneof.index if oneof is not None and len(oneof.fields) > 1 else None,
            children=children,
            enum=enum_plan(field.enum_type, closed=True) if field.enum_type is not None else None,
            path=(sql_path(columns), proto_path(fields)),
        )


def _is_seconds_and_nanos(message: MessageType) -> bool:
    """Whether a message begins with seconds and nanos: Spark sets its first two fields."""
    parts = list(message.fields)[:2]
    return [part.type in known for part, known in zip(parts, (_INT64, _INT32), strict=False)] == [True, True]


_TYPE_NAMES: Final = {
    value: name.removeprefix("TYPE_") for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")
}


def _proto_type(field: FieldType) -> str:
    label = "LABEL_REPEATED" if field.is_repeated else "LABEL_REQUIRED" if field.is_required else "LABEL_OPTIONAL"
    return f"{field.full_name} {label} {_TYPE_NAMES.get(field.type, field.type)}"
