"""Confluent's frames: magic byte, schema id or GUID, message indexes; and the comparison of schemas by field number."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.protobuf.confluent.frames import SchemaKey, difference, frame_prefix, read_frames, read_prefix
from connectors.protobuf.errors import BadRowError
from connectors.protobuf.schema.descriptors import Schema
from tests.support.protobuf_rig import compiled


@pytest.mark.parametrize(
    ("schema", "indexes", "expected"),
    [
        (1, (0,), "00 00000001 00"),
        (7, (1,), "00 00000007 02 02"),
        (258, (1, 0), "00 00000102 04 02 00"),
        (2**32 - 1, (0, 0), "00 ffffffff 04 00 00"),
        (1, (64,), "00 00000001 02 8001"),
    ],
)
def test_a_prefix_is_written_with_zig_zag_indexes(schema: int, indexes: tuple[int, ...], expected: str) -> None:
    prefix = frame_prefix(schema, indexes)
    assert prefix == bytes.fromhex(expected)
    assert read_prefix(prefix + b"payload") == (SchemaKey(schema, indexes), len(prefix))


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 1000), min_size=1, max_size=5), st.binary(max_size=9))
def test_what_is_written_is_read(schema: int, indexes: list[int], payload: bytes) -> None:
    data = frame_prefix(schema, indexes) + payload
    for batch in ([data], [data, None]):
        frames = read_frames(pa.array(batch, pa.binary()))
        assert frames.messages.to_pylist() == [payload, None][: len(batch)]
        assert frames.keys[0] == SchemaKey(schema, tuple(indexes))
        assert not frames.errors


def test_an_empty_message_in_a_frame_is_a_message() -> None:
    frames = read_frames(pa.array([bytes.fromhex("000000000100")] * 3))
    assert frames.messages.to_pylist() == [b""] * 3
    assert frames.keys == [SchemaKey(1, (0,))] * 3


def test_the_count_0_stands_for_the_first_message_and_so_does_a_list_that_says_it_at_length() -> None:
    assert read_prefix(bytes.fromhex("00 00000001 00"))[0].indexes == (0,)
    assert read_prefix(bytes.fromhex("00 00000001 02 00"))[0].indexes == (0,)


def test_deprecated_indexes_are_read_by_option_only() -> None:
    old = bytes.fromhex("00 00000001 02 01 00") + b"x"
    assert read_prefix(old, deprecated=True) == (SchemaKey(1, (1, 0)), 8)
    with pytest.raises(BadRowError, match="message index -1"):
        read_prefix(old)


def test_a_guid_stands_after_the_magic_byte_1() -> None:
    guid = bytes(range(16))
    frames = read_frames(pa.array([b"\x01" + guid + b"\x00" + b"payload"]))
    assert frames.messages.to_pylist() == [b"payload"]
    assert frames.keys == [SchemaKey(guid.hex(), (0,))]


GUIDS = [bytes(range(place, place + 16)) for place in (0, 16)]
KEY_HEADERS = {"__key_schema_id": b"\x01" + GUIDS[0] + b"\x02\x02"}
VALUE_HEADERS = {"__value_schema_id": b"\x01" + GUIDS[1]}


@pytest.mark.parametrize("is_key", [True, False])
def test_a_header_that_has_the_id_of_a_column_leaves_its_message_as_it_is(is_key: bool) -> None:
    data = pa.array([b"a", b"b", bytes.fromhex("00 00000002 00") + b"c", None])
    name = "__key_schema_id" if is_key else "__value_schema_id"
    both = KEY_HEADERS | VALUE_HEADERS
    headers = [both, {"other": b"x", name: bytes.fromhex("00 00000009")}, {"other": b"x"}, both]
    frames = read_frames(data, headers, is_key=is_key)
    assert frames.messages.to_pylist() == [b"a", b"b", b"c", None]
    first = SchemaKey(GUIDS[0].hex(), (1,)) if is_key else SchemaKey(GUIDS[1].hex(), (0,))
    assert frames.keys == [first, SchemaKey(9, (0,)), SchemaKey(2, (0,)), None]


@pytest.mark.parametrize("is_key", [True, False])
def test_the_header_of_the_other_column_is_never_taken(is_key: bool) -> None:
    other = VALUE_HEADERS if is_key else KEY_HEADERS
    frames = read_frames(pa.array([bytes.fromhex("00 00000002 00") + b"c", b"\x08\x05"]), [other, other], is_key=is_key)
    assert frames.keys == [SchemaKey(2, (0,)), None]
    assert frames.messages.to_pylist() == [b"c", None]
    assert f"isKey={not is_key}: {next(iter(other))} has its id" in frames.errors[1]


@pytest.mark.parametrize(
    "data",
    ["", "00", "0000000001", "0000000001ff", "00000000010280", "02 00000001 00", "01 00", "0000000001 01"],
)
def test_what_is_no_frame_is_a_bad_row(data: str) -> None:
    frames = read_frames(pa.array([bytes.fromhex(data), bytes.fromhex("000000000100")]))
    assert list(frames.errors) == [0]
    assert frames.errors[0].startswith("is no Confluent frame")
    assert frames.messages.to_pylist() == [None, b""]


def pair(writer: str, reader: str) -> str:
    text = 'syntax = "proto3"; package {}; message M {{ {} }} message N {{ {} }} enum E {{ A = 0; }}'
    schemas = [
        Schema(compiled(text.format(name, fields, nested))).find("M")
        for name, (fields, nested) in (("w", writer.split("|")), ("r", reader.split("|")))
    ]
    return difference(*schemas)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("int32 a = 1;|", "int64 b = 1;|"),
        ("int32 a = 1;|", "E b = 1;|"),
        ("string a = 1;|", "bytes b = 1; int32 c = 2;|"),
        ("N a = 1;|int32 x = 1;", "N b = 1;|uint64 y = 1;"),
        ("repeated int32 a = 1;|", "repeated int32 a = 1 [packed = false];|"),
        ("map<string, N> a = 1;|M b = 1;", "map<string, N> a = 1;|M b = 1;"),
    ],
)
def test_fields_match_by_number_where_their_bytes_mean_the_same(writer: str, reader: str) -> None:
    assert pair(writer, reader) == ""


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("int32 a = 1;|", "sint32 a = 1;|"),
        ("int32 a = 1;|", "string a = 1;|"),
        ("fixed32 a = 1;|", "float a = 1;|"),
        ("double a = 1;|", "fixed64 a = 1;|"),
        ("N a = 1;|", "bytes a = 1;|"),
        ("N a = 1;|int32 x = 1;", "N a = 1;|sint64 x = 1;"),
        ("map<string, int32> a = 1;|", "map<string, sint32> a = 1;|"),
    ],
)
def test_fields_that_mean_something_else_are_named(writer: str, reader: str) -> None:
    assert "have the number 1 and other types" in pair(writer, reader) or "number 2" in pair(writer, reader)
