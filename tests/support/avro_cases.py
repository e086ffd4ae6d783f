"""Cases of `from_avro` whose answers Spark's own has given: `tools.avro_answers` records them."""

from __future__ import annotations

from typing import Any

from tests.support.avro_rig import encode


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def decimal(precision: int, scale: int = 0) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


def record(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    """A record of fields: each has a name, a type, and perhaps further attributes."""
    made = [{"name": field[0], "type": field[1], **(field[2] if len(field) > 2 else {})} for field in fields]
    return {"type": "record", "name": name, "fields": made, **more}


NODE = record("Node", ("v", "int"), ("next", ["null", "Node"]))
ORDER = record(
    "Order",
    ("id", "long"),
    ("customer", "string"),
    ("amount", "double"),
    ("note", ["null", "string"]),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
    ("tags", {"type": "array", "items": "string"}),
    ("counts", {"type": "map", "values": "int"}),
    ("any", ["int", "string", {"type": "fixed", "name": "F", "size": 3}]),
)
VALUE = {
    "id": 2**40,
    "customer": "somebody",
    "amount": 1.5,
    "note": "text",
    "kind": "B",
    "tags": ["red", "green"],
    "counts": {"a": 1, "b": -2},
    "any": b"abc",
}
MESSAGE = encode(ORDER, VALUE)
BYTES = (0x00, 0x01, 0x03, 0x7F, 0x80, 0xFF)
PROMOTED = record("A", ("i", "int"), ("j", "int"), ("k", "long"), ("f", "float"), ("s", "string"), ("b", "bytes"))

Case = tuple[str, Any, Any, list[bytes | None], dict[str, str]]
"""A name, the writer's schema, the reader's, messages and options; the mode is PERMISSIVE."""

CASES: list[Case] = [
    ("a record, one that is cut, NULL and nothing", ORDER, None, [MESSAGE, MESSAGE[:5], None, b""], {}),
    ("a record that is cut off anywhere", ORDER, None, [MESSAGE[:end] for end in range(len(MESSAGE))], {}),
    (
        "a record with garbage at any byte",
        ORDER,
        None,
        [MESSAGE[:place] + bytes([byte]) + MESSAGE[place + 1 :] for place in range(len(MESSAGE)) for byte in BYTES],
        {},
    ),
    (
        "int",
        "int",
        None,
        [bytes.fromhex(text) for text in ("01", "8000", "ffffffff7f", "ffffffffff01", "8080808080", "", "ffffffff0f")],
        {},
    ),
    (
        "long",
        "long",
        None,
        [
            bytes.fromhex(text)
            for text in (
                "01",
                "feffffffffffffffff01",
                "ffffffffffffffffffff01",
                "808080808080808001",
                "ffffffffffffffffff7f",
            )
        ],
        {},
    ),
    ("bool", "boolean", None, [b"\0", b"\1", b"\2"], {}),
    ("date", logical("int", "date"), None, [encode("int", d) for d in (-141428, 0, 20000)], {}),
    (
        "date exc",
        logical("int", "date"),
        None,
        [encode("int", d) for d in (-141428, 0, 20000)],
        {"datetimeRebaseMode": "EXCEPTION"},
    ),
    (
        "ts exc",
        logical("long", "timestamp-micros"),
        None,
        [encode("long", d) for d in (-2208988800000001, -2208988800000000, 0)],
        {"datetimeRebaseMode": "EXCEPTION"},
    ),
    ("millis", logical("long", "timestamp-millis"), None, [encode("long", d) for d in (1, -1, 2**62)], {}),
    ("local", logical("long", "local-timestamp-millis"), None, [encode("long", d) for d in (1, -1, 2**62)], {}),
    ("localmicros", logical("long", "local-timestamp-micros"), None, [encode("long", d) for d in (1, -1)], {}),
    (
        "dec",
        decimal(4, 2),
        None,
        [b"\x04\x01\x00", b"\x02\xff", b"\0", b"\x04\x7f\xff", b"\x06\0\0\5", b"\x14" + b"\1" + b"\0" * 8 + b"\5"],
        {},
    ),
    (
        "dec20",
        decimal(20, 2),
        None,
        [b"\x04\x01\x00", b"\0", b"\x14" + b"\1" + b"\0" * 8 + b"\5", b"\x12" + b"\x7f" * 9],
        {},
    ),
    ("intlong", ["int", "long"], None, [b"\0\2", b"\2\4", b"\4\4"], {}),
    ("floatdouble", ["null", "float", "double"], None, [b"\2" + b"\0\0\x80\x3f", b"\4" + b"\0" * 8, b"\0"], {}),
    ("union", ["int", "string", "null"], None, [b"\0\2", b"\2\2a", b"\4", b"\6", b"\1"], {}),
    (
        "stable",
        ["int", record("Rec", ("a", "int")), "null"],
        None,
        [b"\0\2", b"\2\2", b"\4"],
        {"enableStableIdentifiersForUnionType": "true"},
    ),
    ("nullonly", ["null"], None, [b"\0", b"\2"], {}),
    ("null", "null", None, [b"", b"a"], {}),
    ("rec1", NODE, None, [b"\2\2\4\2\6\0", b"\2\0"], {"recursiveFieldMaxDepth": "1"}),
    ("rec2", NODE, None, [b"\2\2\4\2\6\0", b"\2\0", b"\2\2\4"], {"recursiveFieldMaxDepth": "2"}),
    ("rec3", NODE, None, [b"\2\2\4\2\6\0", b"\2\0"], {"recursiveFieldMaxDepth": "3"}),
    (
        "a recursion in lists",
        record("T", ("c", {"type": "array", "items": "T"}), ("m", {"type": "map", "values": "T"})),
        None,
        [b"\2\0\0\0\0"],
        {"recursiveFieldMaxDepth": "2"},
    ),
    ("fixed uuid", {"type": "fixed", "name": "u", "size": 2, "logicalType": "duration"}, None, [b"ab", b"a"], {}),
    (
        "blocks",
        {"type": "array", "items": "int"},
        None,
        [
            bytes.fromhex("030402040206" + "00"),
            bytes.fromhex("feffffffffffffffff01"),
            bytes.fromhex("ffffffffffffffffff0100"),
        ],
        {},
    ),
    ("utf8", "string", None, [b"\4\xff\xfe", b"\2a"], {}),
    ("map dup", {"type": "map", "values": "int"}, None, [bytes.fromhex("06026102026204026106" + "00")], {}),
    # resolution
    (
        "promote",
        PROMOTED,
        record("A", ("i", "long"), ("j", "double"), ("k", "float"), ("f", "double"), ("s", "bytes"), ("b", "string")),
        [encode(PROMOTED, {"i": 1, "j": 2, "k": 2**24 + 1, "f": 0.1, "s": "x", "b": b"y"})],
        {},
    ),
    (
        "default",
        record("A", ("a", "int")),
        record(
            "B",
            ("b", "string", {"default": "d"}),
            ("a", "int"),
            ("n", ["null", "int"], {"default": None}),
            ("x", {"type": "array", "items": "int"}, {"default": [1, 2]}),
            ("y", record("N", ("q", "bytes", {"default": "\u00ff"})), {"default": {}}),
            ("z", {"type": "map", "values": "double"}, {"default": {"k": 1}}),
            ("dd", decimal(4, 1), {"default": "\u0005"}),
            ("u", ["string", "int"], {"default": "s"}),
        ),
        [b"\2", b""],
        {},
    ),
    (
        "alias",
        record("A", ("a", "int"), ("old", "string")),
        record("A", ("new", "string", {"aliases": ["old"]}), ("a", "long")),
        [b"\2\2z"],
        {},
    ),
    (
        "alias rec",
        record("Old", ("old", "string")),
        record("New", ("new", "string", {"aliases": ["old"]}), aliases=["Old"]),
        [b"\2z"],
        {},
    ),
    (
        "drop",
        record(
            "A",
            ("gone", {"type": "array", "items": record("X", ("p", "string"), ("q", ["null", "long"]))}),
            ("a", "int"),
        ),
        record("A", ("a", "int")),
        [b"\2\2z\2\2\0\6", b"\0\6", b"\2\2z\7"],
        {},
    ),
    (
        "enum",
        {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]},
        {"type": "enum", "name": "E", "symbols": ["C", "A"], "default": "A"},
        [b"\0", b"\2", b"\4", b"\6"],
        {},
    ),
    (
        "enum nodef",
        {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]},
        {"type": "enum", "name": "E", "symbols": ["C", "A"]},
        [b"\0", b"\2", b"\4"],
        {},
    ),
    ("to union", "int", ["null", "long"], [b"\2"], {}),
    ("to members", "int", ["string", "long"], [b"\2"], {}),
    ("union reorder", ["null", "string", "int"], ["int", "null", "string"], [b"\0", b"\2\2a", b"\4\2"], {}),
    ("union to plain", ["null", "int"], "long", [b"\0", b"\2\2"], {}),
    (
        "union int to floats",
        ["null", "int"],
        ["null", "float", "double"],
        [b"\0", b"\2" + encode("int", 2**24 + 1)],
        {},
    ),
    ("union missing", ["null", "string", "boolean"], ["null", "string"], [b"\0", b"\2\2a", b"\4\1"], {}),
    ("catalyst", {"type": "long", "spark.sql.catalyst.type": "interval day to second"}, None, [b"\2"], {}),
    ("empty rec", record("E"), None, [b"", b"a"], {}),
    (
        "ns",
        {
            "type": "record",
            "name": "a.R",
            "fields": [
                {"name": "x", "type": {"type": "enum", "name": "E", "symbols": ["P"]}},
                {"name": "y", "type": "E"},
            ],
        },
        {
            "type": "record",
            "name": "b.R",
            "fields": [{"name": "y", "type": {"type": "enum", "name": "E", "symbols": ["P"]}}],
        },
        [b"\0\0"],
        {},
    ),
    ("fixed ns", {"type": "fixed", "name": "a.F", "size": 1}, {"type": "fixed", "name": "b.F", "size": 1}, [b"a"], {}),
]

DIFFERENT = {
    "dec": "of a decimal of at most 18 digits Spark takes the last 8 bytes; here one with too many digits is a bad row",
    "union": "Spark reads no union that is the whole schema, unless it is a type and null: all its rows are bad",
    "stable": "as above",
    "nullonly": "as above",
    "to members": "as above",
    "union reorder": "as above",
    "blocks": "Java takes the count -2**63 for the end of a list; here it is a bad row",
}
"""The cases in which we differ, and why."""


def plain(value: Any) -> Any:
    """Return a value of a row, or of Arrow, as JSON has it."""
    if isinstance(value, bytes | bytearray):
        return f"hex {value.hex()}"
    if isinstance(value, list) and value and type(value[0]) is tuple:
        return plain(dict(value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in sorted(value.items())} or []  # as an empty map is in Arrow
    if isinstance(value, list | tuple):
        fields = getattr(value, "__fields__", None)
        return plain(value.asDict()) if fields is not None else [plain(item) for item in value]
    if hasattr(value, "isoformat"):
        return value.replace(tzinfo=None).isoformat() if hasattr(value, "tzinfo") else value.isoformat()
    return value if value is None or isinstance(value, bool | int | str) else str(value)
