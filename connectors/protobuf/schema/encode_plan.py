"""The plan of `to_protobuf`: the columns of a struct matched with the fields of a message, and their types checked.

The rules are those of Spark's ``ProtobufSerializer.scala`` and ``utils/ProtobufUtils.scala``. It is made on the
executor, once for each type of a column, since that is known only when its first batch is there.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds
from google.protobuf.descriptor import FieldDescriptor

from connectors.core.processes.spark import spark_type
from connectors.protobuf.errors import ProtobufAnalysisError, analysis_error
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.descriptors import FieldType, MessageType, Schema, is_repeated, is_required, map_entry
from connectors.protobuf.schema.plan import (
    DUMMY_FIELD,
    INT32S,
    INT64S,
    UINT64,
    FieldPlan,
    Shape,
    ValueKind,
    field_missing,
    plan_field,
)

F: Final = FieldDescriptor
_TEXTS: Final = (pa.string(), pa.large_string())
_SMALL: Final = (pa.int8(), pa.int16(), pa.int32(), pa.date32())
_COLUMN_TYPES: Final[dict[int, tuple[pa.DataType, ...]]] = {
    **dict.fromkeys(INT32S, _SMALL),
    **dict.fromkeys(INT64S, (pa.int64(),)),
    F.TYPE_UINT32: (*_SMALL, pa.int64()),
    F.TYPE_UINT64: (pa.int64(), UINT64),
    F.TYPE_BOOL: (pa.bool_(),),
    F.TYPE_FLOAT: (pa.float32(),),
    F.TYPE_DOUBLE: (pa.float64(),),
    F.TYPE_STRING: _TEXTS,
    F.TYPE_BYTES: (pa.binary(), pa.large_binary()),
    F.TYPE_ENUM: (*_TEXTS, pa.int32()),
}
"""The types of columns that Spark writes to a scalar field."""
_TYPE_NAMES: Final = {
    value: name.removeprefix("TYPE_") for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")
}

Path = tuple[str, ...]


def compile_encode_plan(
    struct: pa.DataType, root: MessageType, schema: Schema, options: ProtobufOptions
) -> tuple[FieldPlan, ...]:
    """Match the Arrow type of a column with a message; the cause of an error says which column or field."""
    is_struct = kinds.is_struct(struct)
    try:
        if not is_struct:
            raise _mismatch(struct, (), (), root.full_name)
        return _Matcher(schema, options).struct(struct, root, (), ())
    except ProtobufAnalysisError as error:
        raise analysis_error(
            "UNABLE_TO_CONVERT_TO_PROTOBUF_MESSAGE_TYPE",
            toType=f'"{_sql(struct)}"',
            protobufType=root.name,
            where=f"{error}" if is_struct else "the column is not a STRUCT",
        ) from error


def _sql_path(path: Path) -> str:
    return ".".join(f"`{part}`" for part in path)


def _proto_path(path: Path) -> str:
    """Return a field as Spark's errors write it (``toFieldStr``)."""
    return f"field '{'.'.join(path)}'" if path else "top-level record"


def _sql(kind: pa.DataType) -> str:
    if kinds.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {_sql(field.type)}' for field in kind)}>"
    if kinds.is_map(kind):
        return f"MAP<{_sql(kind.key_type)}, {_sql(kind.item_type)}>"
    if kinds.is_nested(kind):
        return f"ARRAY<{_sql(kind.value_type)}>"
    try:
        return str(spark_type(kind).simpleString()).upper()
    except TypeError:  # a type that Spark has not, such as uint8
        return str(kind)


def _mismatch(kind: pa.DataType, columns: Path, fields: Path, proto: str) -> ProtobufAnalysisError:
    return analysis_error(
        "CANNOT_CONVERT_SQL_TYPE_TO_PROTOBUF_FIELD_TYPE",
        sqlColumn=_sql_path(columns),
        protobufColumn=_proto_path(fields),
        protobufType=proto,
        sqlType=f'"{_sql(kind)}"',
    )


class _Matcher:
    """Matches columns and fields; `columns` and `fields` are the paths to them, for errors."""

    def __init__(self, schema: Schema, options: ProtobufOptions) -> None:
        self._schema = schema
        self._options = options

    def struct(self, struct: pa.StructType, message: MessageType, columns: Path, fields: Path) -> tuple[FieldPlan, ...]:
        declared = self._schema.fields(message, extensions=self._options.extensions)
        by_name: dict[str, list[FieldType]] = {}
        for field in declared:
            by_name.setdefault(self._options.key(field.name), []).append(field)
        plans = []
        for index, column in enumerate(struct):
            matches = by_name.get(self._options.key(column.name), [])
            if not matches:
                path = _proto_path((*columns, column.name))
                raise analysis_error("NO_SQL_TYPE_IN_PROTOBUF_SCHEMA", catalystFieldPath=path)
            if len(matches) > 1:
                raise field_missing(column.name, _proto_path(fields), [field.name for field in matches])
            paths = (*columns, column.name), (*fields, matches[0].name)
            plans.append(self._field(index, column.type, matches[0], *paths))
        numbers = {plan.number for plan in plans}
        for field in declared:
            if is_required(field) and field.number not in numbers:
                raise analysis_error("PROTOBUF_FIELD_MISSING_IN_SQL_SCHEMA", field=_proto_path((*fields, field.name)))
        return tuple(plans)

    def _field(self, index: int, kind: pa.DataType, field: FieldType, columns: Path, fields: Path) -> FieldPlan:
        message = field.message_type
        is_map = message is not None and is_repeated(field) and message.GetOptions().map_entry
        if is_map and kinds.is_map(kind):
            key, value = map_entry(field)
            parts = (
                self._field(0, kind.key_type, key, (*columns, "key"), (*fields, "key")),
                self._field(1, kind.item_type, value, (*columns, "value"), (*fields, "value")),
            )
            return self._plan(index, field, ValueKind.MESSAGE, kind, columns, fields, shape=Shape.MAP, children=parts)
        if is_repeated(field) and not is_map and (kinds.is_list(kind) or kinds.is_large_list(kind)):
            kind, shape = kind.value_type, Shape.REPEATED
            value, children = self._value(kind, field, (*columns, "element"), (*fields, "element"))
        elif is_repeated(field) and not kinds.is_null(kind):
            raise _mismatch(kind, columns, fields, _proto_type(field))
        else:
            shape = Shape.SINGULAR
            value, children = self._value(kind, field, columns, fields)
        return self._plan(index, field, value, kind, columns, fields, shape=shape, children=children)

    def _value(
        self, kind: pa.DataType, field: FieldType, columns: Path, fields: Path
    ) -> tuple[ValueKind, tuple[FieldPlan, ...]]:
        message = field.message_type
        if kinds.is_null(kind):
            return ValueKind.EMPTY, ()
        if message is None and _fits(kind, field):
            return (ValueKind.ENUM if field.type == F.TYPE_ENUM else ValueKind.SCALAR), ()
        if message is not None and kinds.is_struct(kind):
            is_dummy = not message.fields and [part.name for part in kind] == [DUMMY_FIELD]
            return ValueKind.MESSAGE, () if is_dummy else self.struct(kind, message, columns, fields)
        if message is not None and _begins_with_seconds_and_nanos(message):
            is_timestamp = kinds.is_timestamp(kind) and kind.tz is not None
            if is_timestamp or kinds.is_duration(kind):
                return (ValueKind.TIMESTAMP if is_timestamp else ValueKind.DURATION), self._times(message, fields)
        if message is not None and message.full_name.startswith("google.protobuf.") and message.name.endswith("Value"):
            inner = message.fields_by_name.get("value")
            if inner is not None and inner.message_type is None and _fits(kind, inner):
                return ValueKind.WRAPPER, (self._field(0, kind, inner, columns, (*fields, "value")),)
        raise _mismatch(kind, columns, fields, _proto_type(field))

    def _times(self, message: MessageType, fields: Path) -> tuple[FieldPlan, ...]:
        types = pa.int64(), pa.int32()
        return tuple(
            self._plan(
                index, part, ValueKind.SCALAR, types[index], (part.name,), (*fields, part.name), shape=Shape.SINGULAR
            )
            for index, part in enumerate(list(message.fields)[:2])
        )

    def _plan(
        self,
        index: int,
        field: FieldType,
        kind: ValueKind,
        arrow: pa.DataType,
        columns: Path,
        fields: Path,
        **more: Any,
    ) -> FieldPlan:
        path = _sql_path(columns), _proto_path(fields)
        return plan_field(field, self._schema, kind, arrow, name=columns[-1], index=index, path=path, **more)


def _fits(kind: pa.DataType, field: FieldType) -> bool:
    return kind in _COLUMN_TYPES.get(field.type, ())


def _begins_with_seconds_and_nanos(message: MessageType) -> bool:
    """Return whether a message can hold a time: Spark sets its first two fields."""
    parts = zip(list(message.fields)[:2], (INT64S, INT32S), strict=False)
    return [field.type in types for field, types in parts] == [True, True]


def _proto_type(field: FieldType) -> str:
    label = "LABEL_REPEATED" if is_repeated(field) else "LABEL_REQUIRED" if is_required(field) else "LABEL_OPTIONAL"
    return f"{field.full_name} {label} {_TYPE_NAMES.get(field.type, field.type)}"
