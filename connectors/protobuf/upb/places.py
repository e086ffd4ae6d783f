"""Where a message is bad: the field and its first byte, looked for in the few messages that cannot be read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.message import DecodeError

from connectors.core.functions.bad_rows import BadRowError
from connectors.protobuf.schema.descriptors import FieldType, is_repeated
from connectors.protobuf.upb.declarations import WIRE_GROUP, WireForm

_LEVELS: Final = 100  # as deep as upb goes
_FIELDS: Final = 10_000  # of each message, which may have millions
_VARINT, _LENGTH, _END_GROUP = 0, 2, 4  # wire types
_FIXED: Final = {1: 8, 5: 4}  # bytes by wire type
_VARINT_BITS: Final = 70
_MORE: Final = 128


class _Field(NamedTuple):
    """A field on the wire, from its tag to its end, which may be behind that of the message."""

    begin: int
    number: int
    value: int
    end: int


def location(data: bytes, wire: WireForm, read: Callable[[bytes], object]) -> str:
    """Return where a message is bad; empty where that is in no field.

    Args:
        data: the message.
        wire: the declarations of its fields.
        read: reads the first fields of the message without the rest; raises where that cannot be done.
    """
    kind, path, shown = wire.root, "", ""
    begin, end = 0, len(data)
    for _ in range(_LEVELS):
        fields = _fields(data, begin, end)
        place = bisect_left(fields, True, key=lambda field: _fails(read, data[begin : min(field.end, end)]))
        if place == len(fields):
            break
        bad = fields[place]
        field = wire.declared(kind, bad.number)
        if field is None:
            what = f"number {bad.number}, which is not declared" if bad.number else "what has no field number"
            return f" (in {path}{what}, from byte {bad.begin} of {len(data)})"
        path += field.name
        if is_repeated(field):
            path += f"[{sum(other.number == bad.number for other in fields[:place])}]"
        shown = f" (in {path}, a value of the type {_type_name(field)} from byte {bad.begin} of {len(data)})"
        inner = kind.DESCRIPTOR.fields_by_number[bad.number]
        if inner.type != inner.TYPE_MESSAGE or data[bad.begin] & 7 != _LENGTH:
            break
        path, kind = f"{path}.", message_factory.GetMessageClass(inner.message_type)  # type: ignore[arg-type]  # upb's
        begin, end, read = bad.value, min(bad.end, end), kind.FromString
    return shown


def _fails(read: Callable[[bytes], object], data: bytes) -> bool:
    try:
        read(data)
    except (BadRowError, DecodeError):
        return True
    return False


def _fields(data: bytes, place: int, end: int) -> list[_Field]:
    fields: list[_Field] = []
    while place < end and len(fields) < _FIELDS:
        fields.append(_field(data, place))
        place = fields[-1].end
    return fields


def _field(data: bytes, begin: int) -> _Field:
    """Return the field that begins there; one that is cut off, or of no wire type, ends with the data."""
    number, value, end = 0, begin, len(data)
    with suppress(IndexError, KeyError, ValueError, RecursionError):
        tag, value = _varint(data, begin)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            end = _varint(data, value)[1]
        elif wire_type == _LENGTH:
            length, value = _varint(data, value)
            end = value + length
        elif wire_type == WIRE_GROUP:
            after = value
            while _varint(data, after)[0] & 7 != _END_GROUP:
                after = _field(data, after).end
            end = _varint(data, after)[1]
        else:
            end = value + _FIXED[wire_type]
    return _Field(begin, number, value, end)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        byte = data[place]
        value, place = value | (byte & ~_MORE) << shift, place + 1
        if byte < _MORE:
            return value, place
    raise ValueError


def _type_name(field: FieldType) -> str:
    if field.message_type is not None:
        return str(field.message_type.full_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
