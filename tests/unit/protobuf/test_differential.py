"""The codecs against each other, and against protobuf's own view of a message, on generated descriptors and bytes."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.protobuf.ptars.decoder import PtarsDecoder
from connectors.protobuf.schema.descriptors import is_repeated
from connectors.protobuf.worker import Engine
from tests.support.protobuf_generated import descriptor_sets, fill, mixed_rows
from tests.support.protobuf_rig import Rig, sound

F = FieldDescriptor
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OPTIONS: list[dict[str, str]] = [
    {},
    {"emit.default.values": "true", "upcast.unsigned.ints": "true"},
    {"enums.as.ints": "true"},
]
UNWRAP = {"unwrap.primitive.wrapper.types": "true"}


def same(left: Any, right: Any) -> bool:
    """Equal, and -0.0 is not 0.0, and a NaN is itself."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) and type(left) is type(right)


def values(array: pa.Array) -> list[Any]:
    """The values of an array, times as microseconds: Python has none after the year 9999."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        found: list[Any] = array.view(pa.int64()).to_pylist()
        return found
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        columns = [values(array.field(index)) for index in range(kind.num_fields)]
        rows = zip(*columns, strict=True) if columns else ((),) * len(array)
        return [
            dict(zip(kind.names, row, strict=True)) if known else None for known, row in zip(valid, rows, strict=True)
        ]
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        inner = (
            values(array.values)
            if pa.types.is_list(kind)
            else [*zip(values(array.keys), values(array.items), strict=True)]
        )
        bounds = array.offsets.to_pylist()
        return [inner[bounds[row] : bounds[row + 1]] if known else None for row, known in enumerate(valid)]
    plain: list[Any] = array.to_pylist()
    return plain


def message_type(rig: Rig) -> type[Message]:
    return message_factory.GetMessageClass(rig.schema.find("M0"))


@settings(max_examples=60)
@given(st.data())
@pytest.mark.parametrize("options", [*OPTIONS, UNWRAP], ids=["plain", "emit-upcast", "ints", "unwrap"])
def test_all_codecs_agree_on_messages_and_on_garbage(options: dict[str, str], data: st.DataObject) -> None:
    options = options | {"recursive.fields.max.depth": data.draw(st.sampled_from(["1", "2"]))}
    found = data.draw(descriptor_sets(dropping=True, recursive=True, wrappers=True))
    plain, fast = Rig(Engine.PYTHON, found), Rig(Engine.FAST, found)
    rows = data.draw(mixed_rows(plain.schema.find("M0")))
    expected = plain.raw("M0", rows, options)
    seen = fast.raw("M0", rows, options)
    assert isinstance(fast.call("M0", options).decoder, PtarsDecoder)
    assert seen.errors == expected.errors
    assert seen.values.type == expected.values.type
    assert same(values(seen.values), values(expected.values))


def columns(kind: Descriptor, message: Message, *, emit: bool) -> dict[str, Any]:
    """The columns of a message; an empty message is none."""
    kept = [each for each in kind.fields if each.message_type is None or each.message_type.name != "Nothing"]
    return {each.name: view(each, message, emit=emit) for each in kept}


def view(field: FieldDescriptor, message: Message, *, emit: bool) -> Any:
    """What a field of a message of protobuf's own is in Spark, written without a look at the codecs."""
    value = getattr(message, field.name)
    if is_repeated(field):
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name
            key, item = inner["key"], inner["value"]
            return {one(key, each, emit=emit): one(item, value[each], emit=emit) for each in value}
        return [one(field, each, emit=emit) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return one(field, value, emit=emit) if field.message_type is None and field.has_default_value else None
    zero = not value and not (isinstance(value, float) and math.copysign(1, value) < 0)
    if not field.has_presence and not emit and zero:
        return None
    return one(field, value, emit=emit)


def one(field: FieldDescriptor, value: Any, *, emit: bool = False) -> Any:  # noqa: PLR0911 - one for each kind
    match field.type:
        case F.TYPE_MESSAGE if field.message_type.name == "Timestamp":
            return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        case F.TYPE_MESSAGE if field.message_type.name == "Duration":
            return timedelta(seconds=value.seconds, microseconds=int(value.nanos / 1000))
        case F.TYPE_MESSAGE:
            return columns(field.message_type, value, emit=emit)
        case F.TYPE_ENUM:
            return field.enum_type.values_by_number[value].name
        case F.TYPE_UINT32 if emit:
            return value
        case F.TYPE_UINT64 if emit:
            return Decimal(value)
        case F.TYPE_UINT32 | F.TYPE_FIXED32:
            return int(np.uint32(value).view(np.int32))
        case F.TYPE_UINT64 | F.TYPE_FIXED64:
            return int(np.uint64(value).view(np.int64))
    return value


def as_dicts(kind: pa.DataType, value: Any) -> Any:
    """A row with its maps, which Arrow gives as pairs, as dictionaries."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {as_dicts(kind.key_type, key): as_dicts(kind.item_type, each) for key, each in value}
    if pa.types.is_list(kind):
        return [as_dicts(kind.value_type, each) for each in value]
    if pa.types.is_struct(kind):
        return {each.name: as_dicts(each.type, value[each.name]) for each in kind}
    return value


@settings(max_examples=40)
@given(st.data())
@pytest.mark.parametrize("options", OPTIONS[:2], ids=["plain", "emit-upcast"])
@pytest.mark.parametrize("engine", [Engine.PYTHON, Engine.AUTO, Engine.FAST])
def test_a_codec_agrees_with_protobuf_s_own_view(engine: Engine, options: dict[str, str], data: st.DataObject) -> None:
    rig = Rig(engine, data.draw(descriptor_sets(dropping=True)))
    kind = message_type(rig)
    messages = [kind() for _ in range(data.draw(st.integers(2, 5)))]
    for message in messages:
        data.draw(st.composite(lambda draw: fill(draw, message))())  # noqa: B023 - drawn at once
    texts = [each.SerializeToString() for each in messages]
    # One after the other they are one message, in which several members of a oneof may have come.
    texts.append(texts[0] + texts[1])
    messages.append(kind.FromString(texts[-1]))
    decoded = rig.raw("M0", texts, options)
    assert not decoded.errors
    rows = [as_dicts(decoded.values.type, row) for row in decoded.values.to_pylist()]
    emit = bool(options)
    expected = [columns(kind.DESCRIPTOR, message, emit=emit) for message in messages]
    assert same(rows, expected)


@settings(max_examples=40)
@given(st.data())
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "emit-upcast", "ints"])
def test_all_encoders_give_the_same_bytes_and_the_message_back(options: dict[str, str], data: st.DataObject) -> None:
    found = data.draw(descriptor_sets())
    plain, fast = Rig(Engine.PYTHON, found), Rig(Engine.FAST, found)
    kind = message_type(plain)
    messages: list[Message | None] = []
    for _ in range(data.draw(st.integers(1, 4))):
        message = kind()
        data.draw(st.composite(lambda draw: fill(draw, message))())  # noqa: B023 - drawn at once
        messages.append(message if data.draw(st.integers(0, 5)) else None)
    texts = [None if each is None else each.SerializeToString() for each in messages]
    structs = plain.raw("M0", texts, options).values
    sound(structs)
    rows, struct = structs.to_pylist(), structs.type
    encoded = fast.encode("M0", rows, struct)
    expected = plain.encode("M0", rows, struct)
    assert encoded == expected, (encoded, expected)
    assert Rig(Engine.AUTO, found).encode("M0", rows, struct) == expected
    # Decoded again, it is the same; a declared default of proto2, decoded and encoded, is in the message then.
    assert same(values(plain.raw("M0", encoded, options).values), values(structs))
    if b"proto3" in found:
        assert [None if each is None else kind.FromString(each) for each in encoded] == messages
