"""An Any as JSON, whatever is in it."""

from __future__ import annotations

import pytest

from tests.support.protobuf_rig import Rig, compiled, filled


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


BYTES = """syntax = "proto3"; import "google/protobuf/any.proto"; import "google/protobuf/wrappers.proto";
import "google/protobuf/field_mask.proto"; import "google/protobuf/struct.proto";
message P { bytes b = 1; repeated bytes l = 2; map<string, bytes> m = 3; map<bool, P> p = 4; oneof o { bytes x = 5; }
  string s = 6; google.protobuf.BytesValue v = 7; google.protobuf.Any any = 8; google.protobuf.FieldMask mask = 9;
  google.protobuf.Value json = 10; repeated google.protobuf.BytesValue vs = 11;
  map<int32, google.protobuf.Any> a = 12; }
message M { google.protobuf.Any any = 1; }"""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"b": b"\xff\xfe"}, '"b":"//4="'),
        ({"l": [b"\xff", b"\xff\xfe\xfd", b""]}, '"l":["/w==","//79",""]'),
        ({"m": {"a=": b"\xff"}}, '"m":{"a\\u003d":"/w=="}'),
        ({"p": {True: {"b": b"\xff"}}}, '"p":{"true":{"b":"/w=="}}'),
        ({"x": b"\xff"}, '"x":"/w=="'),
        ({"s": "/w=="}, '"s":"/w\\u003d\\u003d"'),
        ({"v": {"value": b"\xff\xfe"}}, '"v":"//4="'),
        ({"vs": [{"value": b"\xff"}, {}]}, '"vs":["/w==",""]'),
        ({"mask": {"paths": ["a_b", "x=y"]}}, '"mask":"aB,x=y"'),
        ({"json": {"string_value": "/w=="}}, '"json":"/w\\u003d\\u003d"'),
        ({"json": {"struct_value": {"a=": "<"}}}, '"json":{"a\\u003d":"\\u003c"}'),
        ({"json": {"struct_value": {"fields": "="}}}, '"json":{"fields":"\\u003d"}'),
        (
            {"any": {"type_url": "x/P", "value": b"\x0a\x01\xff\x32\x01="}},
            '"any":{"@type":"x/P","b":"/w==","s":"\\u003d"}',
        ),
        (
            {"a": {7: {"type_url": "x/google.protobuf.BytesValue", "value": b"\x0a\x01\xff"}}},
            '"a":{"7":{"@type":"x/google.protobuf.BytesValue","value":"/w=="}}',
        ),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_base64_and_paths_are_printed_as_java_does_and_texts_escaped(
    content: dict[str, object], text: str, rig: Rig
) -> None:
    rig = rig.of(compiled(BYTES))
    message = rig.type("M")(
        any={"type_url": "type.googleapis.com/P", "value": bytes_of(filled(rig.type("P")(), content))}
    )
    seen = rig.raw("M", [bytes_of(message)], {"convert.any.fields.to.json": "true", "recursive.fields.max.depth": "1"})
    assert not seen.errors
    assert seen.values.to_pylist()[0]["any"] == f'{{"@type":"type.googleapis.com/P",{text}}}'


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("BytesValue", b"\x0a\x02\xff\xfe", '"//4="'),
        ("FieldMask", b"\x0a\x03x=y", '"x=y"'),
        ("StringValue", b"\x0a\x02<=", '"\\u003c\\u003d"'),
        (
            "Any",
            b"\x0a\x1cx/google.protobuf.BytesValue\x12\x03\x0a\x01\xff",
            '{"@type":"x/google.protobuf.BytesValue","value":"/w=="}',
        ),
    ],
)
def test_a_type_that_comes_with_protobuf_is_printed_as_java_does(name: str, value: bytes, text: str, rig: Rig) -> None:
    rig = rig.of(compiled(BYTES))
    url = f"type.googleapis.com/google.protobuf.{name}"
    message = rig.type("M")(any={"type_url": url, "value": value})
    seen = rig.raw("M", [bytes_of(message)], {"convert.any.fields.to.json": "true"})
    assert not seen.errors
    assert seen.values.to_pylist()[0]["any"] == f'{{"@type":"{url}","value":{text}}}'


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
