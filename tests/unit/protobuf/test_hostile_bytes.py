"""Messages and descriptor sets that were made to do harm, and text that is no text: the same in both engines."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from connectors.protobuf.errors import ProtobufAnalysisError
from connectors.protobuf.schema.descriptors import Schema
from tests.support.protobuf_rig import Rig, compiled

DEEP = 150_000
START, END = b"\x7b", b"\x7c"  # of a group with the number 15, which no message here declares


@pytest.mark.parametrize("data", [START * DEEP, START * DEEP + END * DEEP], ids=["open", "closed"])
def test_groups_nested_deeper_than_the_stack_are_a_bad_row_and_not_the_end_of_the_process(
    data: bytes, rig: Rig
) -> None:
    seen = rig.raw("Basic", [b"\x08\x01", data, None, b"\x08\x02"])
    assert list(seen.errors) == [1]
    assert [row and row["id"] for row in seen.values.to_pylist()] == [1, None, None, 2]


def test_many_groups_side_by_side_are_read_over(rig: Rig) -> None:
    assert rig.row("Basic", b"\x08\x01" + (START + END) * 20_000)["id"] == 1


def test_an_any_nested_some_hundred_times_is_a_bad_row(rig: Rig) -> None:
    kind = rig.type("HoldsAny")
    message = kind(name="innermost")
    for _ in range(400):
        message = kind(details={"type_url": "type.googleapis.com/behaviours.HoldsAny", "value": bytes_of(message)})
    seen = rig.raw("HoldsAny", [bytes_of(message), b""], {"convert.any.fields.to.json": "true"})
    assert list(seen.errors) == [0]
    assert "Any of the type 'type.googleapis.com/behaviours.HoldsAny' cannot be printed" in seen.errors[0]


PACKED = """syntax = "proto3"; import "google/protobuf/any.proto"; message Inner {{ int32 some_number = 1; }}
message P {{ {type} {name} = 1; Inner child = 2 [json_name = "other"]; map<string, P> named = 3; }}
message M {{ google.protobuf.Any any = 1; P direct = 2; }}"""


@pytest.mark.parametrize("name", ["DESCRIPTOR", "ListFields", "ParseFromString", "__class__"])
@pytest.mark.parametrize(
    ("kind", "value", "text"), [("int32", 5, "5"), ("Inner", {"some_number": 5}, '{"some_number":5}')]
)
def test_an_any_whose_field_has_the_name_of_a_method_is_printed(
    name: str, kind: str, value: object, text: str, rig: Rig
) -> None:
    rig = rig.of(compiled(PACKED.format(name=name, type=kind)))
    packed = rig.type("P")(**{name: value, "child": {"some_number": 1}})
    packed.named["k"].child.some_number = 2
    message = rig.type("M")(any={"type_url": "type.googleapis.com/P", "value": bytes_of(packed)})
    options = {"convert.any.fields.to.json": "true", "recursive.fields.max.depth": "1"}
    seen = rig.raw("M", [bytes_of(message), b""], options)
    assert not seen.errors
    fields = f'"{name}":{text},"child":{{"some_number":1}},"named":{{"k":{{"child":{{"some_number":2}}}}}}'
    assert seen.values.to_pylist()[0]["any"] == f'{{"@type":"type.googleapis.com/P",{fields}}}'


ANYS = """syntax = "{0}"; package google.protobuf; message Any {{ {1} type_url = 1; {2} bytes value = 2; }}"""
USES = 'syntax = "proto3"; import "any.proto"; message P { int32 n = 1; } message M { google.protobuf.Any any = 1; }'


@pytest.mark.parametrize(
    "anys",
    [
        ANYS.format("proto2", "optional bytes", "optional"),
        ANYS.format("proto3", "repeated string", "repeated"),
        ANYS.format("proto3", "int64", ""),
    ],
    ids=["proto2", "lists", "number"],
)
@pytest.mark.parametrize(
    "data", ["0a0a 0a01ff 12050a01500801", "0a04 08051200", "0a00", "0a06 0a0150 120108", "0a0308ff01"]
)
def test_no_any_of_any_form_ends_a_permissive_query(anys: str, data: str, rig: Rig) -> None:
    rig = rig.of(compiled(USES, any=anys))
    message = bytes.fromhex(data)
    options = {"convert.any.fields.to.json": "true", "mode": "PERMISSIVE", "on.error": "column"}
    [bad, good] = rig.rows("M", [message, b""], options)
    assert (bad["value"] is None) == (bad["error"] is not None)
    assert good == {"value": {"any": None}, "error": None}


def bytes_of(message: object) -> bytes:
    data: bytes = message.SerializeToString()  # type: ignore[attr-defined]
    return data


TEXTS = 'syntax = "proto2"; {} message M {{ optional string text = 1; map<string, string> texts = 2; }}'
BAD_TEXT, BAD_KEY, BAD_VALUE = (bytes.fromhex(each) for each in ("0a01ff", "12060a01ff120161", "12060a0161 1201ff"))


def test_maps_of_proto2_hold_nothing_but_utf_8(rig: Rig) -> None:
    seen = rig.of(compiled(TEXTS.format(""))).raw("M", [BAD_TEXT, BAD_KEY, BAD_VALUE])
    assert sorted(seen.errors) == [1, 2]
    assert seen.values.to_pylist()[0] == {"text": "\ufffd", "texts": []}


def test_a_file_with_java_string_check_utf8_holds_nothing_but_utf_8(rig: Rig) -> None:
    seen = rig.of(compiled(TEXTS.format("option java_string_check_utf8 = true;"))).raw("M", [BAD_TEXT, b"\x0a\x01a"])
    assert list(seen.errors) == [0]
    assert seen.values.to_pylist()[1] == {"text": "a", "texts": []}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # As new String(bytes, UTF_8) of OpenJDK has it.
        ("eda080", "\ufffd"),
        ("41eda08042", "A\ufffdB"),
        ("edbfbf", "\ufffd"),
        ("eda0bdedb880", "\ufffd\ufffd"),
        ("eda0", "\ufffd"),
        ("eda041", "\ufffdA"),
        ("ed9fbf", "\ud7ff"),
        ("ed", "\ufffd"),
        ("e282eda080", "\ufffd\ufffd"),
        ("f0808080", "\ufffd\ufffd\ufffd\ufffd"),
    ],
)
def test_surrogates_in_lenient_text_are_as_many_replacements_as_in_java(data: str, expected: str, rig: Rig) -> None:
    text = bytes.fromhex(data)
    assert rig.of("behaviours2").row("Plain", b"\x12" + bytes([len(text)]) + text)["text"] == expected


LENGTHS = """syntax = "proto3"; message N { repeated int32 r = 1; string s = 2; }
message M { N one = 1; int32 x = 2; repeated N many = 3; map<string, N> named = 4; }"""
WRONG_TYPE = b"\x12\x00"  # x as bytes
KEY = b"\x0a\x01k"


def short(length: int) -> bytes:
    """An N of so many bytes, which has one more if it is written in the usual way, with its number packed."""
    return b"\x08\x05\x12" + bytes([length - 4]) + b"a" * (length - 4)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x7f" + short(127),
        b"\x1a\x7f" + short(127),
        # The value of an entry, and the entry itself.
        b"\x22\x84\x01" + KEY + b"\x12\x7f" + short(127),
        b"\x22\x7f" + KEY + b"\x12\x7a" + short(122),
    ],
    ids=["message", "list", "value", "entry"],
)
def test_a_byte_spared_in_a_length_hides_no_field_of_another_wire_type(data: bytes, rig: Rig) -> None:
    seen = rig.of(compiled(LENGTHS)).raw("M", [data, data + WRONG_TYPE])
    assert list(seen.errors) == [1]
    assert "PROTOBUF_FIELD_TYPE_MISMATCH" in seen.errors[1]


SELF = (
    'syntax = "proto3"; message M {{ {0} M a = 2; repeated M b = 3; map<int32, M> c = 4; M d = 5; M e = 6; M f = 7; }}'
)


@pytest.mark.parametrize("scalar", ["int32 x = 1;", ""], ids=["columns", "nothing"])
def test_recursion_that_would_make_millions_of_columns_is_an_error_that_names_the_option(scalar: str, rig: Rig) -> None:
    rig = rig.of(compiled(SELF.format(scalar)))
    with pytest.raises(ProtobufAnalysisError, match=r"^\[PROTOBUF_TOO_MANY_COLUMNS\] .* M .* 50,?000") as caught:
        rig.ddl("M", {"recursive.fields.max.depth": "10"})
    assert "Lower recursive.fields.max.depth, which is 10." in str(caught.value)
    if scalar:
        assert rig.ddl("M", {"recursive.fields.max.depth": "3"}).count("x:int") == 1 + 6 + 36


def test_messages_that_would_make_millions_of_columns_without_recursion_are_an_error(rig: Rig) -> None:
    ten = " ".join(f"M{{1}} f{number} = {number};" for number in range(2, 12))
    levels = " ".join(f"message M{{0}} {{{{ int32 x = 1; {ten} }}}}".format(level, level + 1) for level in range(8))
    rig = rig.of(compiled(f'syntax = "proto3"; {levels} message M8 {{ int32 x = 1; }}'))
    with pytest.raises(ProtobufAnalysisError, match=r"^\[PROTOBUF_TOO_MANY_COLUMNS\].* bytes") as caught:
        rig.ddl("M0")
    assert "recursive" not in str(caught.value)
    assert rig.ddl("M5").count("x:int") == 1 + 10 + 100 + 1000


@pytest.mark.parametrize("circle", [["a.proto"], ["a.proto", "b.proto"], ["a.proto", "b.proto", "c.proto"]])
def test_imports_in_a_circle_are_an_error_at_once(circle: list[str]) -> None:
    files = FileDescriptorSet()
    for place, name in enumerate(circle):
        files.file.add(name=name, dependency=[circle[(place + 1) % len(circle)]])
    with pytest.raises(ProtobufAnalysisError, match=r"^\[CANNOT_PARSE_PROTOBUF_DESCRIPTOR\].*circle"):
        Schema(files.SerializeToString())


def test_a_file_that_is_imported_on_several_ways_is_no_circle() -> None:
    files = FileDescriptorSet()
    for name, imports in {"a": "bcd", "b": "cd", "c": "d", "d": ""}.items():
        files.file.add(name=name, dependency=list(imports))
    assert Schema(files.SerializeToString()).pool.FindFileByName("a").dependencies
