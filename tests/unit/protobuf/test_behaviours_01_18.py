"""Behaviours 1 to 18 of docs/reference/protobuf-behaviours.md: types, nesting, recursion, round trips."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from connectors.protobuf.errors import ProtobufAnalysisError
from tests.support.protobuf_rig import Rig

BASIC = {"id": 7, "text": "seven", "color": "GREEN"}
SCALARS = {
    "bool_value": True,
    "int32_value": -(2**31),
    "sint32_value": -5,
    "uint32_value": 2**31 - 1,
    "fixed32_value": 9,
    "sfixed32_value": -9,
    "int64_value": -(2**63),
    "sint64_value": -(2**62),
    "uint64_value": 2**63 - 1,
    "fixed64_value": 2**40,
    "sfixed64_value": -(2**40),
    "float_value": -1.5,
    "double_value": 1e300,
    "string_value": "zażółć 🙂",
    "bytes_value": b"\x00\xff",
    "color": "BLUE",
    "optional_int32": 0,
    "optional_string": "",
}


def depth(value: str | int) -> dict[str, str]:
    return {"recursive.fields.max.depth": str(value)}


def test_01_every_scalar_kind_makes_a_round_trip(rig: Rig) -> None:
    message = rig.type("Scalars")(**SCALARS)
    assert rig.row("Scalars", message) == SCALARS
    rig.again("Scalars", [message, rig.type("Scalars")()])


def test_02_repeated_scalars_and_enums_keep_their_order(rig: Rig) -> None:
    values = {
        "bool_value": [True, False],
        "int32_value": [0, -1, 2**31 - 1],
        "sint32_value": [-1, 0, 1],
        "uint32_value": [0, 5],
        "fixed32_value": [5],
        "sfixed32_value": [-5, 0],
        "int64_value": [-1],
        "sint64_value": [-(2**63), 2**63 - 1],
        "uint64_value": [300, 70000],
        "fixed64_value": [1, 2, 3],
        "sfixed64_value": [-3],
        "float_value": [0.5, 0.0],
        "double_value": [1.25],
        "string_value": ["", "a"],
        "bytes_value": [b"", b"\xff"],
        "color": ["RED", "BLUE", "RED"],
        "unpacked": [1, 2, 300],
    }
    message = rig.type("Lists")(**values)
    assert rig.row("Lists", message) == values
    assert rig.row("Lists", b"") == {name: [] for name in values}
    rig.again("Lists", [message, rig.type("Lists")()])


def test_03_a_repeated_message_once_and_twice(rig: Rig) -> None:
    kind = rig.type("RepeatedMessage")
    messages = [kind(basic=[BASIC]), kind(basic=[BASIC, {"id": 8}])]
    second = {"id": 8, "text": None, "color": None}
    assert rig.rows("RepeatedMessage", messages) == [{"basic": [BASIC]}, {"basic": [BASIC, second]}]
    rig.again("RepeatedMessage", messages)


def test_04_maps_of_every_kind_and_a_duplicate_key_survive(rig: Rig) -> None:
    message = rig.type("Maps")()
    message.string_string["a"] = "b"
    message.string_string[""] = ""
    message.int32_int32[-1] = 0
    message.sint32_sint64[-2] = -3
    message.uint32_uint64[4] = 5
    message.fixed32_fixed64[6] = 7
    message.sfixed32_sfixed64[-8] = -9
    message.int64_bytes[-10] = b"\xff"
    message.sint64_float[-11] = 0.5
    message.uint64_double[12] = -0.0
    message.fixed64_bool[13] = False
    message.sfixed64_color[-14] = 5
    message.bool_basic[True].id = 15
    message.string_time["t"].seconds = 16
    row = rig.row("Maps", message)
    assert sorted(row["string_string"]) == [("", ""), ("a", "b")]
    assert [row[name][0] for name in row if name not in {"string_string", "string_time"}] == [
        (-1, 0),
        (-2, -3),
        (4, 5),
        (6, 7),
        (-8, -9),
        (-10, b"\xff"),
        (-11, 0.5),
        (12, -0.0),
        (13, False),
        (-14, "BLUE"),
        (True, {"id": 15, "text": None, "color": None}),
    ]
    assert row["string_time"][0][1].timestamp() == 16
    rig.again("Maps", [message])
    twice = bytes.fromhex("0a060a0161120131 0a060a0161120132 0a030a0162")
    assert rig.row("Maps", twice)["string_string"] == [("a", "1"), ("a", "2"), ("b", "")]


def test_05_nested_and_shared_enums(rig: Rig) -> None:
    values = {"inner": "SECOND", "shared": "BLUE", "holder": {"inner": "FIRST"}, "inners": ["FIRST", "NOTHING"]}
    message = rig.type("NestedEnums")(**values)
    assert rig.row("NestedEnums", message) == values
    rig.again("NestedEnums", [message])


def test_06_messages_nested_three_deep(rig: Rig) -> None:
    values = {"middle": {"bottom": {"text": "c", "number": 3}, "text": "b"}, "text": "a"}
    message = rig.type("Deep")(**values)
    assert rig.row("Deep", message) == values
    hollow = rig.type("Deep")(middle={"bottom": {}})
    assert rig.row("Deep", hollow) == {"middle": {"bottom": {"text": None, "number": None}, "text": None}, "text": None}
    rig.again("Deep", [message, hollow, rig.type("Deep")()])


@pytest.mark.parametrize("message", ["RecursionB", "RecursionA"])
def test_07_recursion_through_another_message_is_refused(message: str, rig: Rig) -> None:
    with pytest.raises(ProtobufAnalysisError, match=r"^\[RECURSIVE_PROTOBUF_SCHEMA\] Found recursive reference"):
        rig.ddl(message)


def test_08_recursion_through_an_array_is_refused(rig: Rig) -> None:
    with pytest.raises(ProtobufAnalysisError, match="RECURSIVE_PROTOBUF_SCHEMA"):
        rig.ddl("RecursionC")


@pytest.mark.parametrize("limit", ["0", "-1", "11", "-5"])
def test_09_recursion_is_refused_at_depths_that_are_none(limit: str, rig: Rig) -> None:
    with pytest.raises(ProtobufAnalysisError, match=re.escape("behaviours.Person.bff")):
        rig.ddl("Person", depth(limit))


def test_10_depth_1_2_and_3_keep_so_many_levels(rig: Rig) -> None:
    assert rig.ddl("Person", depth(1)) == "struct<name:string>"
    assert rig.ddl("Person", depth(2)) == "struct<name:string,bff:struct<name:string>>"
    assert rig.ddl("Person", depth(3)) == "struct<name:string,bff:struct<name:string,bff:struct<name:string>>>"
    assert rig.ddl("RecursionC", depth(2)) == (
        "struct<name:string,d:struct<name:string,c:array<struct<name:string,d:struct<name:string>>>>>"
    )
    assert rig.ddl("Person", depth(10)).count("bff") == 9


def test_11_a_wrapper_around_a_recursive_message_counts_from_the_inner_one(rig: Rig) -> None:
    assert rig.ddl("PersonWrapper", depth(1)) == "struct<person:struct<name:string>>"
    assert rig.ddl("PersonWrapper", depth(2)) == "struct<person:struct<name:string,bff:struct<name:string>>>"


def test_12_recursion_in_an_array_or_a_map_drops_the_container(rig: Rig) -> None:
    assert rig.ddl("PersonLists", depth(1)) == "struct<name:string>"
    inner = "struct<name:string>"
    assert rig.ddl("PersonLists", depth(2)) == (
        f"struct<name:string,friends:array<{inner}>,groups:map<string,{inner}>>"
    )


def test_13_a_oneof_with_recursion_at_depth_2(rig: Rig) -> None:
    inner = "struct<key:string,number:int,text:string,value:string>"
    assert rig.ddl("OneOfRecursion", depth(2)) == (
        f"struct<key:string,number:int,again:{inner},text:string,value:string>"
    )
    message = rig.type("OneOfRecursion")(key="k", again={"key": "i", "number": 1})
    row = rig.row("OneOfRecursion", message, depth(2))
    assert (row["number"], row["text"], row["again"]["number"]) == (None, None, 1)


def test_14_a_round_trip_at_depth_2_cuts_off_what_is_deeper(rig: Rig) -> None:
    message = rig.type("Person")(name="a", bff={"name": "b", "bff": {"name": "c", "bff": {"name": "d"}}})
    row = rig.row("Person", message, depth(2))
    assert row == {"name": "a", "bff": {"name": "b"}}
    kind = pa.struct([("name", pa.string()), ("bff", pa.struct([("name", pa.string())]))])
    assert rig.encode("Person", [row], kind) == [rig.type("Person")(name="a", bff={"name": "b"}).SerializeToString()]


def test_15_an_old_producer_gives_a_new_consumer_nulls(rig: Rig) -> None:
    old = rig.type("OldProducer")(key="k").SerializeToString()
    assert rig.row("NewConsumer", old) == {"key": "k", "number": None, "color": None, "list": [], "basic": None}


def test_16_a_new_producer_s_fields_are_dropped_by_an_old_consumer(rig: Rig) -> None:
    new = rig.type("NewConsumer")(key="k", number=1, color="BLUE", list=[1, 2], basic=BASIC).SerializeToString()
    assert rig.row("OldProducer", new) == {"key": "k"}
    assert rig.rows("OldProducer", [new] * 500) == [{"key": "k"}] * 500


def test_17_nulls_are_left_out_by_to_protobuf(rig: Rig) -> None:
    kind = rig.call("NewConsumer").decoder.decode(pa.array([b""], pa.binary())).values.type
    nothing = {"key": None, "number": None, "color": None, "list": None, "basic": None}
    some = {**nothing, "key": "k", "basic": {"id": None, "text": "t", "color": None}}
    encoded = rig.encode("NewConsumer", [nothing, None, some], kind)
    assert encoded[:2] == [b"", None]
    assert rig.type("NewConsumer").FromString(encoded[2]) == rig.type("NewConsumer")(key="k", basic={"text": "t"})


def test_18_a_filtered_column_is_encoded_again(rig: Rig) -> None:
    messages = [rig.type("Basic")(id=number, text=f"t{number}") for number in range(1, 200)]
    call = rig.call("Basic")
    structs = call(pa.array([each.SerializeToString() for each in messages], pa.binary()))
    kept = structs.filter(pc.greater(structs.field("id"), 150))
    assert rig.encode("Basic", kept.to_pylist(), structs.type) == [each.SerializeToString() for each in messages[150:]]
    sliced = structs.slice(100, 3)
    assert rig.encode("Basic", sliced.to_pylist(), structs.type) == [
        each.SerializeToString() for each in messages[100:103]
    ]
