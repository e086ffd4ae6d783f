"""Schemas with a value each, of which Java's Avro has given canonical form, fingerprint and single-object message."""

from __future__ import annotations

from typing import Any

from tests.support.avro_cases import NODE, ORDER, VALUE, decimal, logical, record

_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A", "doc": "a symbol", "aliases": ["Old"]}

OBJECTS: dict[str, tuple[Any, Any]] = {
    **{kind: (kind, None) for kind in ("null",)},
    "boolean": ("boolean", True),
    "int": ({"type": "int"}, -1),
    "long": ({"type": "long", "logicalType": "timestamp-millis"}, 2**40),
    "float": ("float", 1.5),
    "double": ("double", -0.0),
    "bytes": ("bytes", b"\x00\xff"),
    "string": ("string", "ä€"),
    "array": ({"type": "array", "items": {"type": "array", "items": "int"}}, [[1], []]),
    "map": ({"type": "map", "values": "long"}, {"a": 1}),
    "union": (["null", "string", {"type": "map", "values": "int"}], "x"),
    "enum": (_ENUM, "B"),
    "fixed": ({"type": "fixed", "name": "F", "namespace": "a.b", "size": 3}, b"abc"),
    "a fixed with its full name": ({"type": "fixed", "name": "a.b.F", "namespace": "c", "size": 3}, b"abc"),
    "decimal": (decimal(9, 2), b"\x01"),
    "date": (logical("int", "date"), 1),
    "an empty record": (record("E"), {}),
    "a record with all sorts": (ORDER, VALUE),
    "a recursive record": (NODE, {"v": 1, "next": {"v": 2, "next": None}}),
    "what says nothing of the bytes": (
        record(
            "R",
            ("i", "int", {"default": 5, "doc": "text", "order": "descending", "aliases": ["j"]}),
            ("s", {"type": "string", "avro.java.string": "String"}),
            doc="a record",
            aliases=["Q"],
            more={"any": "thing"},
        ),
        {"i": 1, "s": "x"},
    ),
    "the same record, bare": (record("R", ("i", "int"), ("s", "string")), {"i": 1, "s": "x"}),
    "namespaces": (
        record(
            "Order",
            ("inner", record("Inner", ("e", _ENUM), ("again", "E"), namespace="other")),
            ("own", {"type": "enum", "name": "E", "symbols": ["C"]}),
            ("both", ["null", "E", "other.E"]),
            ("none", record("x.y.Z", ("f", {"type": "fixed", "name": "F", "size": 1}))),
            namespace="shop",
        ),
        {
            "inner": {"e": "A", "again": "B"},
            "own": "C",
            "both": None,
            "none": {"f": b"f"},
        },
    ),
    "letters of the world": (record("Größe", ("größe", "int"), ("数", "int")), {"größe": 1, "数": 2}),
}
