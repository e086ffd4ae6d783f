"""An error says in which field of a message it is, and from which byte on."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.protobuf.confluent.frames import varint
from tests.support.protobuf_rig import Rig, compiled

SHOP = compiled("""syntax = "proto2"; package shop; import "google/protobuf/timestamp.proto";
message Line { optional string name = 1; optional fixed64 price = 2; repeated int32 sizes = 3 [packed = true]; }
message Order { required int64 id = 1; optional Line first = 2; repeated Line lines = 3; map<string, Line> named = 4;
  optional google.protobuf.Timestamp time = 5; optional group Note = 6 { optional string text = 1; }
  extensions 100 to 200; }
extend Order { optional Line extra = 100; }""")
ID = b"\x08\x01"
GOOD = b"\x0a\x02ab"  # a Line


def part(number: int, data: bytes, length: int | None = None) -> bytes:
    """A field that has its length before it."""
    return varint(number << 3 | 2) + varint(len(data) if length is None else length) + data


def reason(rig: Rig, data: bytes, **flags: Any) -> str:
    decoded = rig.of(SHOP).raw("Order", [ID, data, ID], **flags)
    assert list(decoded.errors) == [1]
    return decoded.errors[1]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (ID + b"\x08", "in id, a value of the type int64 from byte 2 of 3"),
        (b"\x08" + b"\xff" * 11, "in id, a value of the type int64 from byte 0 of 12"),
        (ID + part(2, b"ab", 9), "in first.number 12, which is not declared, from byte 4 of 6"),
        (ID + part(2, GOOD, 9), "in first, a value of the type shop.Line from byte 2 of 8"),
        (ID + part(2, GOOD + b"\x11\0\0", 9), "in first.price, a value of the type fixed64 from byte 8 of 11"),
        (ID + part(2, GOOD + b"\x11\0\0") + ID, "in first.price, a value of the type fixed64 from byte 8 of 13"),
        (ID + part(2, b"\x0a\x09ab") + b"a" * 9, "in first.name, a value of the type string from byte 4 of 17"),
        (ID + part(3, GOOD) * 2 + part(3, b"\x0a"), "in lines[2].name, a value of the type string from byte 16 of 17"),
        (
            ID + part(4, b"\x0a\x01k" + part(2, b"\x1a\x01\xff")),
            "in named[0].value.sizes[0], a value of the type int32",
        ),
        (ID + b"\x33\x0a\x01x", "in note, a value of the type shop.Order.Note from byte 2 of 6"),
        (ID + b"\x33\x0a\x01x\x34\x08", "in id, a value of the type int64 from byte 7 of 8"),
        (ID + b"\x10\xff", "in first, a value of the type shop.Line from byte 2 of 4"),
        (ID + b"\x00\x01", "in what has no field number, from byte 2 of 4"),
        (ID + b"\xff", "in what has no field number, from byte 2 of 3"),
        (ID + b"\x4f", "in number 9, which is not declared, from byte 2 of 3"),
    ],
)
def test_an_error_says_in_which_field_and_from_which_byte_a_message_is_damaged(
    data: bytes, where: str, rig: Rig
) -> None:
    text = reason(rig, data)
    assert text.startswith("cannot be parsed: ")
    assert f" ({where}" in text


def test_an_error_says_where_a_field_has_another_wire_type(rig: Rig) -> None:
    text = reason(rig, ID + part(2, GOOD) + part(1, b"x"))
    assert "Type mismatch encountered for field: id (in id, a value of the type int64 from byte 8 of 11)" in text


def test_an_error_says_where_a_value_has_no_place_in_its_column(rig: Rig) -> None:
    text = reason(rig, ID + part(2, GOOD) + part(5, b"\x08" + varint(1 << 62)))
    assert "seconds (in time, a value of the type google.protobuf.Timestamp from byte 8 of 20)" in text


def test_an_error_says_where_an_extension_is_damaged(rig: Rig) -> None:
    text = reason(rig, ID + part(100, b"\x0a\x02a"), extensions=True)
    assert ".name, a value of the type string from byte 5 of 8)" in text


def test_a_missing_field_is_in_no_place(rig: Rig) -> None:
    assert reason(rig, part(2, GOOD)) == "Message missing required fields: id"


@pytest.mark.parametrize("levels", [150, 3000])
def test_a_message_that_is_too_deep_is_followed_as_deep_as_protobuf_goes(levels: int, rig: Rig) -> None:
    tree = compiled('syntax = "proto3"; message Tree { Tree next = 1; }')
    data = b""
    for _ in range(levels):
        data = part(1, data)
    decoded = rig.of(tree).raw("Tree", [data], {"recursive.fields.max.depth": "3"})
    path = decoded.errors[0].partition("(in ")[2].partition(",")[0]
    assert set(path.split(".")) == {"next"}
    assert path.count("next") <= 100


def test_a_message_of_very_many_fields_is_not_searched_to_its_end(rig: Rig) -> None:
    many = compiled('syntax = "proto3"; message Many { repeated int32 n = 1; string s = 2; }')
    for count, place in ((9_999, "in s"), (10_000, "")):
        decoded = rig.of(many).raw("Many", [b"\x08\x01" * count + b"\x12\x05"])
        assert place in decoded.errors[0]
        assert ("byte" in decoded.errors[0]) == bool(place)
