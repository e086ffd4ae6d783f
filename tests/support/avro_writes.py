"""Cases of `to_avro` whose answers Spark's own has given: `tools.avro_answers` records them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.support.avro_cases import NODE, decimal, logical, record

UTC_TIME = pa.timestamp("us", tz="UTC")
NTZ = pa.timestamp("us")
LARGE = [0, 1, -1, 63, 64, -64, -65, 8191, 8192, 2**31 - 1, -(2**31)]
LONGS = [*LARGE, 2**62, -(2**62), 2**63 - 1, -(2**63), 2**55, 2**56 - 1]
TIMES = [datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), None]
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
INNER = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])


def part(name: str, kind: pa.DataType, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


def required(items: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", items, nullable=False))


WriteCase = tuple[str, pa.DataType, bool, list[Any], Any]
"""A name, the type of the column, whether it can be NULL, its values, and the schema; None for Spark's own."""


def column(kind: pa.DataType, values: list[Any], *, nullable: bool = True) -> pa.StructArray:
    """Return what Spark sends for a column: it stands in a struct, whose type says whether it can be NULL."""
    values = [_entries(kind, value) for value in values]
    return pa.StructArray.from_arrays([pa.array(values, kind)], fields=[pa.field("value", kind, nullable=nullable)])


def _entries(kind: pa.DataType, value: Any) -> Any:
    """Return a value with maps as lists of entries, as pyarrow takes them."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _entries(kind.item_type, item)) for key, item in value.items()]
    if pa.types.is_struct(kind):
        return {part.name: _entries(part.type, value[part.name]) for part in kind}
    return [_entries(kind.value_type, item) for item in value] if pa.types.is_list(kind) else value


WRITES: list[WriteCase] = [
    ("boolean", pa.bool_(), True, [True, False, None], None),
    ("tinyint", pa.int8(), True, [1, -128, None], None),
    ("smallint", pa.int16(), False, [1, -(2**15)], None),
    ("int", pa.int32(), True, [*LARGE, None], None),
    ("long", pa.int64(), False, LONGS, None),
    ("float", pa.float32(), True, [0.0, -0.0, 1.5, float("inf"), float("nan"), None], None),
    ("double", pa.float64(), False, [0.0, -0.0, 1.1, float("-inf"), float("nan")], None),
    ("string", pa.string(), True, ["", "a", "ä€😀", "x" * 200, None], None),
    ("binary", pa.binary(), True, [b"", b"\0\xff", b"x" * 8200, None], None),
    ("date", pa.date32(), True, [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), None], None),
    ("timestamp", UTC_TIME, True, TIMES, None),
    ("timestamp as millis", UTC_TIME, True, TIMES, ["null", logical("long", "timestamp-millis")]),
    ("timestamp as long", UTC_TIME, True, TIMES, ["long", "null"]),
    ("timestamp as local", UTC_TIME, True, TIMES, logical("long", "local-timestamp-micros")),
    ("ntz", NTZ, True, [TIMES[0].replace(tzinfo=None), TIMES[1].replace(tzinfo=None), None], None),
    (
        "ntz as millis",
        NTZ,
        False,
        [TIMES[0].replace(tzinfo=None), TIMES[1].replace(tzinfo=None)],
        logical("long", "local-timestamp-millis"),
    ),
    ("day-time interval", pa.duration("us"), True, [timedelta(days=-1, microseconds=3), None], None),
    ("decimal", pa.decimal128(4, 2), True, [Decimal("2.56"), Decimal("-0.01"), Decimal("99.99"), None], None),
    ("decimal of 38", pa.decimal128(38, 10), False, [Decimal("9" * 28), Decimal(-1), Decimal(0)], None),
    (
        "decimal as bytes",
        pa.decimal128(20, 2),
        False,
        [Decimal(text) for text in ("0", "1.27", "1.28", "-1.28", "-1.29", "327.67", "327.68", "-327.69", "9" * 18)],
        decimal(20, 2),
    ),
    (
        "decimal as a large fixed",
        pa.decimal128(4, 1),
        False,
        [Decimal("1.5"), Decimal("-1.5")],
        {"type": "fixed", "name": "F", "size": 20, "logicalType": "decimal", "precision": 4, "scale": 1},
    ),
    ("decimal of another scale", pa.decimal128(4, 1), False, [Decimal("1.5")], decimal(4, 2)),
    ("null", pa.null(), True, [None], None),
    ("enum", pa.string(), True, ["B", "A", None], ["null", ENUM]),
    ("enum of another symbol", pa.string(), True, ["C"], ENUM),
    ("fixed", pa.binary(), True, [b"ab", None], [{"type": "fixed", "name": "F", "size": 2}, "null"]),
    ("fixed of another size", pa.binary(), True, [b"abc"], {"type": "fixed", "name": "F", "size": 2}),
    ("array", pa.list_(pa.int32()), True, [[], [1, None, 3], None, list(range(100))], None),
    ("array without nulls", required(pa.string()), False, [["a", "b"], [], ["c"]], None),
    ("array of arrays", pa.list_(required(pa.int64())), True, [[[1], None, []], None, [[2, 3]]], None),
    (
        "array with a null in a schema without",
        pa.list_(pa.int32()),
        True,
        [[1, None]],
        {"type": "array", "items": "int"},
    ),
    ("map", pa.map_(pa.string(), pa.int32()), True, [{"k": 1}, {}, {"x": None}, None], None),
    ("map of several entries", pa.map_(pa.string(), pa.int32()), False, [dict.fromkeys("zyxabc", 1)], None),
    ("struct", INNER, True, [{"a": 1, "b": "x"}, {"a": 2, "b": None}, None], None),
    ("struct that is never null", INNER, False, [{"a": 1, "b": "x"}, {"a": 2, "b": None}], None),
    ("empty struct", pa.struct([]), False, [{}, {}], None),
    (
        "nested",
        pa.struct([part("i", INNER), part("l", pa.list_(INNER)), part("m", pa.map_(pa.string(), INNER))]),
        False,
        [
            {"i": {"a": 1, "b": "x"}, "l": [{"a": 2, "b": None}, None], "m": {"k": {"a": 3, "b": "y"}}},
            {"i": None, "l": None, "m": None},
            {"i": {"a": -1, "b": ""}, "l": [], "m": {}},
        ],
        None,
    ),
    (
        "fields in another order, case and number",
        INNER,
        False,
        [{"a": 1, "b": "x"}, {"a": 2, "b": None}],
        record("R", ("none", ["null", "long"]), ("B", ["null", "string"]), ("A", "int"), ("last", ["int", "null"])),
    ),
    ("a column that is not in the schema", INNER, False, [{"a": 1, "b": "x"}], record("R", ("a", "int"))),
    (
        "a required field that is no column",
        INNER,
        False,
        [{"a": 1, "b": "x"}],
        record("R", ("a", "int"), ("b", ["string", "null"]), ("c", "int")),
    ),
    ("a null in a required field", INNER, False, [{"a": 1, "b": None}], record("R", ("a", "int"), ("b", "string"))),
    (
        "union of members",
        pa.struct([part("u", pa.struct([part("member0", pa.int32()), part("member1", pa.string())]))]),
        False,
        [
            {"u": {"member0": 1, "member1": None}},
            {"u": {"member0": None, "member1": "x"}},
            {"u": {"member0": 2, "member1": "y"}},
            {"u": None},
            {"u": {"member0": None, "member1": None}},
        ],
        record("R", ("u", ["int", "null", "string"])),
    ),
    (
        "union of other members",
        pa.struct([part("u", pa.struct([part("a", pa.int32()), part("b", pa.string())]))]),
        False,
        [{"u": {"a": 1, "b": None}}],
        record("R", ("u", ["int", "string"])),
    ),
    (
        "long in int and long",
        pa.struct([part("u", pa.int64())]),
        False,
        [{"u": 1}],
        record("R", ("u", ["int", "long"])),
    ),
    (
        "double in float and double",
        pa.struct([part("u", pa.float64())]),
        False,
        [{"u": 1.5}, {"u": None}],
        record("R", ("u", ["null", "float", "double"])),
    ),
    ("int in int and long", pa.struct([part("u", pa.int32())]), False, [{"u": 1}], record("R", ("u", ["int", "long"]))),
    ("float in float and double", pa.float32(), False, [1.5], ["float", "double"]),
    ("double that can be null in float and double", pa.float64(), True, [1.5, None], ["float", "double"]),
    (
        "union of members at the root",
        pa.struct([part("member0", pa.int32()), part("member1", pa.string())]),
        False,
        [{"member0": 1, "member1": None}, {"member0": None, "member1": "x"}],
        ["int", "string"],
    ),
    (
        "union of members without one",
        pa.struct([part("member0", pa.int32()), part("member1", pa.string())]),
        False,
        [{"member0": None, "member1": None}],
        ["int", "string"],
    ),
    (
        "recursive schema",
        pa.struct([part("v", pa.int32()), part("next", pa.struct([part("v", pa.int32())]))]),
        False,
        [{"v": 1, "next": {"v": 2}}, {"v": 3, "next": None}],
        NODE,
    ),
    (
        "record behind null",
        INNER,
        True,
        [{"a": 1, "b": "x"}, None],
        ["null", record("R", ("a", "int"), ("b", "string"))],
    ),
    ("enums in a map", pa.map_(pa.string(), pa.string()), False, [{"k": "B"}], {"type": "map", "values": ENUM}),
    ("booleans that can be null", pa.list_(pa.bool_()), False, [[True, None, False]], None),
    ("null by a schema without", pa.int32(), True, [1, None], "int"),
    ("int as null", pa.int32(), True, [1, None], "null"),
    ("int as a union of null", pa.int32(), True, [1, None], ["null"]),
    ("int as a union of int", pa.int32(), False, [1], ["int"]),
    ("date as int", pa.date32(), False, [date(2026, 1, 2)], "int"),
    ("day-time interval as int", pa.duration("us"), False, [timedelta(1)], "int"),
    ("binary as string", pa.binary(), False, [b"a"], "string"),
    ("tinyint as long", pa.int8(), False, [1], "long"),
    ("float as double", pa.float32(), False, [1.5], "double"),
    ("struct as map", INNER, False, [{"a": 1, "b": "x"}], {"type": "map", "values": "string"}),
    ("map of int keys", pa.map_(pa.int32(), pa.int32()), False, [{1: 2}], None),
    (
        "two fields of one name but for the case",
        pa.struct([part("a", pa.int32())]),
        False,
        [{"a": 1}],
        record("R", ("a", "int"), ("A", ["null", "int"])),
    ),
    ("timestamp as time of the day", UTC_TIME, False, TIMES[:1], logical("long", "time-micros")),
    ("timestamp as nanos", UTC_TIME, False, TIMES[:1], logical("long", "timestamp-nanos")),
    ("ntz as long", NTZ, False, [TIMES[0].replace(tzinfo=None)], "long"),
    ("ntz as timestamp", NTZ, False, [TIMES[0].replace(tzinfo=None)], logical("long", "timestamp-micros")),
    ("time of the day", pa.time64("ns"), True, [3_723_000_004_000, None], None),
    ("time of the day as long", pa.time64("ns"), False, [3_723_000_004_000], "long"),
    ("a name that Avro cannot have", pa.struct([part("a b", pa.int32())]), False, [{"a b": 1}], None),
    (
        "a field of null that is no column",
        pa.struct([part("a", pa.int32(), nullable=False)]),
        False,
        [{"a": 1}],
        record("R", ("a", "int"), ("n", "null")),
    ),
    ("long as int", pa.int64(), False, [1], "int"),
    ("int as long", pa.int32(), False, [1], "long"),
    ("string as bytes", pa.string(), False, ["a"], "bytes"),
]

DIFFERENT = {
    "map of several entries": "Spark writes them in the order of Java's HashMap; here they keep that of the column",
    **dict.fromkeys(
        ("union of members at the root", "union of members without one"),
        "Spark writes a union only below a record; here it is written as the whole schema too",
    ),
}
"""Cases whose messages are others than Spark's, with the reason."""
