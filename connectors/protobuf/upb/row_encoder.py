"""The encoder for a few rows: each struct becomes one dictionary, and each value of it one attribute of a message.

The other encoders work column by column, which pays with many rows only. `AdaptiveEncoder` chooses for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds
from google.protobuf.message import Message

from connectors.core.pool import Cache
from connectors.protobuf.errors import ProtobufDataError
from connectors.protobuf.schema.encode_plan import EncodeField
from connectors.protobuf.schema.plan import Kind, Shape
from connectors.protobuf.upb.declarations import wire_name
from connectors.protobuf.upb.decoder import is_zero
from connectors.protobuf.upb.encoder import (
    TYPES,
    Encoder,
    PlainEncoder,
    default_of,
    null_element,
    scalar_conversion,
    split_duration,
    split_timestamp,
)

__all__ = ["AdaptiveEncoder", "RowEncoder"]

Write = Callable[[Message, Any], None]

# Measured, with 5 to 2,000 columns: the number of columns does not move where the three encoders meet.
_MOST_BY_ROW: Final = 8
_MOST_BY_UPB: Final = 32
_MOST_BYTES: Final = 1024
"""Of a column: one row may hold very many values."""


class RowEncoder:
    """Encodes by upb, row by row.

    Args:
        plain: the reference encoder of the same call. It gets what raises, so that errors are its own.
    """

    def __init__(self, plain: PlainEncoder) -> None:
        self._plain = plain
        self._writers = Cache(TYPES)
        self._latest: tuple[pa.DataType, pa.DataType | None, Write] | None = None

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        """See `connectors.protobuf.upb.encoder.Encoder.encode`."""
        kind = structs.type

        def make() -> tuple[pa.DataType | None, Write]:
            plan = self._plain.plan(kind)
            row_type = _row_type(kind)
            return None if row_type is kind else row_type, _message(plan)

        latest = self._latest
        if latest is None or latest[0] != kind:  # to compare a type is cheaper than to hash it
            self._latest = latest = kind, *self._writers.get(kind, make)
        _, row_type, write = latest
        try:
            rows = (structs if row_type is None else structs.view(row_type)).to_pylist()
            return pa.array([None if row is None else self._bytes(write, row) for row in rows], pa.binary())
        except (ProtobufDataError, ValueError, pa.ArrowNotImplementedError):  # ValueError: two columns of one name
            return self._plain.encode(structs)

    def _bytes(self, write: Write, row: dict[str, Any]) -> bytes | None:
        message = self._plain.message()
        write(message, row)
        return self._plain.bytes_of(message)


def _row_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with times as numbers, since Python has none after the year 9999; the same object without any."""
    if not kinds.is_nested(kind):
        if not kinds.is_temporal(kind):
            return kind
        return pa.int32() if kinds.is_date32(kind) else pa.int64()
    if kinds.is_struct(kind):
        made = [(field, old, _row_type(old)) for field, old in ((field, field.type) for field in kind)]
        if all(new is old for _, old, new in made):
            return kind
        return pa.struct([field if new is old else field.with_type(new) for field, old, new in made])
    if kinds.is_map(kind):
        return pa.map_(_row_type(kind.key_type), _row_type(kind.item_type))
    return pa.list_(_row_type(kind.value_type)) if kinds.is_list(kind) else kind


def _message(fields: Sequence[EncodeField]) -> Write:
    """Return the function that writes a row to a message, column after column: of a oneof the last one stays."""
    parts = [(field.column, _field(field)) for field in fields if field.kind is not Kind.EMPTY]

    def write(message: Message, row: dict[str, Any]) -> None:
        for name, part in parts:
            part(message, row[name])

    return write


def _field(field: EncodeField) -> Write:
    """Return the function that sets a field of a message; the value may be None."""
    if field.shape is Shape.MAP:
        return _map(field)
    if field.shape is Shape.REPEATED:
        return _list(field)
    if field.kind in {Kind.SCALAR, Kind.ENUM}:
        return _scalar(field)
    name, fill = wire_name(field.number), _filling(field)

    def write(message: Message, value: Any) -> None:
        if value is not None:
            inner = getattr(message, name)
            inner.SetInParent()
            fill(inner, value)

    return write


def _scalar(field: EncodeField) -> Write:
    name, convert = wire_name(field.number), scalar_conversion(field)
    absent = default_of(field) if field.required else None
    zero_is_absent = not field.presence

    def write(message: Message, value: Any) -> None:
        if value is None:
            if absent is not None:
                setattr(message, name, absent)
            return
        if convert is not None:
            value = convert(value)
        if not (zero_is_absent and not value and is_zero(value)):
            setattr(message, name, value)

    return write


def _list(field: EncodeField) -> Write:
    name = wire_name(field.number)
    if field.kind in {Kind.SCALAR, Kind.ENUM}:
        convert = scalar_conversion(field)

        def extend(message: Message, values: list[Any] | None) -> None:
            if values:
                if None in values:
                    raise null_element(field)
                getattr(message, name).extend(values if convert is None else map(convert, values))

        return extend
    fill = _filling(field)

    def add(message: Message, values: list[Any] | None) -> None:
        for value in values or ():
            if value is None:
                raise null_element(field)
            fill(getattr(message, name).add(), value)

    return add


def _map(field: EncodeField) -> Write:
    name = wire_name(field.number)
    key, item = (_part(part) for part in field.children)

    def write(message: Message, entries: list[tuple[Any, Any]] | None) -> None:
        for entry in entries or ():
            made = getattr(message, name).add()
            key(made, entry[0])
            item(made, entry[1])

    return write


def _part(field: EncodeField) -> Write:
    """Return the function that sets key or value of an entry, which are always written; NULL is the default."""
    name = wire_name(field.number)
    if field.kind in {Kind.SCALAR, Kind.ENUM}:
        convert = scalar_conversion(field)

        def set_scalar(entry: Message, value: Any) -> None:
            if value is None:
                value = getattr(entry, name)
            elif convert is not None:
                value = convert(value)
            setattr(entry, name, value)

        return set_scalar
    fill = _filling(field)

    def set_message(entry: Message, value: Any) -> None:
        inner = getattr(entry, name)
        inner.SetInParent()
        if value is not None:
            fill(inner, value)

    return set_message


def _filling(field: EncodeField) -> Write:
    """Return the function that fills a message that is there already; the value is not None."""
    if field.kind is Kind.MESSAGE:
        return _message(field.children)
    if field.kind is Kind.WRAPPER:
        return _scalar(field.children[0])
    if field.kind is Kind.EMPTY:
        return lambda message, value: None  # noqa: ARG005 - nothing is written
    split = split_timestamp if field.kind is Kind.TIMESTAMP else split_duration
    first, second = (wire_name(part.number) for part in field.children[:2])

    def write(message: Message, micros: int) -> None:
        seconds, nanos = split(micros)
        if seconds:
            setattr(message, first, seconds)
        if nanos:
            setattr(message, second, nanos)

    return write


class AdaptiveEncoder:
    """Encodes each batch by the encoder that is the fastest for its size.

    Args:
        plain: the reference encoder of a call.
        columns: the encoder for many rows.
    """

    def __init__(self, plain: PlainEncoder, columns: Encoder) -> None:
        self._few = RowEncoder(plain)
        self._plain = plain
        self._many = columns
        self._planned = False

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        """See `connectors.protobuf.upb.encoder.Encoder.encode`."""
        return self.chosen(structs).encode(structs)

    def chosen(self, structs: pa.StructArray) -> Encoder:
        """Return the encoder for a batch."""
        if len(structs) <= _MOST_BY_UPB and structs.nbytes <= _MOST_BYTES * structs.type.num_fields:
            if len(structs) <= _MOST_BY_ROW and self._planned:
                return self._few
            self._planned = True  # the first batch waits for the plan; what writes rows is made for the next one
            return self._plain
        return self._many
