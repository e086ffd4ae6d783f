"""The reference encoder: messages built by protobuf's own classes (upb).

The rules are those of Spark's ``ProtobufSerializer.scala``, with one difference: timestamps and intervals keep their
microseconds, where Spark cuts them to milliseconds. `UpbEncoder` sets field by field, for all rows; `AdaptiveEncoder`
takes it for small batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.types as kinds
from google.protobuf.message import EncodeError, Message

from connectors.core.processes.pool import Cache
from connectors.protobuf.errors import ProtobufDataError, data_error
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.descriptors import EnumPlan, MessageType, Schema
from connectors.protobuf.schema.encode_plan import compile_encode_plan
from connectors.protobuf.schema.plan import UNSIGNED_BITS, FieldPlan, Shape, ValueKind
from connectors.protobuf.upb.declarations import WireForm, wire_name
from connectors.protobuf.upb.decoder import is_zero

Write = Callable[[Message, Any], None]

TYPES: Final = 16  # types of a column whose plans an encoder keeps
_MICROS: Final = 1_000_000
# Measured, with 5 to 2,000 columns: the number of columns does not move where the two encoders meet.
_MOST_BY_UPB: Final = 32
_MOST_BYTES: Final = 1024  # of a column: one row may hold very many values


class Encoder(Protocol):
    """Turns structs into messages."""

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        """Encode a struct array, NULL as NULL; raises ProtobufError for a type or a value that does not fit."""


class UpbEncoder:
    """Encodes column by column."""

    def __init__(self, root: MessageType, wire: WireForm, schema: Schema, options: ProtobufOptions) -> None:
        self._root, self._wire, self._schema, self._options = root, wire, schema, options
        self._plans = Cache(TYPES)
        self.message = wire.root

    def plan(self, kind: pa.DataType) -> tuple[FieldPlan, ...]:
        return self._plans.get(kind, lambda: compile_encode_plan(kind, self._root, self._schema, self._options))

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        plan = self.plan(structs.type)
        messages = [self.message() if valid else None for valid in structs.is_valid().to_pylist()]
        _fill(plan, structs, messages)
        return pa.array([None if message is None else self.bytes_of(message) for message in messages], pa.binary())

    def bytes_of(self, message: Message) -> bytes:
        """Serialize a message; raises ProtobufDataError (PROTOBUF_REQUIRED_FIELD_NULL) if it is not complete."""
        try:
            return message.SerializeToString(deterministic=True)
        except EncodeError as error:
            what = f"Message missing required fields: {self._wire.missing_fields(message)}"
            raise ProtobufDataError("PROTOBUF_REQUIRED_FIELD_NULL", what, self._root.full_name) from error


def _fill(fields: Sequence[FieldPlan], structs: pa.StructArray, messages: Sequence[Message | None]) -> None:
    # What stands below a NULL struct is anything; flattened, it is NULL too.
    columns = structs.flatten()
    for field in fields:
        column = columns[field.index]
        if field.shape is Shape.SINGULAR:
            _set_column(field, column, messages)
        elif field.shape is Shape.REPEATED:
            _extend_column(field, column, messages)
        else:
            _put_column(field, column, messages)


def _set_column(field: FieldPlan, column: pa.Array, messages: Sequence[Message | None]) -> None:
    """Set a singular field; NULL leaves it out, but for a required scalar."""
    name = wire_name(field.number)
    if field.is_scalar:
        for message, value in zip(messages, _scalars(field, column), strict=True):
            if message is None:
                continue
            if value is None and field.required:
                setattr(message, name, field.null)
            elif value is not None and (field.presence or not is_zero(value)):
                setattr(message, name, value)
    elif field.kind is not ValueKind.EMPTY:
        inner: list[Message | None] = []
        for message, valid in zip(messages, column.is_valid().to_pylist(), strict=True):
            inner.append(getattr(message, name) if message is not None and valid else None)
            if inner[-1] is not None:
                inner[-1].SetInParent()
        _fill_values(field, column, inner)


def _extend_column(field: FieldPlan, column: pa.Array, messages: Sequence[Message | None]) -> None:
    name = wire_name(field.number)
    lengths, values = _flat(column, messages)
    if values.null_count:
        raise _null_element(field)
    owners = [message for message, length in zip(messages, lengths, strict=True) for _ in range(length)]
    if field.is_scalar:
        for message, value in zip(owners, _scalars(field, values), strict=True):
            getattr(message, name).append(value)
        return
    _fill_values(field, values, [getattr(message, name).add() for message in owners])


def _put_column(field: FieldPlan, column: pa.Array, messages: Sequence[Message | None]) -> None:
    """Set a map; a NULL value is written as the default of its type. Key and value are always written, as in Java."""
    name = wire_name(field.number)
    lengths, entries = _flat(column, messages)
    made = [
        getattr(message, name).add() for message, length in zip(messages, lengths, strict=True) for _ in range(length)
    ]
    for part, values in zip(field.children, (entries.field(0), entries.field(1)), strict=True):
        inner = wire_name(part.number)
        if part.is_scalar:
            for entry, value in zip(made, _scalars(part, values), strict=True):
                setattr(entry, inner, getattr(entry, inner) if value is None else value)
            continue
        targets = [getattr(entry, inner) for entry in made]
        for target in targets:
            target.SetInParent()
        if part.kind is not ValueKind.EMPTY:
            valid = values.is_valid().to_pylist()
            _fill_values(
                part, values, [target if is_set else None for target, is_set in zip(targets, valid, strict=True)]
            )


def _flat(column: pa.Array, messages: Sequence[Message | None]) -> tuple[list[int], pa.Array]:
    """Return the lengths of lists or maps, and their values in one array, without what stands below a NULL."""
    offsets = column.offsets.to_pylist()
    valid = column.is_valid().to_pylist()
    lengths = [
        offsets[row + 1] - offsets[row] if valid[row] and message is not None else 0
        for row, message in enumerate(messages)
    ]
    if kinds.is_map(column.type):
        values = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
    else:
        values = column.values
    if sum(lengths) == offsets[-1] - offsets[0]:
        return lengths, values.slice(offsets[0], offsets[-1] - offsets[0])
    taken = [index for row, length in enumerate(lengths) for index in range(offsets[row], offsets[row] + length)]
    return lengths, values.take(pa.array(taken, pa.int64()))


def _fill_values(field: FieldPlan, values: pa.Array, messages: Sequence[Message | None]) -> None:
    if field.kind is ValueKind.MESSAGE:
        _fill(field.children, values, messages)
    elif field.kind is ValueKind.WRAPPER:
        _set_column(field.children[0], values, messages)
    elif field.kind in {ValueKind.TIMESTAMP, ValueKind.DURATION}:
        write = _time(field)
        unit = pa.timestamp("us", tz=values.type.tz) if kinds.is_timestamp(values.type) else pa.duration("us")
        for message, micros in zip(messages, values.cast(unit).view(pa.int64()).to_pylist(), strict=True):
            if message is not None and micros is not None:
                write(message, micros)


def _scalars(field: FieldPlan, column: pa.Array) -> list[Any]:
    if kinds.is_date32(column.type):
        column = column.view(pa.int32())
    values: list[Any] = column.to_pylist()
    convert = _scalar_conversion(field)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _scalar_conversion(field: FieldPlan) -> Callable[[Any], Any] | None:
    """Return the function from a value of Arrow to what upb takes; None where it takes the same."""
    if field.enum is not None:
        enum = field.enum
        return lambda value: _enum_number(field, enum, value)
    bits = UNSIGNED_BITS.get(field.proto_type)
    if bits is not None:
        limit = 1 << bits
        return lambda value: _unsigned(field, int(value), limit)
    return str.encode if field.lenient else None


def _unsigned(field: FieldPlan, value: int, limit: int) -> int:
    if not -(limit >> 1) <= value < limit:
        what = f"The value {value} of the column {field.path[0]} does not fit in Protobuf {field.path[1]}"
        raise ProtobufDataError("PROTOBUF_VALUE_OUT_OF_RANGE", what, "to_protobuf")
    return value % limit


def _enum_number(field: FieldPlan, enum: EnumPlan, value: str | int) -> int:
    number = enum.numbers.get(value) if isinstance(value, str) else value if value in enum.names else None
    if number is None:
        symbols = [f'"{name}"' for name in enum.numbers] if isinstance(value, str) else map(str, enum.names)
        raise data_error(
            "CANNOT_CONVERT_SQL_VALUE_TO_PROTOBUF_ENUM_TYPE",
            sqlColumn=field.path[0],
            protobufColumn=field.path[1],
            data=value,
            enumString=", ".join(symbols),
        )
    return number


def _null_element(field: FieldPlan) -> ProtobufDataError:
    """Return the error for a NULL in an array: protobuf has none, and to leave it out would shift the others."""
    what = f"A NULL in the array {field.path[0]} cannot be written to Protobuf {field.path[1]}"
    return ProtobufDataError("PROTOBUF_NULL_ELEMENT", what, "to_protobuf")


def _time(field: FieldPlan) -> Write:
    """Return the function that sets seconds and nanos: those of a Timestamp count forward, also before 1970."""
    first, second = (wire_name(part.number) for part in field.children)
    is_duration = field.kind is ValueKind.DURATION

    def write(message: Message, micros: int) -> None:
        sign = -1 if is_duration and micros < 0 else 1
        seconds, rest = divmod(sign * micros, _MICROS)
        if seconds:
            setattr(message, first, sign * seconds)
        if rest:
            setattr(message, second, sign * rest * 1000)

    return write


class AdaptiveEncoder:
    """Encodes each batch by the encoder that is the fastest for its size; `columns` is that for many rows."""

    def __init__(self, upb: UpbEncoder, columns: Encoder) -> None:
        self._upb, self._many = upb, columns

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        return self.chosen(structs).encode(structs)

    def chosen(self, structs: pa.StructArray) -> Encoder:
        if len(structs) <= _MOST_BY_UPB and structs.nbytes <= _MOST_BYTES * structs.type.num_fields:
            return self._upb
        return self._many
