"""Confluent's frames: magic byte, schema id or GUID, message indexes; and the comparison of schemas by field number."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import given
from hypothesis import strategies as st

from connectors.core.functions.bad_rows import BadRowError
from connectors.protobuf.confluent.frames import SchemaKey, difference, read_frames, read_prefix
from connectors.protobuf.schema.descriptors import MessageType, Schema
from connectors.protobuf.worker import Engine
from tests.support.protobuf_rig import Rig, compiled, filled, frame_prefix


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


@given(st.integers(1, 2**32 - 1), st.lists(st.integers(0, 1000), min_size=1, max_size=5), st.binary(max_size=9))
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


def test_plain_varints_as_indexes_of_old_clients_are_refused() -> None:
    old = bytes.fromhex("00 00000001 02 01 00") + b"x"
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
    assert frames.errors[0].startswith("is not a Confluent frame")
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


# --- every pair of label and type, at every depth ---------------------------------------------------------------

VALUES = {"string": "a", "bytes": b"a", "N": {"x": 1}}
NAMES = ["int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64"]
NAMES += ["bool", "float", "double", "E", "C", "string", "bytes", "N"]
LABELS = ["{} a = 1;", "optional {} a = 1;", "oneof o {{ {} a = 1; int32 b = 2; }}", "repeated {} a = 1;"]
LABELS += ["repeated {} a = 1 [packed = false];"]
KINDS = [(name, label) for name in NAMES for label in LABELS if "packed" not in label or name not in VALUES]
KINDS += [(name, "map<string, {}> a = 1;") for name in NAMES] + [("Entry", label) for label in LABELS[:4]]
PLACES = range(len(KINDS))
DEPTHS = ["{} n = 1;", "repeated {} n = 1;", "map<string, {}> n = 1;", "oneof o {{ {} n = 1; int32 b = 2; }}"]


@cache
def pairs_schema(package: str) -> Schema:
    """A schema in which M0, M1, ... hold a field of one of KINDS, and D0M0, D0M1, ... these in one of DEPTHS."""
    lines = [f"message M{place} {{ {label.format(name)} }}" for place, (name, label) in enumerate(KINDS)]
    for depth, label in enumerate(DEPTHS):
        lines += [f"message D{depth}M{place} {{ {label.format(f'M{place}')} }}" for place in PLACES]
    lines += ["message N { int32 x = 1; } message Entry { string key = 1; int32 value = 2; } enum E { A = 0; B = 1; }"]
    closed = 'syntax = "proto2"; enum C { Y = 0; Z = 1; }'.replace("enum C", f"package {package}; enum C")
    # A field of proto3 takes no enum of proto2: an edition takes both.
    text = "\n".join(lines).replace(" [packed = false]", " [features.repeated_field_encoding = EXPANDED]")
    text = text.replace("optional ", "")
    header = f'edition = "2023"; package {package}; import "other.proto"; '
    return Schema(compiled(header + text, other=closed))


def bytes_with(descriptor: MessageType, kind: tuple[str, str], depth: int | None) -> bytes:
    """A message of this kind, with 1 or what stands for it; lists have it twice."""
    name, label = kind
    value = VALUES.get(name, 1)
    content: Any = {"key": "k", "value": 1} if name == "Entry" else value
    if label.startswith("repeated"):
        content = [content] * 2
    elif label.startswith("map"):
        content = {"k": value}
    whole: Any = {"a": content}
    if depth is not None:
        whole = {"n": ([whole] * 2 if depth == 1 else {"d": whole} if depth == 2 else whole)}
    return bytes(filled(message_factory.GetMessageClass(descriptor)(), whole).SerializeToString())


def as_values(value: Any) -> Any:
    """What was written, whatever type reads it: lists of one are the one, 1 is True and "B", bytes are text."""
    match value:
        case dict():
            inner = {key: as_values(each) for key, each in value.items() if key != "b"}
            return {"k": inner["value"]} if inner.keys() == {"key", "value"} else inner
        case tuple():
            return {value[0]: as_values(value[1])}
        case list():
            inner = [as_values(each) for each in value]
            return inner[0] if len(inner) == 1 else inner
        case bytes():
            return value.decode()
    return 1 if value in ("B", "Z", True) else value


@pytest.mark.parametrize("depth", [None, 0, 1, 2, 3], ids=["root", "message", "list", "map", "oneof"])
@pytest.mark.parametrize("engine", [Engine.PYTHON, Engine.FAST])
def test_each_pair_of_label_and_type_has_the_same_value_or_a_reason(engine: Engine, depth: int | None) -> None:
    prefix = "" if depth is None else f"D{depth}"
    writers, readers = (
        [pairs_schema(package).pool.FindMessageTypeByName(f"{package}.{prefix}M{place}") for place in PLACES]
        for package in "wr"
    )
    rig = Rig(engine, pairs_schema("r").files.SerializeToString())
    rows = [bytes_with(writer, KINDS[place], depth) for place, writer in enumerate(writers)]
    own = [
        as_values(rig.raw(reader.full_name, [row]).values.to_pylist()[0])
        for reader, row in zip(readers, rows, strict=True)
    ]
    same = 0
    for theirs, reader in enumerate(readers):
        matching = [place for place, writer in enumerate(writers) if not difference(writer, reader)]
        assert theirs in matching, KINDS[theirs]
        decoded = rig.raw(reader.full_name, [rows[place] for place in matching])
        for row, (place, value) in enumerate(zip(matching, decoded.values.to_pylist(), strict=True)):
            assert row in decoded.errors or as_values(value) == own[place], (KINDS[place], KINDS[theirs])
        same += len(matching) - len(decoded.errors)
    assert same > 500


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("repeated int32 a = 1;|", "int32 a = 1;|", "is repeated and"),
        ("repeated string a = 1;|", "string a = 1;|", "is repeated and"),
        ("repeated N a = 1;|int32 x = 1;", "N a = 1;|int32 x = 1;", "is repeated and"),
        ("map<string, int32> a = 1;|", "N a = 1;|string key = 1; int32 value = 2;", "is repeated and"),
        ("N a = 1;|repeated int32 x = 1;", "N a = 1;|int32 x = 1;", "w.N.x is repeated and r.N.x"),
        ("map<string, N> a = 1;|repeated bool x = 1;", "map<string, N> a = 1;|bool x = 1;", "is repeated and"),
        ("int32 a = 1; int32 b = 2;|", "oneof o { int32 a = 1; int32 b = 2; }|", "are in one oneof"),
        (
            "oneof o { int32 a = 1; int32 b = 2; } int32 c = 3;|",
            "oneof o { int32 a = 1; int32 b = 2; int32 c = 3; }|",
            "are in one oneof",
        ),
    ],
)
def test_fields_of_other_labels_are_named(writer: str, reader: str, reason: str) -> None:
    assert reason in pair(writer, reader)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("int32 a = 1;|", "repeated int32 a = 1;|"),
        ("N a = 1;|", "repeated N a = 1;|"),
        ("optional int32 a = 1;|", "int32 a = 1;|"),
        ("int32 a = 1;|", "oneof o { int32 a = 1; int32 b = 2; }|"),
        ("oneof o { int32 a = 1; int32 b = 2; }|", "oneof o { int32 a = 1; int32 b = 2; int32 c = 3; }|"),
        ("oneof o { int32 a = 1; int32 b = 2; }|", "int32 a = 1; optional int32 b = 2;|"),
    ],
)
def test_labels_that_lose_nothing_match(writer: str, reader: str) -> None:
    assert pair(writer, reader) == ""


def test_a_zero_that_the_writer_leaves_out_is_not_the_default_that_the_reader_declares() -> None:
    implicit = Schema(compiled('syntax = "proto3"; message M { int32 a = 1; }')).find("M")
    explicit = Schema(compiled('syntax = "proto3"; message M { optional int32 a = 1; }')).find("M")
    readers = [
        Schema(compiled(f'syntax = "proto2"; message M {{ optional int32 a = 1 {default}; }}')).find("M")
        for default in ("[default = 7]", "[default = 0]", "")
    ]
    assert "declares the default 7" in difference(implicit, readers[0])
    assert [difference(implicit, reader) for reader in readers[1:]] == ["", ""]
    assert difference(explicit, readers[0]) == ""


def test_extensions_are_compared_where_they_are_columns() -> None:
    text = 'syntax = "proto2"; message M {{ extensions 100 to 200; }} extend M {{ {} e = 100; }}'
    plain, signed, listed = (Schema(compiled(text.format(kind))).find("M") for kind in EXTENSIONS)
    fields = Schema(compiled('syntax = "proto2"; message M { optional sint64 e = 100; }')).find("M")
    for writer in (signed, listed, fields):
        assert "have the number 100" in difference(writer, plain, extensions=True)
        assert difference(writer, plain) == ""
    assert difference(plain, plain, extensions=True) == ""


EXTENSIONS = ("optional int64", "optional sint64", "repeated string")
