"""Behaviours 35 to 45 of docs/reference/protobuf-behaviours.md: enums, unsigned, wrappers, errors, extensions."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.errors import OptionError
from connectors.protobuf import from_protobuf, to_protobuf
from connectors.protobuf.errors import ProtobufAnalysisError, ProtobufDataError
from connectors.protobuf.options import parse_protobuf_options
from connectors.protobuf.schema.descriptors import is_repeated
from tests.support.protobuf_rig import Rig, compiled, descriptors

EMIT = {"emit.default.values": "true"}
UNWRAP = {"unwrap.primitive.wrapper.types": "true"}
UPCAST = {"upcast.unsigned.ints": "true"}


def test_35_enums_are_names_or_ints(rig: Rig) -> None:
    message = rig.type("Lists")(color=["BLUE", "RED"])
    assert rig.row("Lists", message)["color"] == ["BLUE", "RED"]
    ints = {"enums.as.ints": "true"}
    assert "color:array<int>" in rig.ddl("Lists", ints)
    assert rig.row("Lists", message, ints)["color"] == [5, 0]
    rig.again("Lists", [message], ints)
    rig.again("Basic", [rig.type("Basic")(color="GREEN")], ints)
    unknown = rig.type("Basic")(color=7)
    assert rig.row("Basic", unknown)["color"] == "UNKNOWN_ENUM_VALUE_Color_7"
    assert rig.row("Basic", rig.type("Basic")(color=-1))["color"] == "UNKNOWN_ENUM_VALUE_Color_-1"
    assert rig.row("Basic", unknown, ints)["color"] == 7


def test_35_an_unknown_value_of_a_closed_enum_is_an_error_at_the_root_and_missing_inside(rig: Rig) -> None:
    two = rig.of("behaviours2")
    data = [bytes.fromhex(each) for each in ("0807", "1007", "1203010702", "1a040807 1005", "0801")]
    decoded = two.raw("Closed", data)
    assert sorted(decoded.errors) == [0, 1, 2]
    assert all("PROTOBUF_FIELD_TYPE_MISMATCH" in reason for reason in decoded.errors.values())
    rows = decoded.values.to_pylist()
    assert rows[3]["holder"] == {"level": None, "number": 5}
    assert rows[4]["level"] == "LOW"


@pytest.mark.parametrize(
    ("kind", "value", "listed"),
    [(pa.string(), "PURPLE", '"RED", "GREEN", "BLUE"'), (pa.int32(), 3, "0, 1, 5")],
)
def test_36_a_bad_enum_name_or_number_is_an_error_that_lists_the_symbols(
    kind: pa.DataType, value: Any, listed: str, rig: Rig
) -> None:
    with pytest.raises(ProtobufDataError, match="CANNOT_CONVERT_SQL_VALUE_TO_PROTOBUF_ENUM_TYPE") as caught:
        rig.encode("Basic", [{"color": None}, {"color": value}], pa.struct([("color", kind)]))
    assert f"because {value} is not in defined values for enum: {listed}." in str(caught.value)
    with pytest.raises(ProtobufDataError, match="ENUM_TYPE"):
        rig.encode("Lists", [{"color": [value]}], pa.struct([("color", pa.list_(kind))]))


def test_37_unsigned_numbers_wrap_or_are_upcast(rig: Rig) -> None:
    message = rig.type("Unsigned")(
        small=2**32 - 1, large=2**64 - 1, fixed_small=2**32 - 2, fixed_large=2**64 - 2, smalls=[2**31, 0]
    )
    message.larges["a"] = 2**63
    wrapped = {"small": -1, "large": -1, "fixed_small": -2, "fixed_large": -2, "smalls": [-(2**31), 0]}
    assert rig.row("Unsigned", message) == wrapped | {"larges": [("a", -(2**63))]}
    assert rig.ddl("Unsigned", UPCAST) == (
        "struct<small:bigint,large:decimal(20,0),fixed_small:int,fixed_large:bigint,"
        "smalls:array<bigint>,larges:map<string,decimal(20,0)>>"
    )
    row = rig.row("Unsigned", message, UPCAST)
    assert (row["small"], row["large"], row["fixed_small"]) == (2**32 - 1, Decimal(2**64 - 1), -2)
    assert row["smalls"] == [2**31, 0]
    assert row["larges"] == [("a", Decimal(2**63))]
    rig.again("Unsigned", [message, b""])
    rig.again("Unsigned", [message, b""], UPCAST)


def wrappers(rig: Rig) -> Any:
    message = rig.type("Wrappers")(
        bool_value={"value": True},
        int32_value={"value": -1},
        uint32_value={"value": 2**32 - 1},
        int64_value={"value": -2},
        uint64_value={"value": 2**64 - 1},
        string_value={"value": "s"},
        bytes_value={"value": b"\xff"},
        float_value={"value": 0.5},
        double_value={"value": -0.0},
        int32_list=[{"value": 1}, {"value": 2}],
    )
    message.string_map[3].value = "three"
    return message


def test_38_wrappers_as_structs_and_as_values_make_a_round_trip(rig: Rig) -> None:
    message = wrappers(rig)
    assert "int32_value:struct<value:int>" in rig.ddl("Wrappers")
    assert rig.row("Wrappers", message)["string_map"] == [(3, {"value": "three"})]
    rig.again("Wrappers", [message, b""])
    assert rig.ddl("Wrappers", UNWRAP) == (
        "struct<bool_value:boolean,int32_value:int,uint32_value:int,int64_value:bigint,uint64_value:bigint,"
        "string_value:string,bytes_value:binary,float_value:float,double_value:double,int32_list:array<int>,"
        "string_map:map<int,string>>"
    )
    row = rig.row("Wrappers", message, UNWRAP)
    assert (row["bool_value"], row["uint32_value"], row["uint64_value"]) == (True, -1, -1)
    assert (row["int32_list"], row["string_map"]) == ([1, 2], [(3, "three")])
    assert str(row["double_value"]) == "-0.0"
    rig.again("Wrappers", [message, b""], UNWRAP)


ZEROS = {"Bool": False, "Int32": 0, "UInt32": 0, "Int64": 0, "UInt64": 0, "Float": 0.0, "Double": 0.0} | {
    "String": "",
    "Bytes": b"",
}
HOLDERS = """syntax = "proto3"; import "google/protobuf/wrappers.proto"; message M {{
repeated google.protobuf.{0}Value list = 1; map<string, google.protobuf.{0}Value> named = 2; M again = 3; }}"""
DEEP = {"recursive.fields.max.depth": "2"}


@pytest.mark.parametrize("options", [UNWRAP, UNWRAP | EMIT, UNWRAP | UPCAST], ids=["plain", "emit", "upcast"])
@pytest.mark.parametrize("name", ZEROS)
def test_38_a_wrapped_zero_in_a_list_or_a_map_is_zero_and_makes_a_round_trip(
    name: str, options: dict[str, str], rig: Rig
) -> None:
    rig, zero = rig.of(compiled(HOLDERS.format(name))), ZEROS[name]
    message = rig.type("M")(list=[{"value": zero}, {}], again={"list": [{"value": zero}]})
    message.named["k"].value = zero
    explicit = {"String": "0a020a00", "Bytes": "0a020a00", "Float": "0a050d00000000", "Double": "0a0909" + "00" * 8}
    # A zero that is written, an entry without its value, and one with an empty one.
    data = [message.SerializeToString(), bytes.fromhex(explicit.get(name, "0a020800"))]
    data += [bytes.fromhex("12030a0161"), bytes.fromhex("12050a01611200")]
    array = rig.raw("M", data, options | DEEP).values
    assert array.field("list").values.null_count == array.field("named").items.null_count == 0
    rows = array.to_pylist()
    assert rows[0] == {"list": [zero] * 2, "named": [("k", zero)], "again": {"list": [zero], "named": []}}
    assert [row["list"] for row in rows[1:]] == [[zero], [], []]
    assert [row["named"] for row in rows[1:]] == [[], [("a", zero)], [("a", zero)]]
    rig.again("M", [message], options | DEEP)


def test_38_a_required_wrapper_of_zero_is_zero(rig: Rig) -> None:
    text = """syntax = "proto2"; import "google/protobuf/wrappers.proto";
    message M { required google.protobuf.Int32Value n = 1; required google.protobuf.StringValue s = 2; }"""
    rig = rig.of(compiled(text))
    seen = rig.raw("M", [bytes.fromhex("0a001200"), bytes.fromhex("0a020805 12030a0161"), b"\x0a\x00"], UNWRAP)
    assert seen.values.to_pylist() == [{"n": 0, "s": ""}, {"n": 5, "s": "a"}, None]
    assert list(seen.errors) == [2]
    rig.again("M", [bytes.fromhex("0a001200")], UNWRAP)


@pytest.mark.parametrize("emit", [False, True])
@pytest.mark.parametrize("unwrap", [False, True])
def test_39_unwrap_and_emit_of_unset_zero_and_a_value(unwrap: bool, emit: bool, rig: Rig) -> None:
    kind = rig.type("Wrappers")
    messages = [b"", kind(int32_value={"value": 0}), kind(int32_value={"value": 100})]
    options = (UNWRAP if unwrap else {}) | (EMIT if emit else {})
    zero = 0 if emit else None
    expected = [None, zero, 100] if unwrap else [None, {"value": zero}, {"value": 100}]
    assert [row["int32_value"] for row in rig.rows("Wrappers", messages, options)] == expected


def test_40_unwrapped_unsigned_numbers_are_upcast(rig: Rig) -> None:
    row = rig.row("Wrappers", wrappers(rig), UNWRAP | UPCAST)
    assert (row["uint32_value"], row["uint64_value"]) == (2**32 - 1, Decimal(2**64 - 1))
    assert "uint32_value:bigint,int64_value:bigint,uint64_value:decimal(20,0)" in rig.ddl("Wrappers", UNWRAP | UPCAST)
    rig.again("Wrappers", [wrappers(rig)], UNWRAP | UPCAST)


@pytest.mark.parametrize(
    ("arguments", "which"),
    [
        ({"messageName": 7}, "second argument of the {} SQL function must be a constant string"),
        ({"descFilePath": 7}, "third argument of the {} SQL function must be a constant string or binary data"),
        ({"binaryDescriptorSet": "text"}, "third argument of the {}"),
        ({"options": "mode"}, "fourth argument of the {} SQL function must be a constant map of strings to strings"),
        ({"options": {"mode": None}}, "fourth argument"),
    ],
)
def test_41_arguments_that_are_no_constants_are_refused(arguments: dict[str, Any], which: str) -> None:
    for function in (from_protobuf, to_protobuf):
        given = {"messageName": "Basic", "binaryDescriptorSet": descriptors("behaviours"), **arguments}
        with pytest.raises(ProtobufAnalysisError, match="DATATYPE_MISMATCH") as caught:
            function("value", **given)
        assert which.format(function.__name__.upper()) in str(caught.value)


GARBAGE = [
    b"\xff",
    b"\x0a\x05ab",
    b"\x08",
    b"\x03",
    bytes.fromhex("1202ffff"),
    bytes(range(1, 40)),
    b"\x00\x00\x00\x00\x01\x00",
]


@pytest.mark.parametrize("data", GARBAGE)
def test_42_failfast_raises_at_garbage_and_says_which_row_and_why(data: bytes, rig: Rig) -> None:
    with pytest.raises(ProtobufDataError, match=r"^\[MALFORMED_PROTOBUF_MESSAGE\] .*Parse Mode: FAILFAST\.") as caught:
        rig.rows("Basic", [b"", None, data])
    assert "row 2 of the batch as behaviours.Basic" in str(caught.value)
    assert f"{len(data)} bytes, which begin with {data[:16].hex(' ')}" in str(caught.value)


def test_42_permissive_gives_null_for_garbage_and_a_reason_where_it_is_asked_for(rig: Rig) -> None:
    good = rig.type("Basic")(id=1).SerializeToString()
    data = [good, None, *GARBAGE, good]
    row = {"id": 1, "text": None, "color": None}
    assert rig.rows("Basic", data, {"mode": "PERMISSIVE"}) == [row, None, *[None] * len(GARBAGE), row]
    found = rig.rows("Basic", data, {"mode": "permissive", "on.error": "column"})
    assert found[0] == {"value": row, "error": None}
    assert found[1] is None
    assert all(each["value"] is None and each["error"] for each in found[2:-1])


def test_42_another_wire_type_is_a_mismatch_at_the_root_and_nothing_inside(rig: Rig) -> None:
    decoded = rig.raw(
        "Basic", [bytes.fromhex("0a0161"), bytes.fromhex("1005"), bytes.fromhex("1500000000"), b"\x08\x05"]
    )
    assert sorted(decoded.errors) == [0, 1, 2]
    assert "[PROTOBUF_FIELD_TYPE_MISMATCH] Type mismatch encountered for field: id" in decoded.errors[0]
    inside = rig.raw("RepeatedMessage", [bytes.fromhex("0a030a0161"), bytes.fromhex("0a0508051001 10")])
    assert sorted(inside.errors) == [1]
    assert inside.values.to_pylist()[0] == {"basic": [{"id": None, "text": None, "color": None}]}


def test_42_text_that_is_not_utf_8_is_an_error_in_proto3_and_replaced_in_proto2(rig: Rig) -> None:
    assert list(rig.raw("Basic", [bytes.fromhex("1202ffff")]).errors) == [0]
    two = rig.of("behaviours2")
    assert two.row("Plain", bytes.fromhex("1203ff41fe"))["text"] == "\ufffdA\ufffd"


def test_42_dropmalformed_and_unknown_modes_are_refused() -> None:
    with pytest.raises(ProtobufAnalysisError, match=r"^\[PARSE_MODE_UNSUPPORTED\] The function from_protobuf doesn't"):
        parse_protobuf_options({"MODE": "DROPMALFORMED"}, "from_protobuf")
    with pytest.raises(OptionError, match="FAILFAST or PERMISSIVE"):
        parse_protobuf_options({"mode": "lenient"}, "from_protobuf")


def random_scalars(chance: random.Random) -> dict[str, Any]:
    """Values of every scalar kind, or nothing."""
    made: dict[str, Any] = {
        "bool_value": chance.random() < 0.5,
        "int32_value": chance.randint(-(2**31), 2**31 - 1),
        "sint32_value": chance.randint(-(2**31), 2**31 - 1),
        "uint32_value": chance.randint(0, 2**31 - 1),
        "fixed32_value": chance.randint(0, 2**31 - 1),
        "sfixed32_value": chance.randint(-(2**31), 2**31 - 1),
        "int64_value": chance.randint(-(2**63), 2**63 - 1),
        "sint64_value": chance.randint(-(2**63), 2**63 - 1),
        "uint64_value": chance.randint(0, 2**63 - 1),
        "fixed64_value": chance.randint(0, 2**63 - 1),
        "sfixed64_value": chance.randint(-(2**63), 2**63 - 1),
        "float_value": float(chance.randint(-1000, 1000)) / 8,
        "double_value": chance.uniform(-1e300, 1e300),
        "string_value": "".join(chance.choice("aż🙂\0\n") for _ in range(chance.randrange(5))),
        "bytes_value": chance.randbytes(chance.randrange(5)),
        "color": chance.choice(["RED", "GREEN", "BLUE"]),
        "optional_int32": chance.randint(-3, 3),
        "optional_string": chance.choice(["", "x"]),
    }
    return {name: value for name, value in made.items() if chance.random() < 0.7}


def test_43_random_rows_of_every_type_convert(rig: Rig) -> None:
    chance = random.Random(43)
    rows = [random_scalars(chance) for _ in range(300)]
    kind = rig.type("Scalars")
    messages = [kind(**row).SerializeToString() for row in rows]
    found = rig.rows("Scalars", messages)
    for row, seen in zip(rows, found, strict=True):
        expected = {
            name: value for name, value in row.items() if value or name.startswith("optional") or value == "RED"
        }
        expected.pop("color", None) if expected.get("color") == "RED" else None
        assert {name: value for name, value in seen.items() if value is not None} == expected
    rig.again("Scalars", messages)


def test_44_missing_extra_and_mistyped_fields_are_errors_that_name_them(rig: Rig) -> None:
    def failing(message: str, kind: pa.DataType, **flags: Any) -> str:
        with pytest.raises(ProtobufAnalysisError, match=r"^.UNABLE_TO_CONVERT_TO_PROTOBUF_MESSAGE_TYPE.") as caught:
            rig.of({"Required": "behaviours2", "Cases": "behaviours_cases"}.get(message, "behaviours")).encode(
                message, [], kind, **flags
            )
        assert isinstance(caught.value.__cause__, ProtobufAnalysisError)
        return str(caught.value.__cause__)

    extra = failing("Basic", pa.struct([("id", pa.int64()), ("zz", pa.int32())]))
    assert extra.startswith("[NO_SQL_TYPE_IN_PROTOBUF_SCHEMA] Cannot find field 'zz' in Protobuf schema.")
    nested = failing("Deep", pa.struct([("middle", pa.struct([("zz", pa.int32())]))]))
    assert "Cannot find field 'middle.zz'" in nested
    required = failing("Required", pa.struct([("id", pa.int64())]))
    assert required.startswith("[PROTOBUF_FIELD_MISSING_IN_SQL_SCHEMA] Found field 'name' in Protobuf schema but")
    mistyped = failing("Basic", pa.struct([("id", pa.string())]))
    assert mistyped.startswith("[CANNOT_CONVERT_SQL_TYPE_TO_PROTOBUF_FIELD_TYPE] Cannot convert SQL `id` to Protobuf")
    assert "CANNOT_CONVERT" in failing("Basic", pa.struct([("id", pa.int32())]))
    assert "CANNOT_CONVERT" in failing("Basic", pa.struct([("id", pa.list_(pa.int64()))]))
    assert "CANNOT_CONVERT" in failing("Lists", pa.struct([("string_value", pa.string())]))
    assert "CANNOT_CONVERT" in failing("Deep", pa.struct([("middle", pa.int32())]))
    assert "CANNOT_CONVERT" in failing("Times", pa.struct([("time", pa.timestamp("us"))]))
    assert "CANNOT_CONVERT" in failing("Basic", pa.int64())
    ambiguous = failing("Cases", pa.struct([("Name", pa.string())]))
    assert "[PROTOBUF_FIELD_MISSING] Searching for Name" in ambiguous
    assert "gave 2 matches. Candidates: [name, NAME]" in ambiguous
    assert "Cannot find field 'ID'" in failing("Basic", pa.struct([("ID", pa.int64())]), case_sensitive=True)
    assert rig.encode("Basic", [{"ID": 1}], pa.struct([("ID", pa.int64())])) == [b"\x08\x01"]


def test_44_names_that_differ_in_case_only_need_a_case_sensitive_session(rig: Rig) -> None:
    cases = rig.of("behaviours_cases")
    with pytest.raises(ProtobufAnalysisError, match=r"\[PROTOBUF_FIELD_MISSING\].*\[name, NAME\]"):
        cases.ddl("Cases")
    assert cases.ddl("Cases", case_sensitive=True) == "struct<name:string,NAME:string>"
    message = cases.type("Cases")(name="a", NAME="b")
    assert cases.row("Cases", message, case_sensitive=True) == {"name": "a", "NAME": "b"}


def test_44_a_missing_required_field_is_an_error_both_ways(rig: Rig) -> None:
    two = rig.of("behaviours2")
    decoded = two.raw("Required", [b"\x08\x01", b"\x08\x01\x12\x00", b"\x08\x01\x12\x00\x1a\x00"])
    assert {row: reason.rpartition(": ")[2] for row, reason in decoded.errors.items()} == {0: "name", 2: "inner.number"}
    assert two.ddl("Required") == "struct<id:bigint,name:string,inner:struct<number:int>>"
    kind = pa.struct([("id", pa.int64()), ("name", pa.string()), ("inner", pa.struct([("number", pa.int32())]))])
    rows = [{"id": None, "name": None, "inner": None}, {"id": 1, "name": "n", "inner": {"number": None}}]
    assert two.encode("Required", rows, kind) == [b"\x08\x00\x12\x00", b"\x08\x01\x12\x01n\x1a\x02\x08\x00"]


def test_44_a_null_in_an_array_is_an_error_and_not_left_out(rig: Rig) -> None:
    with pytest.raises(ProtobufDataError, match=r"^\[PROTOBUF_NULL_ELEMENT\] A NULL in the array `int32_value`"):
        rig.encode("Lists", [{"int32_value": [1, None]}], pa.struct([("int32_value", pa.list_(pa.int32()))]))


def test_44_a_null_in_a_map_is_written_as_the_default(rig: Rig) -> None:
    kind = pa.struct([("int32_int32", pa.map_(pa.int32(), pa.int32()))])
    assert rig.encode("Maps", [{"int32_int32": [(1, None)]}], kind) == [bytes.fromhex("120408011000")]
    kind = pa.struct([("bool_basic", pa.map_(pa.bool_(), pa.struct([("id", pa.int64())])))])
    assert rig.encode("Maps", [{"bool_basic": [(True, None)]}], kind) == [bytes.fromhex("620408011200")]


def extended(rig: Rig) -> Any:
    message = rig.type("Extended")(name="n")
    pool = rig.schema.pool

    def set_extension(name: str, value: Any) -> None:
        handle = pool.FindExtensionByName(f"behaviours2.{name}")
        if handle.message_type is not None:
            message.Extensions[handle].MergeFromString(value)
        elif is_repeated(handle):
            message.Extensions[handle].extend(value)
        else:
            message.Extensions[handle] = value

    set_extension("extension_string", "s")
    set_extension("extension_int", 5)
    set_extension("extension_level", 2)
    set_extension("extension_message", b"\x0a\x01m")
    set_extension("extension_numbers", [1, 2])
    set_extension("ExtensionScope.nested_extension", True)
    set_extension("cross_file_extension", b"\x08\x07")
    return message


def test_45_extensions_are_dropped_or_kept_nested_repeated_and_from_another_file(rig: Rig) -> None:
    two = rig.of("behaviours2_extension")
    message = extended(two)
    assert two.ddl("Extended") == "struct<name:string>"
    assert two.row("Extended", message) == {"name": "n"}
    assert two.ddl("HoldsExtended") == "struct<extended:struct<name:string>>"
    row = {
        "name": "n",
        "extension_string": "s",
        "extension_int": 5,
        "extension_level": "HIGH",
        "extension_message": {"text": "m"},
        "extension_numbers": [1, 2],
        "nested_extension": True,
        "cross_file_extension": {"foo": 7},
    }
    assert two.row("Extended", message, extensions=True) == row
    holder = two.type("HoldsExtended")(extended=message)
    assert two.row("HoldsExtended", holder, extensions=True) == {"extended": row}
    two.again("Extended", [message], extensions=True)
    two.again("HoldsExtended", [holder], extensions=True)
    with pytest.raises(ProtobufAnalysisError, match=r"\[PROTOBUF_FIELD_MISSING\].*gave 2 matches"):
        two.ddl("Clash", extensions=True)
    assert two.ddl("Clash") == "struct<name:string>"
