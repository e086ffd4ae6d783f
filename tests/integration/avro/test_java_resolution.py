"""Aliases and defaults beside Java's Avro: what it reads is in our columns, and what it refuses is refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.functions import decode_call
from tests.chaos.rigs.avro_forms import from_java, normal, plain_type, spark_form
from tests.support.avro_cases import record
from tests.support.clients import as_field, find_java_client, run_java_client

pytestmark = pytest.mark.may_skip_in_ci("Maven may not serve Java's Avro")


@pytest.fixture(autouse=True, scope="module")
def _java() -> None:
    if reason := find_java_client("avro").reason:
        pytest.skip(reason)


def enum(name: str, *symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(name: str, size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


RENAMED = record("R", ("a", "int", {"aliases": ["b"]}), ("b", "int", {"default": 0}))
OTHER_DOC = record("R", ("a", "int", {"doc": "x", "aliases": ["z"]}), ("b", "int", {"default": 0}), doc="y")
OTHER_ATTRIBUTE = record("R", ("a", "int", {"key": 1}), ("b", "int", {"default": 0}))
OTHER_ORDER = record("R", ("a", "int", {"order": "ignore"}), ("b", "int", {"default": 0}))
OTHER_DEFAULT = record("R", ("a", "int"), ("b", "int", {"default": 1}))
NO_DEFAULT = record("R", ("a", "int"), ("b", "int"))


def within(inner: Any) -> list[Any]:
    """Return schemas with another one at each kind of place."""
    return [
        inner,
        record("Outer", ("x", inner)),
        array(inner),
        {"type": "map", "values": inner},
        ["null", inner],
        record("Deep", ("x", ["null", array({"type": "map", "values": inner})])),
    ]


def message_within(place: int, message: bytes) -> bytes:
    entry = b"\2" + b"\2k" + message + b"\0"
    return [message, message, b"\2" + message + b"\0", entry, b"\2" + message, b"\2\2" + entry + b"\0"][place]


PAIR = b"\2\4"
ALIASED: list[tuple[str, Any, Any, bytes]] = [
    *(
        (
            f"the same schema, whose alias is another field's name, place {place}",
            each,
            each,
            message_within(place, PAIR),
        )
        for place, each in enumerate(within(RENAMED))
    ),
    *(
        (f"{name}, place {place}", writer, reader, message_within(place, PAIR))
        for name, other in [
            ("another doc", OTHER_DOC),
            ("another attribute", OTHER_ATTRIBUTE),
            ("another order", OTHER_ORDER),
            ("another default", OTHER_DEFAULT),
            ("no default", NO_DEFAULT),
        ]
        for place, (writer, reader) in enumerate(zip(within(other), within(RENAMED), strict=True))
    ),
    ("the field before it was renamed", record("R", ("b", "int")), RENAMED, b"\2"),
    ("the field after it was renamed", record("R", ("a", "int")), RENAMED, b"\2"),
    (
        "an alias of an alias",
        record("R", ("x", "int")),
        record("R", ("y", "int", {"aliases": ["x"], "default": 7}), ("z", "int", {"aliases": ["y"], "default": 8})),
        b"\2",
    ),
    (
        "names exchanged",
        record("R", ("a", "int"), ("b", "int")),
        record("R", ("a", "int", {"aliases": ["b"]}), ("b", "int", {"aliases": ["a"]})),
        PAIR,
    ),
    (
        "a record's alias that is another record's name",
        record("R", ("x", record("A", ("p", "int"))), ("y", record("B", ("q", "int")))),
        record(
            "R",
            ("x", record("A", ("p", "int"), aliases=["B"])),
            ("y", record("B", ("q", "int"))),
            ("z", "int", {"default": 1}),
        ),
        PAIR,
    ),
    (
        "fields of a record under its alias",
        record("Old", ("b", "int")),
        record("New", ("a", "int", {"aliases": ["b"]}), aliases=["Old"]),
        b"\2",
    ),
    (
        "fields of another record keep their names",
        record("R", ("x", record("A", ("b", "int"))), ("y", record("B", ("b", "int")))),
        record("R", ("x", record("A", ("a", "int", {"aliases": ["b"]}))), ("y", record("B", ("b", "int")))),
        PAIR,
    ),
    ("an enum's alias", enum("Old", "A", "B"), enum("New", "B", "A", aliases=["Old"]), b"\2"),
    ("no alias of an enum", enum("Old", "A", "B"), enum("New", "B", "A"), b"\2"),
    ("an enum's alias in a namespace", enum("a.Old", "A"), enum("b.New", "A", aliases=["a.Old"]), b"\0"),
    ("an enum's alias in its own namespace", enum("b.Old", "A"), enum("b.New", "A", aliases=["Old"]), b"\0"),
    ("an enum's alias in another namespace", enum("c.Old", "A"), enum("b.New", "A", aliases=["a.Old"]), b"\0"),
    ("a fixed's alias", fixed("Old", 1), fixed("New", 1, aliases=["Old"]), b"a"),
    ("a fixed's alias of another size", fixed("Old", 2), fixed("New", 1, aliases=["Old"]), b"ab"),
    (
        "enum and fixed in a record, exchanged",
        record("R", ("x", enum("A", "S", "T")), ("y", enum("B", "T", "S"))),
        record("R", ("x", enum("B", "S", "T", aliases=["A"])), ("y", enum("A", "T", "S", aliases=["B"]))),
        PAIR,
    ),
    (
        "a branch by its alias",
        record("R", ("x", ["null", record("Old", ("p", "int"))])),
        record("R", ("x", [record("Other", ("p", "int")), record("New", ("p", "int"), aliases=["Old"]), "null"])),
        b"\2\2",
    ),
    (
        "two branches that get one name",
        record("R", ("x", [record("Old", ("p", "int")), record("New", ("p", "int"))])),
        record("R", ("x", [record("New", ("p", "int"), aliases=["Old"]), "null"])),
        b"\2\2",
    ),
    (
        "branches that get one name, of the same schema",
        record("R", ("x", [record("Old", ("p", "int")), record("New", ("p", "int"), aliases=["Old"])])),
        record("R", ("x", [record("Old", ("p", "int")), record("New", ("p", "int"), aliases=["Old"])])),
        b"\2\2",
    ),
    (
        "a union whose branches are the same by an alias",
        record("R", ("x", ["null", enum("Old", "A"), "string"])),
        record("R", ("x", ["null", enum("New", "A", aliases=["Old"]), "string"])),
        b"\2\0",
    ),
    (
        "a record that fits by its fields, and one whose field does not",
        record("R", ("x", ["null", record("W", ("p", enum("E", "A")))])),
        record("R", ("x", [record("A", ("p", enum("F", "A"))), record("B", ("p", enum("E", "A"))), "null"])),
        b"\2\0",
    ),
    (
        "a record that fits by its fields, and one that lacks one in a record",
        record("R", ("x", ["null", record("W", ("p", record("I", ("q", "int"))))])),
        record(
            "R",
            (
                "x",
                [record("A", ("p", record("J", ("r", "int")))), record("B", ("p", record("K", ("q", "int")))), "null"],
            ),
        ),
        b"\2\2",
    ),
    (
        "a record's alias that is the name of a record with aliases of fields: Java has one table for both",
        record("R", ("x", record("A", ("p", "int"))), ("y", ["null", record("B", ("q", "int"), ("r", "int"))])),
        record(
            "R",
            ("x", record("A", ("p", "int"), aliases=["B"])),
            ("y", ["null", record("B", ("new", "int", {"aliases": ["q"]}), ("r", "int"))]),
        ),
        b"\2\2\2\4",
    ),
    (
        "as before, and the first record has aliases of fields too",
        record("R", ("x", record("A", ("p", "int"))), ("y", ["null", record("B", ("q", "int"), ("r", "int"))])),
        record(
            "R",
            ("x", record("A", ("o", "int", {"aliases": ["p"]}), aliases=["B"])),
            ("y", ["null", record("B", ("new", "int", {"aliases": ["q"]}), ("r", "int"))]),
        ),
        b"\2\2\2\4",
    ),
]

X = record("R", ("x", "int"))


def added(kind: Any, default: Any) -> dict[str, Any]:
    return record("R", ("x", "int"), ("f", kind, {"default": default}))


Q = record("Q", ("a", "int"), ("b", "string", {"default": "q"}))
DEFAULTS: list[tuple[Any, Any]] = [
    (["int", "boolean"], True),
    (["int", "boolean"], 1),
    (["string", "null"], None),
    (["null", "string"], "null"),
    (["null", "string"], "text"),
    (["int", "null"], "text"),
    (["boolean", "double"], 1.5),
    (["double", "long"], 3),
    ("int", 2**31 - 1),
    ("int", 2**31),
    ("int", -(2**31) - 1),
    ("int", 1.0),
    ("int", True),
    ("int", "1"),
    ("int", None),
    ("long", 2**63 - 1),
    ("long", 2**63),
    ("long", 1e3),
    ("float", 1),
    ("float", "1"),
    ("double", 10**300),
    ("double", 10**400),
    ("double", True),
    ("boolean", True),
    ("boolean", 1),
    ("boolean", "true"),
    ("boolean", None),
    ("null", None),
    ("null", 0),
    ("string", "text"),
    ("string", 1),
    ("bytes", "\u00ff\u0000"),
    ("bytes", [1]),
    (fixed("F", 2), "ab"),
    (fixed("F", 2), 1),
    (enum("E", "A"), "A"),
    (enum("E", "A"), "B"),
    (enum("E", "A", default="A"), "B"),
    (enum("E", "A"), None),
    (array("string"), "abc"),
    (array("string"), ["a", "b"]),
    (array("string"), ["a", 1]),
    (array("string"), {}),
    (array("string"), None),
    ({"type": "map", "values": "int"}, {"a": 1}),
    ({"type": "map", "values": "int"}, {"a": "b"}),
    ({"type": "map", "values": "int"}, [1]),
    (Q, {"a": 1}),
    (Q, {"b": "c"}),
    (Q, {"a": "c"}),
    (Q, {"a": 1, "c": 2}),
    (Q, []),
    (record("P", ("a", "int", {"default": "text"})), {"a": 1}),
    (record("P", ("q", Q, {"default": {"a": 5}})), {}),
    (array(Q), [{"a": 1}, {"a": 2, "b": ""}]),
    (array(["null", "int"]), [None, 1]),
    (["string", record("P", ("a", "int"))], {"a": 1}),
    ("float", "-1.5e3"),
    ("double", "NaN"),
    ("double", "-Infinity"),
    ("double", "inf"),
    ("double", "1_0"),
    (["double", "null"], "1"),
]
OURS: list[tuple[Any, Any, Any]] = [
    (["int", "long"], 2**40, 2**40),
    ([array("string"), "null"], None, None),
    ([Q, "null"], None, None),
    ([enum("E", "A"), "string"], "B", {"member0": None, "member1": "B"}),
]
"""Defaults that Java's parser takes and its reader fails at or alters; the column has the value."""
REFUSED: list[tuple[Any, Any]] = [
    (fixed("F", 4), "ab"),
    (fixed("F", 1), "ab"),
    ("string", "\ud800"),
    ("bytes", "\u0100"),
]
"""Defaults that Java alters without a word."""

BAD = "bad"
Outcome = Any


def ours(writer: Any, reader: Any, message: bytes) -> Outcome:
    """Return the value in the column, or `BAD`: refused by the driver, or a bad row."""
    options = {"avroSchema": json.dumps(reader), "mode": "PERMISSIVE", "on.error": "column"}
    try:
        call, _ = decode_call(json.dumps(writer), options)
    except AvroAnalysisError as error:
        return BAD if error.code == "AVRO_SCHEMA_INCOMPATIBLE" else error.code
    rows = call(pa.array([message]))
    return (
        BAD if rows.field("error")[0].is_valid else rows.field("value").cast(plain_type(rows.type[0].type))[0].as_py()
    )


def java(cases: list[tuple[Any, Any, bytes]]) -> list[Outcome]:
    lines: list[list[str]] = []
    for writer, reader, message in cases:
        lines.append(["schemas", *(as_field(json.dumps(schema).encode()) for schema in (writer, reader))])
        lines.append(["read", as_field(message)])
    answers = run_java_client("avro", "AvroClient", [], lines)
    return [
        spark_form(reader, from_java(reader, json.loads(fields[0]))) if outcome == "value" else BAD
        for (_, reader, _), (outcome, *fields) in zip(cases, answers, strict=True)
    ]


def compared(cases: list[tuple[Any, Any, bytes]]) -> list[tuple[Outcome, Outcome]]:
    pairs = zip(java(cases), (ours(*case) for case in cases), strict=True)
    return [(repr(normal(theirs)), repr(normal(found))) for theirs, found in pairs]


def test_aliases_are_those_of_java_at_every_place_and_depth() -> None:
    pairs = compared([case[1:] for case in ALIASED])
    wrong = {name: pair for (name, *_), pair in zip(ALIASED, pairs, strict=True) if pair[0] != pair[1]}
    assert not wrong
    assert 5 < sum(theirs == repr(BAD) for theirs, _ in pairs) < len(pairs) - 5


def test_defaults_are_taken_and_refused_as_by_java() -> None:
    pairs = compared([(X, added(*case), b"\2") for case in DEFAULTS])
    wrong = {str(case): pair for case, pair in zip(DEFAULTS, pairs, strict=True) if pair[0] != pair[1]}
    assert not wrong
    assert 20 < sum(theirs == repr(BAD) for theirs, _ in pairs) < len(pairs) - 20


def test_a_default_that_java_alters_or_fails_at_is_the_value_of_the_branch_that_it_fits() -> None:
    found = [ours(X, added(kind, default), b"\2") for kind, default, _ in OURS]
    expected = [{"x": 1, "f": value} for *_, value in OURS]
    assert repr(found).replace("b'B'", "'B'") == repr(expected)
    assert all(
        theirs != repr(value)
        for (theirs, _), value in zip(
            compared([(X, added(kind, default), b"\2") for kind, default, _ in OURS]), expected, strict=True
        )
    )


@pytest.mark.parametrize(("kind", "default"), REFUSED)
def test_a_default_that_java_cuts_pads_or_replaces_is_refused(kind: Any, default: Any) -> None:
    assert ours(X, added(kind, default), b"\2") == BAD
