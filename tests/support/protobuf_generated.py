"""Generated descriptors and bytes for the differential tests of connectors.protobuf."""

from __future__ import annotations

import struct
from typing import Any, Final

from google.protobuf import wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import Message
from hypothesis import strategies as st

from connectors.protobuf.schema.descriptors import is_repeated, is_required

F: Final = FieldDescriptor
SCALARS: Final = (
    F.TYPE_DOUBLE,
    F.TYPE_FLOAT,
    F.TYPE_INT64,
    F.TYPE_UINT64,
    F.TYPE_INT32,
    F.TYPE_FIXED64,
    F.TYPE_FIXED32,
    F.TYPE_BOOL,
    F.TYPE_STRING,
    F.TYPE_BYTES,
    F.TYPE_UINT32,
    F.TYPE_SFIXED32,
    F.TYPE_SFIXED64,
    F.TYPE_SINT32,
    F.TYPE_SINT64,
)
KEYS: Final = tuple(each for each in SCALARS if each not in {F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_BYTES})
NUMBERS: Final = (*range(1, 17), 127, 2047, 2048, 40000)
WIRE: Final = {
    F.TYPE_DOUBLE: 1,
    F.TYPE_FIXED64: 1,
    F.TYPE_SFIXED64: 1,
    F.TYPE_FLOAT: 5,
    F.TYPE_FIXED32: 5,
    F.TYPE_SFIXED32: 5,
    F.TYPE_STRING: 2,
    F.TYPE_BYTES: 2,
    F.TYPE_MESSAGE: 2,
}
WRAPPERS: Final = tuple(f".{each.full_name}" for each in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())
TIMES: Final = ("Timestamp", "Duration")
_MAP: Final = "map"


def _enum(file: FileDescriptorProto) -> None:
    enum = file.enum_type.add(name="E")
    for name, number in (("ZERO", 0), ("ONE", 1), ("NINE", 9), ("MINUS", -2)):
        enum.value.add(name=name, number=number)


@st.composite
def descriptor_sets(
    draw: st.DrawFn, *, dropping: bool = False, recursive: bool = False, wrappers: bool = False
) -> bytes:
    """A set of one file with messages M0 to M2, of which each may hold those after it; M0 is the root.

    Args:
        draw: of Hypothesis.
        dropping: whether messages may hold fields that are no columns, because their message is empty.
        recursive: whether they may hold themselves.
        wrappers: whether they may hold Google's wrappers.
    """
    proto3 = draw(st.booleans())
    file = FileDescriptorProto(name="generated.proto", syntax="proto3" if proto3 else "proto2")
    _enum(file)
    for name in TIMES:
        time = file.message_type.add(name=name)
        time.field.add(name="seconds", number=1, type=F.TYPE_INT64, label=1)
        time.field.add(name="nanos", number=2, type=F.TYPE_INT32, label=1)
    file.message_type.add(name="Nothing")
    count = draw(st.integers(1, 3))
    for index in range(count):
        message = file.message_type.add(name=f"M{index}")
        numbers = draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=6, unique=True))
        below = [f".M{other}" for other in range(index + 1, count)]
        others = [*below, *below, *(f".{name}" for name in TIMES), *(WRAPPERS if wrappers else ())]
        for number in numbers:
            _field(draw, message, number, others, proto3=proto3)
        gone = [*[".Nothing"] * dropping, *[f".M{index}"] * recursive]
        if gone and draw(st.booleans()):
            _dropped_field(draw, message, draw(st.sampled_from(gone)), proto3=proto3)
        _tidy_oneofs(message)
    if not wrappers:
        return FileDescriptorSet(file=[file]).SerializeToString()
    file.dependency.append(wrappers_pb2.DESCRIPTOR.name)
    found = FileDescriptorSet(file=[file])
    wrappers_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    return found.SerializeToString()


def _field(draw: st.DrawFn, message: DescriptorProto, number: int, others: list[str], *, proto3: bool) -> None:
    kinds: list[Any] = [*SCALARS, F.TYPE_ENUM, _MAP, *[F.TYPE_MESSAGE] * 4]
    kind = draw(st.sampled_from(kinds))
    made = message.field.add(name=f"x{number}", number=number)
    if kind == _MAP:
        entry = message.nested_type.add(name=f"X{number}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=draw(st.sampled_from(KEYS)), label=1)
        value = entry.field.add(name="value", number=2, label=1)
        _typed(draw, value, draw(st.sampled_from([each for each in kinds if each != _MAP])), others)
        made.type, made.label, made.type_name = F.TYPE_MESSAGE, 3, f".{message.name}.{entry.name}"
        return
    _typed(draw, made, kind, others)
    shape = draw(st.sampled_from(["plain", "plain", "repeated", "optional", "oneof"]))
    made.label = 3 if shape == "repeated" else 1
    if shape == "repeated" and WIRE.get(kind, 0) != 2:
        made.options.packed = draw(st.booleans())
    if shape == "optional" and proto3:
        made.proto3_optional = True
    if not proto3 and shape in {"plain", "optional"}:
        _proto2(draw, made)
    if shape == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        made.oneof_index = 0


def _dropped_field(draw: st.DrawFn, message: DescriptorProto, kind: str, *, proto3: bool) -> None:
    """A field that may be no column: most often in a oneof with a scalar, else alone, sometimes required."""
    made = message.field.add(name="gone", number=100, type=F.TYPE_MESSAGE, type_name=kind, label=1)
    if draw(st.integers(0, 3)) == 0:
        made.label = draw(st.sampled_from([1, 3] if proto3 else [1, 2, 3]))
        return
    other = message.field.add(name="other", number=101, type=draw(st.sampled_from(SCALARS)), label=1)
    made.oneof_index = other.oneof_index = len(message.oneof_decl)
    message.oneof_decl.add(name="either")


def _proto2(draw: st.DrawFn, made: FieldDescriptorProto) -> None:
    """Sometimes a required field, or a declared default."""
    if draw(st.integers(0, 7)) == 0:
        made.label = 2
    elif draw(st.booleans()):
        defaults = {
            F.TYPE_BOOL: "true",
            F.TYPE_STRING: "dé",
            F.TYPE_BYTES: "d",
            F.TYPE_ENUM: "NINE",
            F.TYPE_MESSAGE: "",
        }
        made.default_value = defaults.get(made.type, "7")
        if made.type == F.TYPE_MESSAGE:
            made.ClearField("default_value")


def _typed(draw: st.DrawFn, made: FieldDescriptorProto, kind: int, others: list[str]) -> None:
    made.type = kind
    if kind == F.TYPE_ENUM:
        made.type_name = ".E"
    if kind == F.TYPE_MESSAGE:
        made.type_name = draw(st.sampled_from(others))


def _tidy_oneofs(message: DescriptorProto) -> None:
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


# --- bytes -------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def tagged(number: int, wire: int, payload: bytes) -> bytes:
    return varint(number << 3 | wire) + payload


_INTS: Final = st.one_of(
    st.sampled_from([0, 1, 9, 127, 128, -1, -2, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**63)]),
    st.integers(-(2**63), 2**64 - 1),
)
_TEXT: Final = st.sampled_from(["", "a", "zażółć", "🙂", "x" * 130])


def payload(draw: st.DrawFn, wire: int, *, loose: bool) -> bytes:
    """Some bytes of a wire type; loose ones may be damaged."""
    match wire:
        case 0:
            made = varint(draw(_INTS))
            return made[:-1] + bytes([made[-1] | 128]) + b"\0" if loose and draw(st.integers(0, 9)) == 0 else made
        case 1:
            return struct.pack("<d", draw(st.sampled_from([0.0, -0.0, 1.5, float("inf"), 1e300])))
        case 5:
            return struct.pack("<f", draw(st.sampled_from([0.0, -0.0, 1.5, float("-inf")])))
        case 2:
            data = draw(st.one_of(_TEXT.map(str.encode), st.binary(max_size=6) if loose else _TEXT.map(str.encode)))
            return varint(len(data)) + data
        case 3:
            return tagged(draw(st.sampled_from(NUMBERS)), 0, b"\1") if draw(st.booleans()) else b""
    return b""


def soup(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> bytes:
    """Fields of a message in any order, often right, sometimes of another wire type, unknown, twice, or damaged."""
    out = b""
    for _ in range(draw(st.integers(0, 6 - depth))):
        twist = draw(st.integers(0, 19)) if descriptor.fields else 1
        field = draw(st.sampled_from(list(descriptor.fields) or [None]))
        if twist == 0:
            wire = draw(st.sampled_from([0, 1, 2, 3, 4, 5, 5, 6, 7]))
            out += tagged(field.number, wire, payload(draw, wire, loose=True))
            continue
        if twist == 1 and draw(st.booleans()):
            inner = tagged(draw(st.sampled_from([0, 1, 99])), 0, b"\1")
            out += tagged(98, 3, tagged(1, 3, inner + tagged(1, 4, b"")) + tagged(98, 4, b""))
            continue
        if twist == 1:
            wire = draw(st.sampled_from([0, 1, 2, 5]))
            out += tagged(draw(st.sampled_from([*NUMBERS, 99, 70000, 0])), wire, payload(draw, wire, loose=True))
            continue
        out += right(draw, field, depth, loose=twist == 2)
    return out


def right(draw: st.DrawFn, field: FieldDescriptor, depth: int, *, loose: bool = False) -> bytes:
    """A field with its own wire type; a list may be packed or not."""
    if field.message_type is not None:
        data = soup(draw, field.message_type, depth + 1)
        return tagged(field.number, 2, varint(len(data)) + data)
    wire = WIRE.get(field.type, 0)
    if is_repeated(field) and wire != 2 and draw(st.booleans()):
        data = b"".join(payload(draw, wire, loose=loose) for _ in range(draw(st.integers(0, 3))))
        data += b"\x01" if loose and draw(st.booleans()) else b""
        return tagged(field.number, 2, varint(len(data)) + data)
    return tagged(field.number, wire, payload(draw, wire, loose=loose))


@st.composite
def mixed_rows(draw: st.DrawFn, descriptor: Descriptor) -> list[bytes | None]:
    """A batch: soups, damaged soups, random bytes, and NULL."""
    rows: list[bytes | None] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.integers(0, 9))
        if kind == 0:
            rows.append(None)
        elif kind == 1:
            rows.append(draw(st.binary(max_size=12)))
        else:
            data = soup(draw, descriptor)
            if kind == 2 and data:
                place = draw(st.integers(0, len(data) - 1))
                data = data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + draw(st.integers(0, 2)) :]
            rows.append(data)
    return rows


def _fill_time(draw: st.DrawFn, message: Message) -> None:
    """Whole microseconds, so that they come back; a Duration's parts have one sign."""
    seconds, micros = draw(st.sampled_from([0, 1, -1, 1_700_000_000])), draw(st.sampled_from([0, 1, 999_999]))
    backwards = message.DESCRIPTOR.name == "Duration" and seconds < 0
    for name, value in (("seconds", seconds), ("nanos", -micros * 1000 if backwards else micros * 1000)):
        if value:
            setattr(message, name, value)


def fill(draw: st.DrawFn, message: Message, depth: int = 0) -> None:  # noqa: C901 - one branch for each shape
    """Set some fields of a message of protobuf's own, to values that every reader knows."""
    if message.DESCRIPTOR.name in TIMES:
        _fill_time(draw, message)
        return
    for field in message.DESCRIPTOR.fields:
        if draw(st.integers(0, 2)) == 0 and not is_required(field):
            continue
        owner = getattr(message, field.name)
        entry = field.message_type if is_repeated(field) and field.message_type is not None else None
        if entry is not None and entry.GetOptions().map_entry:
            for _ in range(draw(st.integers(0, 2))):
                key = value_of(draw, entry.fields_by_name["key"])
                if entry.fields_by_name["value"].message_type is not None:
                    fill(draw, owner[key], depth + 1)
                else:
                    owner[key] = value_of(draw, entry.fields_by_name["value"])
        elif is_repeated(field) and field.message_type is not None:
            for _ in range(draw(st.integers(0, 2))):
                fill(draw, owner.add(), depth + 1)
        elif is_repeated(field):
            owner.extend(value_of(draw, field) for _ in range(draw(st.integers(0, 3))))
        elif field.message_type is not None:
            owner.SetInParent()
            fill(draw, owner, depth + 1)
        else:
            setattr(message, field.name, value_of(draw, field))


def value_of(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    """A value of a scalar field."""
    if field.type == F.TYPE_ENUM:
        return draw(st.sampled_from([0, 1, 9, -2]))
    if field.type == F.TYPE_BOOL:
        return draw(st.booleans())
    if field.type == F.TYPE_STRING:
        return draw(_TEXT)
    if field.type == F.TYPE_BYTES:
        return draw(st.binary(max_size=4))
    if field.type in {F.TYPE_FLOAT, F.TYPE_DOUBLE}:
        return draw(st.sampled_from([0.0, -0.0, 1.5, -2.25]))
    bits = 32 if field.type in {F.TYPE_INT32, F.TYPE_UINT32, F.TYPE_SINT32, F.TYPE_FIXED32, F.TYPE_SFIXED32} else 64
    unsigned = field.type in {F.TYPE_UINT32, F.TYPE_UINT64, F.TYPE_FIXED32, F.TYPE_FIXED64}
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return draw(st.one_of(st.sampled_from([0, 1, low, high]), st.integers(low, high)))
