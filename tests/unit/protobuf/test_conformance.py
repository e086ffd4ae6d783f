"""Google's conformance cases for the binary format, under their published names.

They are those of ``conformance/binary_json_conformance_suite.cc`` in protocolbuffers/protobuf, which makes them in
loops over the types, as is done here. What of them does not apply is listed in docs/reference/protobuf-behaviours.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.protobuf_generated import tagged, varint
from tests.support.protobuf_rig import Rig, compiled

I32, I64, U32, U64 = 2**31, 2**63, 2**32, 2**64
UNKNOWN = 666


def long_varint(value: int, extra: int) -> bytes:
    """A varint with more bytes than it needs."""
    found = bytearray(varint(value))
    found[-1] |= 128
    return bytes([*found, *([128] * (extra - 1)), 0])


def zig_zag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else -value * 2 - 1)


def text(value: str) -> bytes:
    data = value.encode()
    return varint(len(data)) + data


# Field of Scalars and Lists: number, wire type, and pairs of bytes and value. None is what zero is in Spark.
TYPES: dict[str, tuple[int, int, list[tuple[bytes, Any]]]] = {
    "double_value": (
        13,
        1,
        [(struct.pack("<d", each), each) for each in (0.0, 0.1, 1.7976931348623157e308, 2.2250738585072014e-308)],
    ),
    "float_value": (
        12,
        5,
        [
            (struct.pack("<f", each), struct.unpack("<f", struct.pack("<f", each))[0])
            for each in (0.0, 0.1, 1.00000075e-36, 3.402823e38, 1.17549435e-38)
        ],
    ),
    "int64_value": (7, 0, [(varint(each), each) for each in (0, 12345, I64 - 1, -I64)]),
    "uint64_value": (9, 0, [(varint(0), 0), (varint(12345), 12345), (varint(U64 - 1), -1)]),
    "int32_value": (
        2,
        0,
        [
            (varint(0), 0),
            (varint(12345), 12345),
            (long_varint(12345, 2), 12345),
            (long_varint(12345, 7), 12345),
            (varint(I32 - 1), I32 - 1),
            (varint(-I32), -I32),
            (varint(1 << 33), 0),
            (varint((1 << 33) - 1), -1),
            (varint(I64 - 1), -1),
            (varint(-I64 + 1), 1),
        ],
    ),
    "uint32_value": (
        4,
        0,
        [
            (varint(0), 0),
            (varint(12345), 12345),
            (long_varint(12345, 2), 12345),
            (long_varint(12345, 7), 12345),
            (varint(U32 - 1), -1),
            (varint(1 << 33), 0),
            (varint((1 << 33) + 1), 1),
            (varint((1 << 33) - 1), -1),
            (varint(I64 - 1), -1),
            (varint(-I64 + 1), 1),
        ],
    ),
    "fixed64_value": (10, 1, [(struct.pack("<q", each), each) for each in (0, 12345, -1)]),
    "fixed32_value": (5, 5, [(struct.pack("<i", each), each) for each in (0, 12345, -1)]),
    "sfixed64_value": (11, 1, [(struct.pack("<q", each), each) for each in (0, 12345, I64 - 1, -I64)]),
    "sfixed32_value": (6, 5, [(struct.pack("<i", each), each) for each in (0, 12345, I32 - 1, -I32)]),
    "bool_value": (
        1,
        0,
        [(varint(each), bool(each)) for each in (0, 1, -1, 12345678, 1 << 33, I64 - 1, -I64)],
    ),
    "sint32_value": (
        3,
        0,
        [*((zig_zag(each), each) for each in (0, 12345, I32 - 1, -I32)), (zig_zag(I32 + 1), 1)],
    ),
    "sint64_value": (8, 0, [(zig_zag(each), each) for each in (0, 12345, I64 - 1, -I64)]),
    "string_value": (14, 2, [(text(each), each) for each in ("", "Hello world!", "'\"?\\\n\r\t", "谢谢", "😁")]),
    "bytes_value": (15, 2, [(varint(len(each)) + each, each) for each in (b"", b"Hello world!", b"\x01\x02", b"\xfb")]),
    "color": (
        16,
        0,
        [
            (varint(0), "RED"),
            (varint(1), "GREEN"),
            (varint(-1), "UNKNOWN_ENUM_VALUE_Color_-1"),
            (varint(I64 - 1), "UNKNOWN_ENUM_VALUE_Color_-1"),
            (varint(-I64 + 1), "GREEN"),
        ],
    ),
}
ZEROS = (0, 0.0, "", b"", False, "RED")


@pytest.mark.parametrize("name", TYPES)
def test_valid_data_scalar(name: str, rig: Rig) -> None:
    number, wire, pairs = TYPES[name]
    rows = rig.rows("Scalars", [tagged(number, wire, data) for data, _ in pairs])
    assert [row[name] for row in rows] == [None if value in ZEROS else value for _, value in pairs]
    emitted = rig.rows("Scalars", [tagged(number, wire, data) for data, _ in pairs], {"emit.default.values": "true"})
    assert [row[name] for row in emitted] == [value for _, value in pairs]


@pytest.mark.parametrize("name", TYPES)
def test_repeated_scalar_selects_last(name: str, rig: Rig) -> None:
    number, wire, pairs = TYPES[name]
    data = b"".join(tagged(number, wire, each) for each, _ in pairs)
    last = pairs[-1][1]
    assert rig.row("Scalars", data)[name] == (None if last in ZEROS else last)


@pytest.mark.parametrize("name", TYPES)
def test_valid_data_repeated_unpacked_and_packed(name: str, rig: Rig) -> None:
    number, wire, pairs = TYPES[name]
    values = [value for _, value in pairs]
    unpacked = b"".join(tagged(number, wire, data) for data, _ in pairs)
    assert rig.row("Lists", unpacked)[name] == values
    if wire != 2:
        packed = b"".join(data for data, _ in pairs)
        assert rig.row("Lists", tagged(number, 2, varint(len(packed)) + packed))[name] == values
        assert rig.row("Lists", unpacked + tagged(number, 2, varint(len(packed)) + packed))[name] == values * 2


INCOMPLETE = {0: b"\x80", 1: b"abcdefg", 2: b"\x80", 5: b"abc"}


def premature_ends() -> Iterator[tuple[str, str, bytes]]:
    """Name, message and bytes of each PrematureEof case."""
    for name, (number, wire, _) in TYPES.items():
        for message in ("Scalars", "Lists"):
            known = "NonRepeated" if message == "Scalars" else "Repeated"
            yield f"BeforeKnown{known}Value.{name}", message, tagged(number, wire, b"")
            yield f"InsideKnown{known}Value.{name}", message, tagged(number, wire, INCOMPLETE[wire])
            if wire == 2:
                yield f"InDelimitedDataForKnown{known}Value.{name}", message, tagged(number, 2, b"\x01")
        yield f"BeforeUnknownValue.{name}", "Scalars", tagged(UNKNOWN, wire, b"")
        yield f"InsideUnknownValue.{name}", "Scalars", tagged(UNKNOWN, wire, INCOMPLETE[wire])
        if wire != 2:
            yield f"InPackedField.{name}", "Lists", tagged(number, 2, varint(len(INCOMPLETE[wire])) + INCOMPLETE[wire])
            yield f"InPackedFieldValue.{name}", "Lists", tagged(number, 2, b"\x01")
    yield "InDelimitedDataForUnknownValue", "Scalars", tagged(UNKNOWN, 2, b"\x01")
    inside = tagged(2, 2, b"\x05ab")
    yield "InSubmessageValue", "RepeatedMessage", tagged(1, 2, varint(len(inside)) + inside)
    yield "InSubmessageValue.Singular", "Deep", tagged(1, 2, varint(len(inside)) + inside)


@pytest.mark.parametrize(("message", "data"), [pytest.param(m, d, id=n) for n, m, d in premature_ends()])
def test_premature_eof(message: str, data: bytes, rig: Rig) -> None:
    assert list(rig.raw(message, [b"", data]).errors) == [1]


@pytest.mark.parametrize("data", [b"\x01DEADBEEF", b"\x02\x01\x01", b"\x03\x04", b"\x05DEAD"])
def test_illegal_zero_field_num(data: bytes, rig: Rig) -> None:
    assert list(rig.raw("Scalars", [data]).errors) == [0]


ZERO = """syntax = "proto3"; message Nothing {} message In { int32 a = 1; Nothing nothing = 2; }
message M { int32 a = 1; Nothing nothing = 2; In in = 3; repeated In many = 4; map<int32, In> named = 5;
oneof either { int32 n = 6; Nothing none = 7; } M again = 8; }"""


ILLEGAL = ("0000", "0100000000 00000000", "0200", "0304", "0500000000", "80 00 00", "8080 00 00")


WITHIN = pytest.mark.parametrize("within", ["{}", "7b {} 7c", "7b 7b {} 7c 7c", "7b 0801 {} 0802 7c", "ab06 {} ac06"])
PLACES = {"nothing": 2, "in": 3, "many": 4, "named": 5, "none": 7, "again": 8}


def at(place: str, data: bytes) -> bytes:
    """A message M with these bytes in one of its fields, such as `again.in`."""
    for name in reversed(place.split(".") if place else []):
        if name == "named":
            data = tagged(2, 2, varint(len(data)) + data)  # the value of the entry
        data = tagged(PLACES[name], 2, varint(len(data)) + data)
    return b"\x08\x05" + data


@WITHIN
@pytest.mark.parametrize("place", ["", "nothing", "in", "in.nothing", "many", "named", "none", "again", "again.in"])
def test_illegal_zero_field_num_wherever_a_field_can_be(place: str, within: str, rig: Rig) -> None:
    legal, *bad = (at(place, bytes.fromhex(within.format(fields))) for fields in ("a00601", *ILLEGAL))
    seen = rig.of(compiled(ZERO)).raw("M", [legal, *bad, legal], {"recursive.fields.max.depth": "1"})
    assert list(seen.errors) == list(range(1, len(bad) + 1))
    assert [row["a"] for row in seen.values.to_pylist() if row] == [5, 5]


ANY = ZERO.replace(";", '; import "google/protobuf/any.proto";', 1) + "message Holder { google.protobuf.Any any = 1; }"


@WITHIN
@pytest.mark.parametrize("place", ["", "nothing", "in.nothing", "many", "named", "none", "again.in"])
@pytest.mark.parametrize("around", ["", "google.protobuf.Any", "Holder"])
def test_illegal_zero_field_num_in_an_any_that_is_printed(around: str, place: str, within: str, rig: Rig) -> None:
    def delimited(number: int, data: bytes) -> bytes:
        return tagged(number, 2, varint(len(data)) + data)

    def packed(kind: str, data: bytes) -> bytes:
        return tagged(1, 2, text(f"type.googleapis.com/{kind}")) + delimited(2, data)

    def holder(fields: str) -> bytes:
        data = packed("M", at(place, bytes.fromhex(within.format(fields))))
        if around:
            data = packed(around, delimited(1, data) if around == "Holder" else data)
        return delimited(1, data)

    rows = [holder(fields) for fields in ("a00601", *ILLEGAL)]
    seen = rig.of(compiled(ANY)).raw("Holder", rows, {"convert.any.fields.to.json": "true"})
    assert list(seen.errors) == list(range(1, len(rows)))
    assert '"a":5' in seen.values.to_pylist()[0]["any"]


@pytest.mark.parametrize("data", ILLEGAL)
def test_illegal_zero_field_num_in_a_message_without_fields(data: str, rig: Rig) -> None:
    for name in ("Nothing", "OnlyNothing"):
        seen = rig.raw(name, [b"", bytes.fromhex(data), bytes.fromhex(f"7b {data} 7c"), bytes.fromhex("7b 0801 7c")])
        assert list(seen.errors) == [1, 2]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xa4\x29", id="UnmatchedEndGroup"),
        pytest.param(b"\xa3\x29", id="UnmatchedGroup"),
        pytest.param(b"\xa3\x29\xac\x29", id="UnmatchedEndGroupWrongNumber"),
        pytest.param(b"\x0e\x00", id="UnknownWireType6"),
        pytest.param(b"\x0f\x00", id="UnknownWireType7"),
        pytest.param(varint(2**29 << 3) + b"\x00", id="BadTag_FieldNumberTooHigh"),
        pytest.param(varint((2**32 - 1) << 3) + b"\x00", id="BadTag_FieldNumberSlightlyTooHigh"),
        pytest.param(b"\x90\x80\x80\x80\x80\x00\x05", id="BadTag_OverlongVarint"),
        pytest.param(b"\x80" * 10 + b"\x01\x00", id="BadTag_VarintMoreThanTenBytes"),
    ],
)
def test_bad_tags(data: bytes, rig: Rig) -> None:
    assert list(rig.raw("Scalars", [data]).errors) == [0]


@pytest.mark.parametrize("data", [b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"])
def test_a_varint_of_eleven_bytes_is_refused(data: bytes, rig: Rig) -> None:
    assert list(rig.raw("Scalars", [tagged(2, 0, data), tagged(UNKNOWN, 0, data)]).errors) == [0, 1]


def entry(*fields: bytes) -> bytes:
    data = b"".join(fields)
    return tagged(2, 2, varint(len(data)) + data)


def test_valid_data_map(rig: Rig) -> None:
    key, value, zero = tagged(1, 0, varint(1)), tagged(2, 0, varint(5)), tagged(1, 0, varint(0))
    cases = {
        "Default": (entry(zero, tagged(2, 0, varint(0))), [(0, 0)]),
        "MissingDefault": (entry(), [(0, 0)]),
        "NonDefault": (entry(key, value), [(1, 5)]),
        "Unordered": (entry(value, key), [(1, 5)]),
        "DuplicateKeyInMapEntry": (entry(zero, key, value), [(1, 5)]),
        "DuplicateValueInMapEntry": (entry(key, tagged(2, 0, varint(4)), value), [(1, 5)]),
        "UnknownInMapEntry": (entry(key, tagged(9, 0, varint(4)), value), [(1, 5)]),
        # Protobuf lets the last one stand; Spark hands both on, and the session decides (spark.sql.mapKeyDedupPolicy).
        "DuplicateKey": (entry(key, value) + entry(key, tagged(2, 0, varint(6))), [(1, 5), (1, 6)]),
    }
    assert {name: rig.row("Maps", data)["int32_int32"] for name, (data, _) in cases.items()} == {
        name: expected for name, (_, expected) in cases.items()
    }


def test_map_with_merged_message_values(rig: Rig) -> None:
    one = tagged(2, 2, b"\x02\x08\x07")
    other = tagged(2, 2, b"\x03\x12\x01t")
    data = b"\x08\x01" + one + other
    [(key, value)] = rig.row("Maps", tagged(12, 2, varint(len(data)) + data))["bool_basic"]
    assert (key, value) == (True, {"id": 7, "text": "t", "color": None})


def test_valid_data_oneof(rig: Rig) -> None:
    number, name, basic = tagged(2, 0, varint(5)), tagged(3, 2, text("t")), tagged(4, 2, b"\x02\x08\x07")
    nothing = {"key": None, "number": None, "text": None, "basic": None}
    message = {"id": 7, "text": None, "color": None}
    cases = {
        "DefaultValue": (tagged(2, 0, varint(0)), {"number": 0}),
        "NonDefaultValue": (number, {"number": 5}),
        "MultipleValuesForSameField": (tagged(2, 0, varint(4)) + number, {"number": 5}),
        "MultipleValuesForDifferentField": (number + name, {"text": "t"}),
        "MessageThenScalar": (basic + number, {"number": 5}),
        "ScalarThenMessage": (name + basic, {"basic": message}),
        "MergeOneofMessage": (basic + tagged(4, 2, b"\x03\x12\x01t"), {"basic": message | {"text": "t"}}),
        "MessageClearedBetween": (
            basic + number + tagged(4, 2, b"\x03\x12\x01t"),
            {"basic": message | {"id": None, "text": "t"}},
        ),
    }
    assert {each: rig.row("OneOf", data) for each, (data, _) in cases.items()} == {
        each: nothing | expected for each, (_, expected) in cases.items()
    }


def test_repeated_scalar_message_merge(rig: Rig) -> None:
    two = rig.of("behaviours2_extension")
    first = tagged(3, 2, varint(4) + b"\x08\x01\x10\x02")
    second = tagged(3, 2, varint(2) + b"\x10\x03")
    assert two.row("Closed", first + second)["holder"] == {"level": "LOW", "number": 3}
    deep = rig.type("Deep")(middle={"bottom": {"text": "a"}}).SerializeToString()
    more = rig.type("Deep")(middle={"bottom": {"number": 3}, "text": "b"}).SerializeToString()
    assert rig.row("Deep", deep + more)["middle"] == {"bottom": {"text": "a", "number": 3}, "text": "b"}
    lists = rig.type("NewConsumer")(list=[1]).SerializeToString()
    assert rig.row("NewConsumer", lists + lists)["list"] == [1, 1]


def test_unknown_fields_are_read_over(rig: Rig) -> None:
    strange = tagged(UNKNOWN, 0, varint(5)) + tagged(UNKNOWN, 2, text("x")) + tagged(UNKNOWN, 5, b"abcd")
    group = tagged(UNKNOWN, 3, tagged(1, 3, tagged(1, 4, b"")) + tagged(UNKNOWN, 4, b""))
    known = tagged(2, 0, varint(7))
    for data in (strange + known, known + strange, group + known + strange):
        assert rig.row("Scalars", data)["int32_value"] == 7


def test_delimited_fields_of_proto2(rig: Rig) -> None:
    two = rig.of("behaviours2")
    assert two.row("Group", tagged(2, 3, b"\x0a\x01t" + tagged(2, 4, b"")))["inside"] == {"text": "t"}
    assert list(two.raw("Group", [tagged(2, 3, b"\x0a\x01t"), tagged(2, 3, tagged(1, 4, b""))]).errors) == [0, 1]
