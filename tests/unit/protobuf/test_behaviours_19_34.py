"""Behaviours 19 to 34 of docs/reference/protobuf-behaviours.md: times, oneof, empty messages, Any, zeros."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.protobuf.errors import ProtobufAnalysisError
from connectors.protobuf.schema.descriptors import Schema, read_descriptor_file
from tests.support.protobuf_rig import Rig, compiled

BASIC = {"id": 7, "text": "seven", "color": "GREEN"}
EMIT = {"emit.default.values": "true"}
RETAIN = {"retain.empty.message.types": "true"}
DUMMY = "__dummy_field_in_empty_struct"


def test_19_a_timestamp_is_cut_to_microseconds_and_micros_are_kept_on_encode(rig: Rig) -> None:
    message = rig.type("Times")()
    message.time.seconds, message.time.nanos = 1_700_000_000, 123_456_789
    assert rig.ddl("Times").startswith("struct<time:timestamp,")
    moment = rig.row("Times", message)["time"]
    assert moment == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    before = rig.type("Times")()
    before.time.seconds, before.time.nanos = -1, 999_999_999
    early = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert rig.row("Times", before)["time"] == early
    kind = pa.struct([("time", pa.timestamp("us", "UTC"))])
    [late, encoded] = rig.encode("Times", [{"time": moment}, {"time": early}], kind)
    assert rig.type("Times").FromString(late).time.nanos == 123_456_000
    assert rig.type("Times").FromString(encoded).time.seconds == -1
    assert rig.type("Times").FromString(encoded).time.nanos == 999_999_000


@pytest.mark.parametrize("seconds", [2**62, -(2**62), 2**63 - 1, 9_223_372_036_855])
def test_19_a_timestamp_that_does_not_fit_is_an_error_and_not_another_time(seconds: int, rig: Rig) -> None:
    message = rig.type("Times")()
    message.time.seconds = seconds
    decoded = rig.raw("Times", [message.SerializeToString(), b""])
    assert list(decoded.errors) == [0]
    assert "long overflow" in decoded.errors[0]


def test_20_a_duration_is_an_interval(rig: Rig) -> None:
    assert "duration:interval day to second" in rig.ddl("Times")
    message = rig.type("Times")()
    message.duration.seconds, message.duration.nanos = -1, -500_000_999
    message.durations.add(seconds=90_061)
    row = rig.row("Times", message)
    assert row["duration"] == timedelta(seconds=-1, microseconds=-500_000)
    assert row["durations"] == [timedelta(days=1, hours=1, minutes=1, seconds=1)]
    kind = pa.struct([("duration", pa.duration("us"))])
    [encoded] = rig.encode("Times", [row | {"duration": row["duration"]}], kind)
    assert rig.type("Times").FromString(encoded).duration.nanos == -500_000_000
    assert rig.type("Times").FromString(encoded).duration.seconds == -1


def test_19_20_times_are_known_by_their_names_in_any_package(rig: Rig) -> None:
    text = """syntax = "proto3"; package other;
        message Timestamp { int64 seconds = 3; int32 nanos = 9; }
        message Duration { string text = 1; }
        message Holder { Timestamp time = 1; Duration duration = 2; }"""
    own = rig.of(compiled(text))
    assert own.ddl("Holder") == "struct<time:timestamp,duration:struct<text:string>>"
    message = own.type("Holder")(time={"seconds": 1, "nanos": 2000})
    assert own.row("Holder", message)["time"] == datetime(1970, 1, 1, 0, 0, 1, 2, tzinfo=UTC)
    own.again("Holder", [message])


def test_21_a_descriptor_without_its_imports_names_what_is_missing() -> None:
    text = 'syntax = "proto3"; import "other.proto"; message M { Other other = 1; }'
    data = compiled(text, imports=False, other='syntax = "proto3"; message Other { int32 a = 1; }')
    with pytest.raises(ProtobufAnalysisError, match=r"^\[PROTOBUF_DEPENDENCY_NOT_FOUND\].*other\.proto") as caught:
        Schema(data)
    assert "--include_imports" in str(caught.value)
    assert caught.value.getCondition() == "PROTOBUF_DEPENDENCY_NOT_FOUND"


def test_22_a_missing_descriptor_file_keeps_its_cause(tmp_path: Path) -> None:
    with pytest.raises(ProtobufAnalysisError, match="PROTOBUF_DESCRIPTOR_FILE_NOT_FOUND") as caught:
        read_descriptor_file(tmp_path / "none.desc")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.getSqlState() == "42K0G"
    with pytest.raises(ProtobufAnalysisError, match="CANNOT_PARSE_PROTOBUF_DESCRIPTOR"):
        Schema(b"no descriptor at all")


def test_23_of_a_oneof_the_last_member_wins(rig: Rig) -> None:
    both = bytes.fromhex("0a016b 1005 1a0174")
    assert rig.row("OneOf", both) == {"key": "k", "number": None, "text": "t", "basic": None}
    turned = bytes.fromhex("0a016b 1a0174 1005")
    assert rig.row("OneOf", turned) == {"key": "k", "number": 5, "text": None, "basic": None}
    assert rig.rows("OneOf", [both] * 100 + [turned]) == [rig.row("OneOf", both)] * 100 + [rig.row("OneOf", turned)]
    kind = [("number", pa.int32()), ("text", pa.string())]
    row = {"number": 5, "text": "t"}
    assert rig.encode("OneOf", [row], pa.struct(kind)) == [b"\x1a\x01t"]
    assert rig.encode("OneOf", [row], pa.struct(kind[::-1])) == [b"\x10\x05"]


def test_24_a_struct_with_one_member_of_a_oneof(rig: Rig) -> None:
    kind = rig.call("OneOf").decoder.decode(pa.array([b""], pa.binary())).values.type
    nothing = {"key": "k", "number": None, "text": None, "basic": None}
    rows = [nothing | {"number": 0}, nothing | {"text": ""}, nothing | {"basic": BASIC}, nothing]
    encoded = rig.encode("OneOf", rows, kind)
    assert rig.rows("OneOf", encoded) == rows
    assert [rig.type("OneOf").FromString(each).WhichOneof("payload") for each in encoded] == [
        "number",
        "text",
        "basic",
        None,
    ]


def test_25_an_empty_message_is_retained_at_the_top_and_inside(rig: Rig) -> None:
    assert rig.ddl("Nothing") == "struct<>"
    assert rig.rows("Nothing", [b"", None]) == [{}, None]
    assert rig.ddl("HoldsNothing") == "struct<name:string>"
    assert rig.ddl("OnlyNothing") == "struct<>"
    dummy = f"struct<{DUMMY}:string>"
    assert rig.ddl("Nothing", RETAIN) == dummy
    assert rig.rows("Nothing", [b"", None], RETAIN) == [{DUMMY: None}, None]
    assert rig.ddl("HoldsNothing", RETAIN) == f"struct<name:string,nothing:{dummy},nothings:map<string,{dummy}>>"
    message = rig.type("HoldsNothing")(name="n", nothing={})
    message.nothings["a"].SetInParent()
    row = {"name": "n", "nothing": {DUMMY: None}, "nothings": [("a", {DUMMY: None})]}
    assert rig.row("HoldsNothing", message, RETAIN) == row
    assert rig.row("HoldsNothing", b"", RETAIN)["nothing"] is None
    rig.again("HoldsNothing", [message, b""], RETAIN)


def test_27_an_empty_recursive_message_is_dropped(rig: Rig) -> None:
    assert rig.ddl("EmptyRecursion", {"recursive.fields.max.depth": "4"}) == "struct<>"


def test_28_an_empty_recursive_message_is_retained_at_depth_3(rig: Rig) -> None:
    options = {"recursive.fields.max.depth": "3", **RETAIN}
    assert rig.ddl("EmptyRecursion", options) == f"struct<again:struct<again:struct<{DUMMY}:string>>>"
    message = rig.type("EmptyRecursion")(again={"again": {"again": {}}})
    assert rig.row("EmptyRecursion", message, options) == {"again": {"again": {DUMMY: None}}}


def any_of(rig: Rig, message: str, **values: object) -> dict[str, object]:
    kind = rig.type(message)
    return {
        "type_url": f"type.googleapis.com/{kind.DESCRIPTOR.full_name}",
        "value": kind(**values).SerializeToString(),
    }


JSON = {"convert.any.fields.to.json": "true"}


def test_29_an_any_as_a_struct_and_as_json(rig: Rig) -> None:
    packed = any_of(rig, "Basic", id=7, text="<é>", color="BLUE")
    message = rig.type("HoldsAny")(name="n", details=packed)
    assert rig.ddl("HoldsAny").startswith("struct<name:string,details:struct<type_url:string,value:binary>,")
    assert rig.row("HoldsAny", message)["details"] == packed
    assert rig.ddl("HoldsAny", JSON) == "struct<name:string,details:string,more:array<string>>"
    text = rig.row("HoldsAny", message, JSON)["details"]
    assert text == ('{"@type":"type.googleapis.com/behaviours.Basic","id":"7","text":"\\u003cé\\u003e","color":"BLUE"}')
    numbers = rig.row("HoldsAny", message, JSON | {"enums.as.ints": "true"})["details"]
    assert json.loads(numbers)["color"] == 5
    names = any_of(rig, "Scalars", int32_value=1, double_value=1e10, float_value=0.1)
    text = rig.row("HoldsAny", rig.type("HoldsAny")(details=names), JSON)["details"]
    assert text.endswith('"int32_value":1,"float_value":0.1,"double_value":1.0E10}')


def test_29_an_any_of_an_unknown_type_is_a_bad_row(rig: Rig) -> None:
    strange = rig.type("HoldsAny")(details={"type_url": "type.googleapis.com/no.Such", "value": b""})
    decoded = rig.raw("HoldsAny", [strange.SerializeToString(), b""], JSON)
    assert list(decoded.errors) == [0]
    assert "no.Such" in decoded.errors[0]


def test_30_an_array_of_any_nested_any_and_an_empty_any(rig: Rig) -> None:
    inner = any_of(rig, "Basic", id=1)
    outer = any_of(rig, "HoldsAny", name="in", details=inner)
    message = rig.type("HoldsAny")(details={}, more=[outer, {}])
    row = rig.row("HoldsAny", message, JSON)
    assert row["details"] == "{}"
    assert row["more"][1] == "{}"
    assert json.loads(row["more"][0])["details"] == {"@type": "type.googleapis.com/behaviours.Basic", "id": "1"}
    assert rig.row("HoldsAny", b"", JSON)["details"] is None


ZEROS = bytes.fromhex("0800 1000 6500000000 690000000000000000 7200 7a00 800100")
NAMES = ("bool_value", "int32_value", "float_value", "double_value", "string_value", "bytes_value", "color")


def test_31_explicit_zeros_of_proto3_are_null_or_zero(rig: Rig) -> None:
    row = rig.row("Scalars", ZEROS)
    assert [row[name] for name in NAMES] == [None] * 7
    row = rig.row("Scalars", ZEROS, EMIT)
    assert [row[name] for name in NAMES] == [False, 0, 0.0, 0.0, "", b"", "RED"]
    present = rig.type("Scalars")(optional_int32=0, optional_string="")
    assert rig.row("Scalars", present)["optional_int32"] == 0
    assert rig.row("Scalars", present)["optional_string"] == ""
    negative = rig.type("Scalars")(double_value=-0.0, float_value=-0.0)
    assert str(rig.row("Scalars", negative)["double_value"]) == "-0.0"
    assert str(rig.row("Scalars", negative)["float_value"]) == "-0.0"


def test_32_unset_proto3_fields_are_null_or_zero_and_messages_stay_null(rig: Rig) -> None:
    row = rig.row("Scalars", b"")
    assert set(row.values()) == {None}
    row = rig.row("Scalars", b"", EMIT)
    assert row["optional_int32"] is None
    assert row["optional_string"] is None
    assert [name for name, value in row.items() if value is None] == ["optional_int32", "optional_string"]
    assert rig.row("NewConsumer", b"", EMIT) == {"key": "", "number": 0, "color": "RED", "list": [], "basic": None}
    assert rig.row("OneOf", b"", EMIT) == {"key": "", "number": None, "text": None, "basic": None}
    assert rig.row("OneOf", b"\x22\x00", EMIT)["basic"] == {"id": 0, "text": "", "color": "RED"}


@pytest.mark.parametrize("options", [{}, EMIT])
def test_33_zeros_of_proto2_are_there(options: dict[str, str], rig: Rig) -> None:
    two = rig.of("behaviours2")
    message = two.type("Plain")(number=0, text="", flag=False, real=0.0)
    assert two.row("Plain", message, options) == {"number": 0, "text": "", "flag": False, "level": None, "real": 0.0}
    two.again("Plain", [message, b""])


@pytest.mark.parametrize("options", [{}, EMIT])
def test_34_unset_proto2_fields_are_null_or_their_declared_default(options: dict[str, str], rig: Rig) -> None:
    two = rig.of("behaviours2")
    assert set(two.row("Plain", b"", options).values()) == {None}
    assert two.row("Defaults", b"", options) == {
        "number": 7,
        "text": "seven",
        "flag": True,
        "level": "HIGH",
        "data": b"\x01\x02",
        "large": -1,
        "real": -1.5,
    }
    assert two.row("Defaults", two.type("Defaults")(number=0, text=""), options)["number"] == 0
    assert two.row("Defaults", b"", {"upcast.unsigned.ints": "true"})["large"] == 2**32 - 1
    assert two.row("Defaults", b"", {"enums.as.ints": "true"})["level"] == 2
