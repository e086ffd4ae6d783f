"""An Any as JSON, whatever is in it."""

from __future__ import annotations

import pytest

from tests.support.protobuf_rig import Rig, compiled


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
