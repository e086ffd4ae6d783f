"""The decoder against its oracle, which reads row by row, and against fastavro: random schemas and values, garbage."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.avro.decoder.batches import AvroDecoder, growth_of
from connectors.avro.options import parse_avro_options
from connectors.avro.schema.parser import parse_schema
from connectors.avro.schema.plan import compile_plan
from connectors.avro.schema.types import arrow_type, spark_type
from connectors.core.functions.bounded import BoundedDecoder
from tests.support.avro_cases import ORDER, VALUE, decimal, record
from tests.support.avro_rig import batches, decode, decoders, encode, plain
from tests.support.avro_writes import ENUM

SPARK_VALUE = {**VALUE, "counts": [("a", 1), ("b", -2)], "any": {"member0": None, "member1": None, "member2": b"abc"}}


@given(batches())
def test_values_of_random_schemas_are_those_of_fastavro(batch: tuple[Any, list[tuple[Any, Any]]]) -> None:
    schema, pairs = batch
    messages = [encode(schema, datum) for datum, _ in pairs]
    decoded = decode([*messages, None], schema)
    assert not decoded.errors
    assert repr(plain(decoded.values.to_pylist())) == repr(plain([*(expected for _, expected in pairs), None]))


@given(batches(), st.lists(st.binary(max_size=30), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_garbage_is_a_bad_row_or_a_value_and_both_decoders_agree(
    batch: tuple[Any, list[tuple[Any, Any]]], garbage: list[bytes], random: Random
) -> None:
    schema, pairs = batch
    messages = [encode(schema, datum) for datum, _ in pairs]
    rows = [*messages, *garbage]
    random.shuffle(rows)
    results = [each.decode(pa.array(rows, pa.binary())) for each in decoders(schema).values()]
    assert results[0].errors == results[1].errors
    assert not any(rows[row] in messages for row in results[0].errors)


@pytest.mark.parametrize("replacement", [0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF])
def test_garbage_at_any_byte_changes_no_neighbour(replacement: int) -> None:
    message = encode(ORDER, VALUE)
    for place in range(len(message)):
        bad = bytearray(message)
        bad[place] = replacement
        for rows in ([message, bytes(bad), message], [message, message[:place], message]):
            results = [each.decode(pa.array(rows, pa.binary())) for each in decoders(ORDER).values()]
            assert results[0].errors == results[1].errors
            assert results[0].errors.keys() <= {1}
            for each in results:
                neighbours = each.values.take(pa.array([0, 2])).to_pylist()
                assert neighbours == [SPARK_VALUE] * 2


def test_a_message_that_is_cut_off_anywhere_is_a_bad_row() -> None:
    message = encode(ORDER, VALUE)
    rows = [message[:place] for place in range(len(message))]
    decoded = decode(rows, ORDER)
    assert list(decoded.errors) == list(range(len(message)))
    assert decoded.values.to_pylist() == [dict.fromkeys(VALUE)] * len(message)  # structs of NULLs, as in Spark


def test_a_bad_row_that_is_no_record_is_null() -> None:
    assert decode([b"\x02", b"", None], "long").values.to_pylist() == [1, None, None]


def test_bytes_behind_a_message_are_ignored_as_in_java() -> None:
    assert decode([b"\x02garbage"], "int").values.to_pylist() == [1]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("01", -1),
        ("80 00", 0),
        ("fe ff ff ff 0f", 2**31 - 1),
        ("ff ff ff ff 0f", -(2**31)),
        ("ff ff ff ff 7f", -(2**31)),  # Java drops what is above 32 bits
        ("ff ff ff ff ff 01", None),
        ("80 80 80 80 80", None),
        ("", None),
    ],
)
def test_an_int_has_at_most_five_bytes(data: str, value: int | None) -> None:
    assert decode([bytes.fromhex(data)], "int").values.to_pylist() == [value]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("fe ff ff ff ff ff ff ff ff 01", 2**63 - 1),
        ("ff ff ff ff ff ff ff ff ff 01", -(2**63)),
        ("80 80 80 80 80 80 80 80 01", 2**55),
        ("ff ff ff ff ff ff ff ff ff ff 01", None),
        ("ff ff ff ff ff ff ff ff ff", None),
    ],
)
def test_a_long_has_at_most_ten_bytes(data: str, value: int | None) -> None:
    assert decode([bytes.fromhex(data)], "long").values.to_pylist() == [value]


def test_blocks_of_a_list_may_have_sizes_and_there_may_be_several() -> None:
    data = bytes.fromhex("03 04 02 04  02 06  00")  # two items in two bytes; one item
    assert decode([data, b"\0"], {"type": "array", "items": "int"}).values.to_pylist() == [[1, 2, 3], []]


def test_a_count_of_items_that_cannot_be_there_costs_nothing() -> None:
    huge = bytes.fromhex("fe ff ff ff ff ff ff ff ff 01")
    least = bytes.fromhex("ff ff ff ff ff ff ff ff ff 01") + b"\0"
    for items in ("int", "null", "double", {"type": "record", "name": "E", "fields": []}):
        assert list(decode([huge, least], {"type": "array", "items": items}).errors) == [0, 1]


def test_items_of_no_byte_are_counted() -> None:
    assert decode([b"\x06\0"], {"type": "array", "items": "null"}).values.to_pylist() == [[None] * 3]


def test_one_long_list_among_many_rows_is_read() -> None:
    schema = {"type": "array", "items": ["null", "string"]}
    long = [None if number % 3 else f"item {number}" for number in range(5000)]
    values = [["a"], long, [], long[:100], ["b", None]]
    assert decode([encode(schema, value) for value in values], schema).values.to_pylist() == values
    cut = encode(schema, long)[:-700]
    assert list(decode([encode(schema, ["a"]), cut], schema).errors) == [1]


ITEM = record(
    "Item",
    ("name", ["null", "string"]),
    ("price", decimal(4, 2)),
    ("counts", {"type": "array", "items": "int"}),
    ("labels", {"type": "map", "values": {"type": "array", "items": "double"}}),
    ("kind", {"type": "enum", "name": "K", "symbols": ["A", "B"]}),
)


def test_long_lists_of_few_rows_are_read_and_refused_as_by_the_oracle() -> None:
    """Their items are found one by one; damage at any place is the same bad row, in the same field."""

    def item(number: int) -> dict[str, Any]:
        return {
            "name": None if number % 3 else f"item {number}",
            "price": bytes([number % 100]),
            "counts": list(range(number % 50)),
            "labels": {str(key): [0.5] * key for key in range(number % 4)},
            "kind": "AB"[number % 2],
        }

    schema = {"type": "array", "items": ITEM}
    message = encode(schema, [item(number) for number in range(40)])
    whole = decode([message, encode(schema, [item(1)]), None], schema)
    assert whole.errors == {}
    for place in range(0, len(message), 5):
        decode([message[:place], message], schema)
        rows = pa.array([message[:place] + b"\x7f" + message[place + 1 :], message])
        results = [each.decode(rows) for each in decoders(schema).values()]
        assert results[0].errors.keys() == results[1].errors.keys() <= {0}
        rows_values, columns_values = (repr(plain(each.values.to_pylist())) for each in results)
        assert rows_values == columns_values
        assert all(" (in [" in why for why in results[1].errors.values())


def test_of_entries_with_one_key_the_last_remains() -> None:
    data = bytes.fromhex("06 02 61 02 02 62 04 02 61 06 00")
    decoded = decode([data, data], {"type": "map", "values": "int"})
    assert [dict(row) for row in decoded.values.to_pylist()] == [{"a": 3, "b": 2}] * 2
    assert [len(row) for row in decoded.values.to_pylist()] == [2, 2]


def test_a_record_that_is_nested_endlessly_is_a_bad_row() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    decoded = decode([b"\x02" * 100_000, b"\x02" * 20 + b"\0"], node, recursiveFieldMaxDepth="2")
    assert "levels deep" in decoded.errors[0]
    assert list(decoded.errors) == [0]


def test_a_text_that_is_not_utf8_stays_as_it_is_as_in_spark() -> None:
    for each in decoders("string").values():
        values = each.decode(pa.array([b"\x04\xff\xfe", b"\x02a"])).values
        assert values.view(pa.binary()).to_pylist() == [b"\xff\xfe", b"a"]


def test_a_boolean_is_true_for_1_only_as_in_java() -> None:
    assert decode([b"\0", b"\1", b"\2"], "boolean").values.to_pylist() == [False, True, False]


def test_slices_of_a_column_are_decoded() -> None:
    column = pa.array([encode("string", text) for text in "abcdef"])[2:5]
    for each in decoders("string").values():
        assert each.decode(column).values.to_pylist() == ["c", "d", "e"]


def test_decimals() -> None:
    rows = [b"\x04\x01\x00", b"\x02\xff", b"\0", b"\x04\x7f\xff", b"\x06\x00\x00\x05"]
    decoded = decode(rows, decimal(4, 2))
    assert decoded.values.to_pylist() == [Decimal("2.56"), Decimal("-0.01"), None, None, Decimal("0.05")]
    assert decoded.errors == {2: "has a decimal of no byte", 3: "has a decimal of more than 4 digits"}
    fixed = {"type": "fixed", "name": "D", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 1}
    assert decode([b"\xff\xfe"], fixed).values.to_pylist() == [Decimal("-0.2")]
    large = (10**38 - 1).to_bytes(17, "big", signed=True)
    assert decode([b"\x22" + large], decimal(38, 10)).values.to_pylist() == [Decimal("9" * 28 + "." + "9" * 10)]


def test_times() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    rows = [encode("long", value) for value in (1, -1, 2**62, -(2**62))]
    decoded = decode(rows, millis)
    assert decoded.values.cast(pa.int64()).to_pylist() == [1000, -1000, None, None]
    assert list(decoded.errors) == [2, 3]
    date = {"type": "int", "logicalType": "date"}
    old = [encode("int", days) for days in (-141428, -141427, 0)]
    assert list(decode(old, date).errors) == []
    assert list(decode(old, date, datetimeRebaseMode="EXCEPTION").errors) == [0]


def test_a_float_reads_the_bits_that_are_there() -> None:
    nan = struct.pack("<f", float("nan"))
    values = decode([nan, struct.pack("<f", -0.0)], "float").values.to_pylist()
    assert str(values) == "[nan, -0.0]"


def test_decoding_loads_no_pandas() -> None:
    program = (
        "import sys, pyarrow as pa; from tests.support.avro_rig import decoders; "
        "print([each.decode(pa.array([bytes([2])] * 100)).values[0].as_py() for each in decoders('int').values()]); "
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[1, 1]\nFalse\n"


@pytest.mark.parametrize(
    ("dropped", "data"),
    [
        (ENUM, "06"),
        (ENUM, "05"),
        ("string", "01"),
        ("bytes", "ff ff ff ff ff ff ff ff ff 01"),
        ({"type": "array", "items": "string"}, "01 04 ff ff 00"),
        ({"type": "array", "items": "string"}, "01 03 00"),
        ({"type": "map", "values": "int"}, "03 06 ff ff ff 05 02 ff 00"),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, "02 01 02 ff 00 00"),
    ],
)
def test_what_the_reader_drops_is_passed_over_as_in_java(dropped: Any, data: str) -> None:
    """Java checks no symbol there, passes over a block of a list by its size, and takes a negative one for 0."""
    writer, reader = record("A", ("gone", dropped), ("a", "int")), record("A", ("a", "int"))
    rows = [bytes.fromhex(data) + b"\x08"] * 70
    decoded = decode(rows, writer, reader)
    assert not decoded.errors
    assert decoded.values.to_pylist() == [{"a": 4}] * 70


@pytest.mark.parametrize("size", ["08", "0a", "feffffffffffffffff01"])
def test_a_block_of_a_dropped_list_that_ends_elsewhere_is_a_bad_row(size: str) -> None:
    writer = record("A", ("gone", {"type": "array", "items": "string"}), ("a", "int"))
    bad, good = bytes.fromhex(f"01{size}00"), bytes.fromhex("01040261000008")
    decoded = decode([good, bad, good], writer, record("A", ("a", "int")))
    assert list(decoded.errors) == [1]
    assert decoded.values.to_pylist() == [{"a": 0}, {"a": None}, {"a": 0}]


LONG = "A" * 1000
WIDE = record("W", *((f"f{number}", ["null", "long"]) for number in range(50)))


@pytest.mark.parametrize(
    ("writer", "reader", "item"),
    [
        ({"type": "enum", "name": "E", "symbols": ["B", LONG]}, None, b"\2"),
        (record("I", ("x", "int")), record("I", ("x", "int"), ("d", "string", {"default": LONG})), b"\2"),
        (["boolean", WIDE], None, b"\0\1"),
    ],
    ids=["a long symbol", "a long default", "a wide branch"],
)
def test_few_bytes_that_become_many_make_bad_rows_of_their_messages_alone(
    writer: Any, reader: Any, item: bytes
) -> None:
    schemas = [{"type": "array", "items": each} for each in (writer, reader or writer)]
    parsed = [parse_schema(json.dumps(schema), "test") for schema in schemas]
    options = parse_avro_options({"mode": "PERMISSIVE"}, "from_avro")
    kind = arrow_type(spark_type(parsed[1], options))
    plan = compile_plan(parsed[0], parsed[1], spark_type(parsed[1], options), options)
    decoder = AvroDecoder(plan, kind, strict=False)
    small, large = (encode("long", count) + item * count + b"\0" for count in (3, 2000))
    messages = pa.array([small, large, None, small, large, large, b"\2"])
    whole, decoded = (
        each.decode(messages) for each in (decoder, BoundedDecoder(decoder, kind, growth_of(plan), most=100_000))
    )
    assert whole.errors.keys() == {6}
    bounded = BoundedDecoder(decoder, kind, growth_of(plan), most=100_000, piece=1 << 14).decode(messages)
    assert decoded.values.equals(whole.values)
    assert bounded.errors.keys() == {1, 4, 5, 6}
    assert "MB of values" in bounded.errors[1]
    others = pa.array([0, 2, 3])
    assert bounded.values.take(others).equals(whole.values.take(others))
