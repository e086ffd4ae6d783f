"""Types of columns, how many there may be, and fields without a column that still decide what the columns hold."""

from __future__ import annotations

from inspect import signature

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type

from connectors.protobuf.errors import ProtobufAnalysisError
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.descriptors import Schema
from connectors.protobuf.schema.plan import MAX_LEVELS, compile_plan
from connectors.protobuf.worker import Engine
from tests.support.protobuf_rig import Rig, compiled

IN_UTC = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
"""Spark 4.0 has no time zone in types."""


@pytest.mark.parametrize("options", [{}, {"upcast.unsigned.ints": "true"}, {"unwrap.primitive.wrapper.types": "true"}])
@pytest.mark.parametrize("message", ["Scalars", "Lists", "Maps", "Times", "Unsigned", "Wrappers", "NestedEnums"])
def test_arrow_types_are_the_ones_that_spark_translates_to(message: str, options: dict[str, str]) -> None:
    rig = Rig(Engine.AUTO)
    plan = compile_plan(rig.schema.find(message), rig.schema, rig.call(message, options).options)
    assert plan.arrow_type == to_arrow_type(plan.spark_type, **IN_UTC)
    assert rig.raw(message, [b""], options).values.type == plan.arrow_type


def test_names_of_fields_that_are_methods_or_keywords() -> None:
    for engine in (Engine.PYTHON, Engine.FAST):
        rig = Rig(engine)
        data = bytes.fromhex("0a0161 1005 1a0162")
        row = {"Clear": "a", "class": 5, "SerializeToString": "b"}
        assert rig.row("Names", data) == row
        kind = pa.struct([(name, pa.int32() if name == "class" else pa.string()) for name in row])
        assert rig.encode("Names", [row], kind) == [data]


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


ONEOF = """syntax = "proto3"; message Nothing {}
message O { oneof c { int32 n = 1; Nothing nothing = 2; string s = 3; } }
message Deep { O one = 1; repeated O many = 2; map<int32, O> named = 3; }"""


@pytest.mark.parametrize(
    ("data", "number", "text"),
    [
        ("08051200", None, None),
        ("1a01611200", None, None),
        ("12000805", 5, None),
        ("120012001a0161", None, "a"),
        ("08051200 1a0161", None, "a"),
        ("1200", None, None),
        ("12020801 0805", 5, None),
    ],
)
def test_an_empty_message_that_is_dropped_still_replaces_the_other_members_of_its_oneof(
    data: str, number: int | None, text: str | None, rig: Rig
) -> None:
    message, row = bytes.fromhex(data), {"n": number, "s": text}
    rig = rig.of(compiled(ONEOF))
    assert rig.rows("O", [b"\x08\x01", message]) == [{"n": 1, "s": None}, row]
    inside = b"".join(bytes([tag, len(message)]) + message for tag in (0x0A, 0x12))
    entry = b"\x08\x07\x12" + bytes([len(message)]) + message
    deep = inside + b"\x1a" + bytes([len(entry)]) + entry
    assert rig.row("Deep", deep) == {"one": row, "many": [row], "named": [(7, row)]}


@pytest.mark.parametrize(("depth", "data"), [("1", "08051200"), ("2", "1204 0805 1200")])
def test_a_recursive_member_beyond_the_depth_still_replaces_the_other_members_of_its_oneof(
    depth: str, data: str, rig: Rig
) -> None:
    rig = rig.of(compiled('syntax = "proto3"; message R { oneof c { int32 n = 1; R again = 2; } }'))
    row = rig.row("R", bytes.fromhex(data), {"recursive.fields.max.depth": depth})
    assert row == ({"n": None} if depth == "1" else {"n": None, "again": {"n": None}})


PROTO2 = """syntax = "proto2"; message Nothing {} message M { optional int32 other = 9;
oneof c { int32 n = 1 [default = 7]; Nothing nothing = 2; group Gone = 4 {} Nothing far = 70000; } }"""


@pytest.mark.parametrize(
    ("data", "number"),
    [("0805", 5), ("08051200", 7), ("1200", 7), ("0805 2324", 7), ("2324 0805", 5), ("0805 82972200", 7)],
)
def test_a_member_that_a_dropped_one_replaced_has_its_declared_default(data: str, number: int, rig: Rig) -> None:
    assert rig.of(compiled(PROTO2)).rows("M", [b"\x48\x03", bytes.fromhex(data)]) == [
        {"other": 3, "n": 7},
        {"other": None, "n": number},
    ]


REQUIRED = """syntax = "proto2"; message Nothing {} message M { optional int32 n = 1; required Nothing nothing = 2;
optional M again = 3; } message Deep { repeated M many = 1; }"""


def test_a_map_entry_without_its_value_misses_the_required_fields_of_that_value(rig: Rig) -> None:
    rig = rig.of(
        compiled("""syntax = "proto2"; message R { required int32 n = 1; } message O { optional R r = 1; }
    message M { map<string, R> named = 1; map<string, O> others = 2; }""")
    )
    seen = rig.raw("M", [bytes.fromhex(each) for each in ("0a030a0161", "0a070a016112020805", "12030a0161")])
    assert {row: reason.rpartition(": ")[2] for row, reason in seen.errors.items()} == {0: "named[0].value"}
    assert seen.values.to_pylist()[1:] == [
        {"named": [("a", {"n": 5})], "others": []},
        {"named": [], "others": [("a", {"r": None})]},
    ]


def test_a_required_message_that_is_dropped_must_be_there(rig: Rig) -> None:
    rig = rig.of(compiled(REQUIRED))
    options = {"recursive.fields.max.depth": "1"}
    seen = rig.raw("M", [bytes.fromhex(each) for each in ("08051200", "0805", "1200 1a00", "1200 1a021200")], options)
    reasons = {row: reason.rpartition(": ")[2] for row, reason in seen.errors.items()}
    assert reasons == {1: "nothing", 2: "again.nothing"}
    inside = rig.raw("Deep", [bytes.fromhex(each) for each in ("0a041200 0805", "0a020805", "0a00", "")], options)
    assert sorted(inside.errors) == [1, 2]


@pytest.mark.parametrize("levels", [100, 101, 400, 20_000])
def test_messages_in_messages_are_bounded_before_any_codec_sees_them(levels: int) -> None:
    text = 'syntax = "proto3";' + "".join(f"message M{n} {{ M{n + 1} f = 1; }}" for n in range(levels - 1))
    schema = Schema(compiled(f"{text} message M{levels - 1} {{ int32 v = 1; }}"))
    if levels == MAX_LEVELS:
        assert compile_plan(schema.find("M0"), schema, ProtobufOptions()).complete
        return
    with pytest.raises(ProtobufAnalysisError, match=r"^\[PROTOBUF_TOO_DEEP\] The message M0 has"):
        compile_plan(schema.find("M0"), schema, ProtobufOptions())
