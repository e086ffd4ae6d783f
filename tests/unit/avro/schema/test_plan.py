"""What a reader makes of a writer's schema: differing meanings, defaults, and schemas that are made to hurt."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.functions import decode_call
from connectors.avro.schema.parser import parse_schema
from tests.support.avro_cases import decimal, logical, record
from tests.support.avro_rig import decode, decoders, encode

MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
LOCAL_MILLIS, LOCAL_MICROS = logical("long", "local-timestamp-millis"), logical("long", "local-timestamp-micros")
NANOS, DATE = logical("long", "timestamp-nanos"), logical("int", "date")
TIME_MILLIS, TIME_MICROS = logical("int", "time-millis"), logical("long", "time-micros")
INTERVAL = {"type": "long", "spark.sql.catalyst.type": "interval day to second"}
UUID = logical("string", "uuid")


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


def fixed_decimal(precision: int, scale: int) -> dict[str, Any]:
    return fixed(16, logicalType="decimal", precision=precision, scale=scale)


DIFFERENT = [
    (decimal(10, 2), decimal(10, 4), "found decimal(10, 2), expecting decimal(10, 4)"),
    (fixed_decimal(10, 2), fixed_decimal(10, 4), "found decimal(10, 2), expecting decimal(10, 4)"),
    (MILLIS, MICROS, "found timestamp-millis, expecting timestamp-micros"),
    (MICROS, MILLIS, "found timestamp-micros, expecting timestamp-millis"),
    (LOCAL_MILLIS, LOCAL_MICROS, "found local-timestamp-millis, expecting local-timestamp-micros"),
    (MILLIS, LOCAL_MILLIS, "found timestamp-millis, expecting local-timestamp-millis"),
    (NANOS, MICROS, "found timestamp-nanos, expecting timestamp-micros"),
    (DATE, MILLIS, "found date, expecting timestamp-millis"),
    (DATE, TIME_MILLIS, "found date, expecting time-millis"),
    (TIME_MILLIS, DATE, "found time-millis, expecting date"),
    (TIME_MILLIS, TIME_MICROS, "found time-millis, expecting time-micros"),
    (TIME_MICROS, MICROS, "found time-micros, expecting timestamp-micros"),
    (INTERVAL, MICROS, "found interval day to second, expecting timestamp-micros"),
    (MICROS, INTERVAL, "found timestamp-micros, expecting interval day to second"),
    ("string", decimal(10, 2), "found string, expecting decimal(10, 2)"),
    (UUID, decimal(10, 2), "found uuid, expecting decimal(10, 2)"),
    (decimal(10, 2), "string", "found decimal(10, 2), expecting string"),
    (fixed(16, logicalType="uuid"), fixed_decimal(10, 2), "found uuid, expecting decimal(10, 2)"),
    (logical("bytes", "big-decimal"), decimal(10, 2), "found big-decimal, expecting decimal(10, 2)"),
]
ALIKE = [
    (decimal(10, 2), decimal(12, 2)),
    (decimal(12, 2), decimal(10, 2)),
    (decimal(10, 2), "bytes"),
    ("bytes", decimal(10, 2)),
    ("long", MILLIS),
    (MILLIS, "long"),
    (MILLIS, "double"),
    ("int", DATE),
    (DATE, "int"),
    (DATE, "long"),
    (UUID, "string"),
    ("string", UUID),
    (INTERVAL, "long"),
    ("int", MICROS),
    (logical("string", "something of ours"), logical("string", "else")),
    (logical("long", "date"), MILLIS),
]


def places(inner: Any) -> list[Any]:
    """Return schemas with another one at each kind of place."""
    return [
        inner,
        record("R", ("x", inner)),
        record("R", ("x", ["null", inner])),
        record("R", ("x", {"type": "array", "items": inner})),
        record("R", ("x", {"type": "map", "values": ["null", inner]})),
        record("R", ("y", record("Q", ("x", inner)))),
        record("R", ("x", ["null", "boolean", inner])),
    ]


def refusal(writer: Any, reader: Any, **options: str) -> AvroAnalysisError:
    with pytest.raises(AvroAnalysisError) as caught:
        decode_call(json.dumps(writer), {"avroSchema": json.dumps(reader), **options})
    assert caught.value.code == "AVRO_SCHEMA_INCOMPATIBLE"
    return caught.value


@pytest.mark.parametrize(("writer", "reader", "why"), DIFFERENT)
def test_a_reader_that_takes_a_value_for_another_one_is_refused_by_the_driver_at_every_depth(
    writer: Any, reader: Any, why: str
) -> None:
    for theirs, ours in zip(places(writer), places(reader), strict=True):
        error = refusal(theirs, ours)
        assert why in error.what
        assert "on.logical.mismatch" in error.action
        assert ("the field " in error.what) == (ours is not reader)
        decode_call(json.dumps(theirs), {"avroSchema": json.dumps(ours), "on.logical.mismatch": "ignore"})
    assert "the field y.x: " in refusal(places(writer)[5], places(reader)[5]).what


@pytest.mark.parametrize(("writer", "reader"), ALIKE)
def test_a_reader_that_says_less_more_or_the_same_of_a_value_is_taken(writer: Any, reader: Any) -> None:
    for theirs, ours in zip(places(writer), places(reader), strict=True):
        decode_call(json.dumps(theirs), {"avroSchema": json.dumps(ours)})


def test_with_ignore_the_reader_alone_says_what_a_value_means_as_in_spark() -> None:
    writer, reader = record("R", ("d", decimal(10, 2))), record("R", ("d", decimal(10, 4)))
    options = {"avroSchema": json.dumps(reader), "on.logical.mismatch": "ignore"}
    call, _ = decode_call(json.dumps(writer), options)
    assert str(call(pa.array([b"\4\x01\x3a"]))[0].as_py()["d"]) == "0.0314"


def test_a_decimal_of_more_bytes_than_its_digits_need_is_the_number_that_it_is_or_a_bad_row() -> None:
    wide = decimal(30, 0)
    messages = [encode("bytes", number.to_bytes(12, "big", signed=True)) for number in (5, -5, 2**64 + 5, -(2**64))]
    decoded = decode(messages, wide, decimal(10, 0))
    assert [None if value is None else int(value) for value in decoded.values.to_pylist()] == [5, -5, None, None]
    assert set(decoded.errors) == {2, 3}


def test_every_default_of_a_readers_schema_is_checked_by_the_driver_needed_or_not() -> None:
    good = record("R", ("x", "int"))
    for wrong in (
        record("R", ("x", "int", {"default": "one"})),
        record(
            "R",
            ("x", "int"),
            ("f", {"type": "array", "items": record("Q", ("y", "long", {"default": 1.5}))}, {"default": []}),
        ),
        record(
            "R", ("x", "int"), ("f", ["null", record("Q", ("y", "bytes", {"default": "\u0153"}))], {"default": None})
        ),
    ):
        assert "The default of " in refusal(good, wrong).what
        decode_call(json.dumps(wrong), None)  # no default of a writer's schema is ever used


def test_a_default_that_every_row_would_have_is_bounded() -> None:
    writer = record("R", ("x", "int"))
    for kind, default in [("string", "a" * 20_000), ({"type": "array", "items": "int"}, [1] * 3000)]:
        assert "16 KB" in refusal(writer, record("R", ("x", "int"), ("f", kind, {"default": default}))).what


def test_a_default_that_holds_itself_is_an_error_that_says_so() -> None:
    inner = record("Q", ("q", ["Q", "null"], {"default": {}}))
    reader = record("R", ("x", "int"), ("f", inner, {"default": {}}))
    options = {"avroSchema": json.dumps(reader), "recursiveFieldMaxDepth": "2"}
    with pytest.raises(AvroAnalysisError) as caught:
        decode_call(json.dumps(record("R", ("x", "int"))), options)
    assert caught.value.code == "AVRO_TOO_DEEP"


# --- schemas that are made to hurt ------------------------------------------------------------------------------------


def doubling(levels: int, last: Any) -> Any:
    """Return a record that holds the next one twice, and so on: 2**levels of the last."""
    schema = last
    for level in reversed(range(levels)):
        schema = record(f"A{level}", ("b", schema), ("c", schema["name"]))
    return schema


@pytest.mark.parametrize(
    "fields", [(), (("x", "null"),), (("x", "int"),), (("x", "float"),), (("x", ["null", "int"]),)]
)
@pytest.mark.parametrize("levels", [30, 60, 120])
def test_what_a_reader_drops_takes_no_longer_than_its_bytes(levels: int, fields: tuple[Any, ...]) -> None:
    writer = record("R", ("gone", doubling(levels, record("Last", *fields))), ("k", "int"))
    for decoder in decoders(writer, record("R", ("k", "int"))).values():
        decoded = decoder.decode(pa.array([b"", b"\2", b"\0" * 100_000] * 5))  # 2**30 steps would not end
        empty = not fields or fields[0][1] == "null"
        assert len(decoded.errors) == (5 if empty else 15)


def test_records_that_are_dropped_are_read_alike_by_rows_and_by_columns() -> None:
    last = record("Last", ("x", ["null", "int"]), ("f", "float"), ("e", record("Empty")))
    writer = record("R", ("gone", doubling(11, last)), ("k", "int"))
    one = b"\2\6" + b"abcd"
    messages = [one * 2**11 + b"\4", b"\0abcd" * 2**11 + b"\6", one * 2**11, one * 2000 + b"\4"]
    decoded = decode([*messages, None], writer, record("R", ("k", "int")))
    assert decoded.values.to_pylist() == [{"k": 2}, {"k": 3}, {"k": None}, {"k": None}, None]
    assert set(decoded.errors) == {2, 3}


def zigzag(number: int) -> bytes:
    return encode("long", number)


@pytest.mark.parametrize("item", ["null", record("Empty"), record("Nulls", ("a", "null"), ("b", record("Empty")))])
@pytest.mark.parametrize("lists", [1, 400])
def test_items_of_no_byte_are_bounded_by_message_and_not_by_list(item: Any, lists: int) -> None:
    writer = record("R", ("a", {"type": "array", "items": {"type": "array", "items": item}}), ("k", "int"))
    inner = {count: (zigzag(count) + b"\0" if count else b"\0") * lists for count in (0, 900 // lists, 90_000)}
    messages = [zigzag(lists) + each + b"\0\2" for each in inner.values()]
    for reader in (writer, record("R", ("k", "int"))):
        decoded = decode([*messages, None], writer, reader)
        assert set(decoded.errors) == {2}
        assert [row and row["k"] for row in decoded.values.to_pylist()] == [1, 1, None, None]


def plan_seconds(writer: Any, reader: Any) -> float:
    texts = json.dumps(writer), json.dumps(reader)
    start = time.process_time()
    decode_call(texts[0], {"avroSchema": texts[1]})
    return time.process_time() - start


@pytest.mark.parametrize("kind", ["symbols", "branches", "branches by alias", "dropped fields"])
def test_planning_takes_as_long_as_the_schema_is(kind: str) -> None:
    def seconds(count: int) -> float:
        names = [f"S{number}" for number in range(count)]
        if kind == "symbols":
            made = [{"type": "enum", "name": "E", "symbols": each} for each in (names, [*names[1:], "Other"])]
        elif kind == "dropped fields":
            made = [record("R", *((name, ["null", "int"]) for name in names)), record("R", ("S0", ["null", "int"]))]
        else:
            aliases = [{"aliases": [name]} if kind == "branches by alias" else {} for name in names]
            prefix = "New" if kind == "branches by alias" else ""
            readers = [
                record(f"{prefix}{name}", ("a", "int"), **more) for name, more in zip(names, aliases, strict=True)
            ]
            made = [[record(name, ("a", "int")) for name in names], readers[::-1]]
        return min(plan_seconds(*made) for _ in range(2))

    assert seconds(4000) < 40 * max(seconds(400), 0.01)  # the square would be 100 times


def test_unions_of_many_records_without_common_names_are_refused_by_name() -> None:
    writer, reader = ([record(f"{name}{n}", (f"{name}", "int")) for n in range(2000)] for name in "AB")
    assert "too many records with different names" in refusal(writer, reader).what


@pytest.mark.parametrize("size", [2**20, 2**28, 2**31 - 1])
def test_a_fixed_of_any_size_is_read_or_a_bad_row(size: int) -> None:
    for more in ({}, {"logicalType": "decimal", "precision": 38, "scale": 2}):
        schema = record("R", ("f", fixed(size, **more)))
        assert set(decode([b"abc", None], schema).errors) == {0}


@pytest.mark.parametrize("size", [2**31, 2**63, 10**400, -1, 1.0, True, None])
def test_a_size_that_no_fixed_has_in_java_is_refused(size: Any) -> None:
    with pytest.raises(AvroAnalysisError, match="CANNOT_PARSE_AVRO_SCHEMA"):
        parse_schema(json.dumps(fixed(size)), "test")


@pytest.mark.parametrize(("size", "digits"), [(1, 2), (4, 9), (8, 18), (16, 38), (2000, 4816), (2**28, 646456992)])
def test_a_decimal_has_as_many_digits_as_in_java(size: int, digits: int) -> None:
    for precision, name in [(digits, "decimal"), (digits + 1, "")]:
        schema = fixed(size, logicalType="decimal", precision=precision)
        assert parse_schema(json.dumps(schema), "test").logical == name


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "enum", "name": "E", "symbols": ["\ud800"]},
        record("R", ("x", "int", {"default": float("inf")})),
        record("R", ("x", "int", {"default": float("nan")})),
        record("R", ("x", "int", {"aliases": "ab"})),
        record("R", ("x", "int"), aliases=[{"a": 1}]),
    ],
)
def test_what_no_parser_of_json_or_avro_takes_is_refused_by_name(schema: Any) -> None:
    with pytest.raises(AvroAnalysisError, match="CANNOT_PARSE_AVRO_SCHEMA"):
        decode_call(json.dumps(schema), None)


# --- where a message is bad -------------------------------------------------------------------------------------------

ORDER = record(
    "Order",
    ("id", "long"),
    ("customer", record("Customer", ("name", "string"), ("tags", {"type": "array", "items": "string"}))),
    ("prices", {"type": "map", "values": record("Price", ("cents", "int"))}),
    ("kind", {"type": "enum", "name": "K", "symbols": ["A", "B"]}),
)
GOOD = encode(
    ORDER,
    {"id": 1, "customer": {"name": "somebody", "tags": ["a", "b"]}, "prices": {"x": {"cents": 5}}, "kind": "A"},
)


@pytest.mark.parametrize("repeat", [1, 40], ids=["rows", "columns"])
def test_an_error_says_which_field_and_which_byte_could_not_be_read(repeat: int) -> None:
    tag = GOOD.index(b"\2a")
    cents = GOOD.index(b"\2x") + 2
    cases = {
        GOOD[:5]: "ends too early (in customer.name, a value of the type string from byte 1 of 5)",
        GOOD[
            : tag + 3
        ]: f"ends too early (in customer.tags[1], a value of the type string from byte {tag + 2} of {tag + 3})",
        GOOD[:cents]
        + b"\x80" * 8: f"(in prices[0].value.cents, a value of the type int from byte {cents} of {cents + 8})",
        GOOD[:-1] + b"\6": f"(in kind, a value of the type enum from byte {len(GOOD) - 1} of {len(GOOD)})",
    }
    messages = [*cases, GOOD] * repeat
    options = {"mode": "PERMISSIVE", "on.error": "column"}
    rows = decode_call(json.dumps(ORDER), options)[0](pa.array(messages))
    errors = rows.field("error").to_pylist()
    assert errors.count(None) == repeat
    for number, why in enumerate([*cases.values()] * repeat):
        assert why in errors[number + number // len(cases)]
