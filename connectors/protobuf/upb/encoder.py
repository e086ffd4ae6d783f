"""The reference encoder: messages built by protobuf's own classes (upb), column by column.

The rules are those of Spark's ``ProtobufSerializer.scala``, with one difference: timestamps and intervals keep their
microseconds, where Spark cuts them to milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.types as kinds
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import EncodeError, Message

from connectors.core.pool import Cache
from connectors.protobuf.errors import ProtobufDataError, data_error
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.descriptors import MessageType, Schema
from connectors.protobuf.schema.encode_plan import EncodeField, compile_encode_plan
from connectors.protobuf.schema.plan import Kind, Shape
from connectors.protobuf.upb.declarations import WireForm, wire_name
from connectors.protobuf.upb.decoder import is_zero

__all__ = [
    "TYPES",
    "Encoder",
    "PlainEncoder",
    "default_of",
    "enum_error",
    "null_element",
    "scalar_conversion",
    "split_duration",
    "split_timestamp",
]

F: Final = FieldDescriptor
TYPES: Final = 16
"""Types of a column whose plans an encoder keeps."""
_MICROS: Final = 1_000_000
_UNSIGNED: Final = {F.TYPE_UINT32: 32, F.TYPE_FIXED32: 32, F.TYPE_UINT64: 64, F.TYPE_FIXED64: 64}


class Encoder(Protocol):
    """Turns structs into messages."""

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        """Encode a struct array; NULL stays NULL.

        Raises:
            ProtobufAnalysisError: the type does not fit the message.
            ProtobufDataError: a value does not fit its field.
        """
        ...


def split_timestamp(micros: int) -> tuple[int, int]:
    """Seconds and nanos of a Timestamp: nanos count forward, also before 1970."""
    seconds, rest = divmod(micros, _MICROS)
    return seconds, rest * 1000


def split_duration(micros: int) -> tuple[int, int]:
    """Seconds and nanos of a Duration: both have its sign."""
    seconds, rest = divmod(abs(micros), _MICROS)
    return (-seconds, -rest * 1000) if micros < 0 else (seconds, rest * 1000)


def enum_error(field: EncodeField, value: object) -> ProtobufDataError:
    """The error for a name or a number that an enum has not; it lists the names, and for numbers the numbers."""
    assert field.enum is not None  # noqa: S101 - the kind says so
    numbers, names = field.enum.names, field.enum.numbers
    symbols = [f'"{name}"' for name in names] if isinstance(value, str) else [str(number) for number in numbers]
    return data_error(
        "CANNOT_CONVERT_SQL_VALUE_TO_PROTOBUF_ENUM_TYPE",
        sqlColumn=field.path[0],
        protobufColumn=field.path[1],
        data=value,
        enumString=", ".join(symbols),
    )


def null_element(field: EncodeField) -> ProtobufDataError:
    """The error for a NULL in an array: protobuf has no such thing, and to leave it out would shift the others."""
    return ProtobufDataError(
        "PROTOBUF_NULL_ELEMENT",
        f"A NULL in the array {field.path[0]} cannot be written to Protobuf {field.path[1]}",
        "to_protobuf",
        "Take it out, for example with array_compact.",
    )


class PlainEncoder:
    """Encodes by upb.

    Args:
        root: the message.
        wire: its wire form.
        schema: its descriptor set.
        options: the options of the call.
    """

    def __init__(self, root: MessageType, wire: WireForm, schema: Schema, options: ProtobufOptions) -> None:
        self._root, self._wire, self._schema, self._options = root, wire, schema, options
        self._plans = Cache(TYPES)
        self.message = wire.root

    def plan(self, kind: pa.DataType) -> tuple[EncodeField, ...]:
        """The plan for a type of column, made once."""
        return self._plans.get(kind, lambda: compile_encode_plan(kind, self._root, self._schema, self._options))

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        """See `Encoder.encode`."""
        plan = self.plan(structs.type)
        messages = [self._wire.root() if valid else None for valid in structs.is_valid().to_pylist()]
        _fill(plan, structs, messages)
        return pa.array([self.bytes_of(each) for each in messages], pa.binary())

    def bytes_of(self, message: Message | None) -> bytes | None:
        """Serialize a message; raises `ProtobufDataError` where a required field is missing."""
        if message is None:
            return None
        try:
            return message.SerializeToString(deterministic=True)
        except EncodeError as error:
            paths = message.FindInitializationErrors()  # type: ignore[attr-defined]
            missing = ", ".join(self._wire.readable(path) for path in paths)
            raise ProtobufDataError(
                "PROTOBUF_REQUIRED_FIELD_NULL",
                f"Message missing required fields: {missing}",
                self._root.full_name,
                "Give these columns a value: a required message cannot be NULL.",
            ) from error


def _fill(fields: Sequence[EncodeField], structs: pa.StructArray, messages: Sequence[Message | None]) -> None:
    # What stands below a NULL struct is anything; flattened, it is NULL too.
    columns = structs.flatten()
    for field in fields:
        column = columns[field.index]
        if field.shape is Shape.SINGULAR:
            _set(field, column, messages)
        elif field.shape is Shape.REPEATED:
            _extend(field, column, messages)
        else:
            _put(field, column, messages)


def _set(field: EncodeField, column: pa.Array, messages: Sequence[Message | None]) -> None:
    """Set a singular field; NULL leaves it out, but for a required scalar."""
    name = wire_name(field.number)
    if field.kind in {Kind.SCALAR, Kind.ENUM}:
        for message, value in zip(messages, _scalars(field, column), strict=True):
            if message is None:
                continue
            if value is None and field.required:
                setattr(message, name, default_of(field))
            elif value is not None and (field.presence or not is_zero(value)):
                setattr(message, name, value)
        return
    if field.kind is Kind.EMPTY:
        return
    inner: list[Message | None] = []
    for message, valid in zip(messages, column.is_valid().to_pylist(), strict=True):
        if message is None or not valid:
            inner.append(None)
            continue
        made = getattr(message, name)
        made.SetInParent()
        inner.append(made)
    _fill_values(field, column, inner)


def _extend(field: EncodeField, column: pa.Array, messages: Sequence[Message | None]) -> None:
    """Set a repeated field; NULL is as an empty array."""
    name = wire_name(field.number)
    lengths, values = _flat(column, messages)
    if values.null_count:
        raise null_element(field)
    owners = [message for message, length in zip(messages, lengths, strict=True) for _ in range(length)]
    if field.kind in {Kind.SCALAR, Kind.ENUM}:
        for message, value in zip(owners, _scalars(field, values), strict=True):
            getattr(message, name).append(value)
        return
    _fill_values(field, values, [getattr(message, name).add() for message in owners])


def _put(field: EncodeField, column: pa.Array, messages: Sequence[Message | None]) -> None:
    """Set a map; a NULL value is written as the default of its type. Key and value are always written, as in Java."""
    name = wire_name(field.number)
    lengths, entries = _flat(column, messages)
    made = [
        getattr(message, name).add() for message, length in zip(messages, lengths, strict=True) for _ in range(length)
    ]
    for part, values in zip(field.children, (entries.field(0), entries.field(1)), strict=True):
        inner = wire_name(part.number)
        if part.kind in {Kind.SCALAR, Kind.ENUM}:
            for entry, value in zip(made, _scalars(part, values), strict=True):
                setattr(entry, inner, getattr(entry, inner) if value is None else value)
            continue
        targets = [getattr(entry, inner) for entry in made]
        for target in targets:
            target.SetInParent()
        if part.kind is not Kind.EMPTY:
            valid = values.is_valid().to_pylist()
            _fill_values(part, values, [each if known else None for each, known in zip(targets, valid, strict=True)])


def _flat(column: pa.Array, messages: Sequence[Message | None]) -> tuple[list[int], pa.Array]:
    """The lengths of lists or maps, and their values in one array, without what stands below a NULL."""
    keep = pa.array([message is not None for message in messages], pa.bool_())
    rows = keep.to_pylist()
    offsets = column.offsets.to_pylist()
    valid = column.is_valid().to_pylist()
    lengths = [offsets[row + 1] - offsets[row] if valid[row] and rows[row] else 0 for row in range(len(column))]
    whole = column.values if not kinds.is_map(column.type) else _entries(column)
    if sum(lengths) == offsets[-1] - offsets[0]:
        return lengths, whole.slice(offsets[0], offsets[-1] - offsets[0])
    taken = [index for row, length in enumerate(lengths) for index in range(offsets[row], offsets[row] + length)]
    return lengths, whole.take(pa.array(taken, pa.int64()))


def _entries(column: pa.MapArray) -> pa.StructArray:
    return pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])


def _fill_values(field: EncodeField, values: pa.Array, messages: Sequence[Message | None]) -> None:
    """Fill messages that exist already from an array of one value each."""
    if field.kind is Kind.MESSAGE:
        _fill(field.children, values, messages)
    elif field.kind is Kind.WRAPPER:
        _set(field.children[0], values, messages)
    elif field.kind in {Kind.TIMESTAMP, Kind.DURATION}:
        split = split_timestamp if field.kind is Kind.TIMESTAMP else split_duration
        first, second = (wire_name(part.number) for part in field.children[:2])
        for message, micros in zip(messages, _micros(values), strict=True):
            if message is not None and micros is not None:
                seconds, nanos = split(micros)
                if seconds:
                    setattr(message, first, seconds)
                if nanos:
                    setattr(message, second, nanos)


def _micros(values: pa.Array) -> list[int | None]:
    unit = pa.timestamp("us", tz=values.type.tz) if kinds.is_timestamp(values.type) else pa.duration("us")
    found: list[int | None] = values.cast(unit).view(pa.int64()).to_pylist()
    return found


def _scalars(field: EncodeField, column: pa.Array) -> list[Any]:
    """Values as upb takes them."""
    if kinds.is_date32(column.type):
        column = column.view(pa.int32())
    values: list[Any] = column.to_pylist()
    convert = scalar_conversion(field)
    return values if convert is None else [None if each is None else convert(each) for each in values]


def scalar_conversion(field: EncodeField) -> Callable[[Any], Any] | None:
    """Return the function from a value of Arrow to what upb takes; None where it takes the same."""
    if field.kind is Kind.ENUM:
        return lambda value: _number(field, value)
    bits = _UNSIGNED.get(field.proto_type)
    if bits is not None:
        limit = 1 << bits
        return lambda value: _unsigned(field, int(value), limit)
    return str.encode if field.lenient else None


def _unsigned(field: EncodeField, value: int, limit: int) -> int:
    if not -(limit >> 1) <= value < limit:
        raise out_of_range(field, value)
    return value % limit


def out_of_range(field: EncodeField, value: object) -> ProtobufDataError:
    """The error for a number that an unsigned field cannot hold."""
    return ProtobufDataError(
        "PROTOBUF_VALUE_OUT_OF_RANGE",
        f"{value} of the column {field.path[0]} does not fit in Protobuf {field.path[1]}",
        "to_protobuf",
        "Only what from_protobuf gives with upcast.unsigned.ints, or a signed number that wraps, can be written.",
    )


def _number(field: EncodeField, value: str | int) -> int:
    assert field.enum is not None  # noqa: S101 - the kind says so
    if isinstance(value, str):
        number = field.enum.numbers.get(value)
        if number is None:
            raise enum_error(field, value)
        return number
    if value not in field.enum.names:
        raise enum_error(field, value)
    return value


def default_of(field: EncodeField) -> Any:
    """Return what NULL is written as in a required scalar."""
    default = field.default
    return default.encode() if field.lenient and isinstance(default, str) else default
