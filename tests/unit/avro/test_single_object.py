"""Avro's single-object encoding: what Java's Avro and Spark have given, reading, writing, and what is in none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.functions import decode_call, encode_call
from connectors.avro.schema.parser import parse_schema
from connectors.avro.schema.writing import avro_type
from connectors.avro.single_object import canonical_form, fingerprint, prefix_of
from connectors.core.errors import ConnectorError
from tests.support.avro_cases import record
from tests.support.avro_objects import OBJECTS
from tests.support.avro_rig import encode
from tests.support.avro_writes import WRITES, column

GOLDEN = Path(__file__).parents[2] / "golden/avro/single_object.json"
ANSWERS = json.loads(GOLDEN.read_text(encoding="utf-8"))["answers"]
SINGLE = {"wire.format": "single-object"}
V1 = json.dumps(record("Order", ("id", "int"), ("old", "string")))
V2 = json.dumps(record("Order", ("id", "long"), ("new", "string", {"aliases": ["old"]})))


def message(schema: str, value: Any) -> bytes:
    return prefix_of(parse_schema(schema, "test")) + encode(json.loads(schema), value)


def rows_of(messages: list[bytes | None], reader: str, *writers: str, **options: str) -> list[Any]:
    call, _ = decode_call(reader, {**SINGLE, "mode": "PERMISSIVE", **options}, writers=writers or None)
    result = call(pa.array(messages, pa.binary()))
    result.validate(full=True)
    return result.to_pylist()


@pytest.mark.parametrize("name", OBJECTS)
def test_forms_fingerprints_and_messages_are_those_of_java(name: str) -> None:
    schema, value = OBJECTS[name]
    answer, parsed = ANSWERS["objects"][name], parse_schema(json.dumps(schema), "test")
    assert canonical_form(parsed) == answer["form"]
    assert f"{fingerprint(parsed):016x}" == answer["fingerprint"]
    data = bytes.fromhex(answer["message"])
    assert prefix_of(parsed) + encode(schema, value) == data
    options = {"recursiveFieldMaxDepth": "3"}
    bare, _ = decode_call(json.dumps(schema), options)
    framed, _ = decode_call(json.dumps(schema), {**SINGLE, **options})
    assert framed(pa.array([data] * 100)).to_pylist() == bare(pa.array([data[10:]] * 100)).to_pylist()


@pytest.mark.parametrize(
    ("kind", "nullable", "name"),
    [pytest.param(*case[1:3], case[0], id=case[0]) for case in WRITES if case[0] in ANSWERS["columns"]],
)
def test_schemas_that_columns_are_written_by_have_the_names_that_spark_gives(
    kind: pa.DataType, nullable: bool, name: str
) -> None:
    assert canonical_form(avro_type(kind, nullable=nullable)) == ANSWERS["columns"][name]["form"]
    assert len(ANSWERS["columns"]) > 20


@pytest.mark.parametrize("repeat", [1, 100], ids=["rows", "columns"])
def test_each_message_is_resolved_from_the_schema_of_its_writer(repeat: int) -> None:
    rows = [message(V1, {"id": 1, "old": "a"}), None, message(V2, {"id": 2**40, "new": "b"})] * repeat
    expected = [{"id": 1, "new": "a"}, None, {"id": 2**40, "new": "b"}] * repeat
    assert rows_of(rows, V2, V1) == expected
    assert rows_of(rows, V1, avroSchema=V2) == expected  # both are among the writers' schemas
    assert rows_of(rows[1:], V2, V1) == expected[1:]
    assert rows_of([], V2, V1) == []


def test_what_is_in_no_single_object_encoding_is_a_bad_row_and_changes_no_neighbour() -> None:
    good = message(V2, {"id": 1, "new": "x"})
    bad = {
        b"": "no byte",
        good[10:]: "is in no single-object encoding: it begins with 02 02 78",
        good[:9]: "is in no single-object encoding",
        b"\xc3\x02" + good[2:]: "begins with c3 02",
        b"\0\0\0\0\1" + good: "begins with 00 00 00 00 01",
        message(V1, {"id": 1, "old": "x"}): f"has the fingerprint {fingerprint(parse_schema(V1, 't')):016x}, which",
        good[:10]: "ends too early",
        good[:-1]: "ends too early",
    }
    rows = [row for data in bad for row in (good, data)]
    for repeat in (1, 20):
        answers = rows_of([*rows, None] * repeat, V2, **{"on.error": "column"})
        assert len(answers) == repeat * (len(rows) + 1)
        for place, why in enumerate(bad.values()):
            assert answers[2 * place] == {"value": {"id": 1, "new": "x"}, "error": None}
            assert answers[2 * place + 1]["value"] == {"id": None, "new": None}
            assert why in answers[2 * place + 1]["error"]
        assert answers[len(rows)] is None
    call, _ = decode_call(V2, SINGLE)
    with pytest.raises(ConnectorError, match=r"MALFORMED_AVRO_MESSAGE.*row 1 of the batch.*fingerprint"):
        call(pa.array([good, message(V1, {"id": 1, "old": "x"})]))


def test_bare_reading_of_such_messages_names_the_option() -> None:
    call, _ = decode_call('"string"', None)
    with pytest.raises(ConnectorError, match=r"MALFORMED_AVRO_MESSAGE.*wire\.format to single-object"):
        call(pa.array([b"\xc3\x01" + b"\xff" * 8 + b"\2"]))


@pytest.mark.parametrize("given", [True, False])
def test_columns_are_written_with_the_fingerprint_of_their_schema(given: bool) -> None:
    kind = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
    schema = json.dumps(record("topLevelRecord", ("id", "long"), ("note", ["string", "null"])))
    structs = column(kind, [{"id": 7, "note": "x"}, None, {"id": 8, "note": None}], nullable=not given)
    if given:
        structs = structs.take(pa.array([0, 2]))
    messages = encode_call(schema if given else "", SINGLE)(structs)
    written = schema if given else json.dumps([json.loads(schema), "null"])
    rows = rows_of(messages.to_pylist(), written)
    assert [row for row in rows if row] == [{"id": 7, "note": "x"}, {"id": 8, "note": None}]
    assert messages[0].as_py()[:10] == prefix_of(parse_schema(written, "test"))
    assert messages.null_count == (0 if given else 1)


@pytest.mark.parametrize(
    ("options", "arguments", "text"),
    [
        ({}, {"writers": [V1]}, r"OPTION_MISSING.*wire\.format"),
        (SINGLE, {"writers": V1}, "OPTION_ILLEGAL.*writerSchemas"),
        (SINGLE, {"writers": [None]}, "OPTION_ILLEGAL.*writerSchemas"),
        (SINGLE, {"writers": ["{"]}, "CANNOT_PARSE_AVRO_SCHEMA.*writerSchemas"),
        (SINGLE, {"writers": ['"string"']}, "AVRO_SCHEMA_INCOMPATIBLE"),
        (SINGLE, {"schema_registry": {"address": "http://localhost:1"}}, r"OPTION_CONFLICT.*wire\.format"),
        (SINGLE, {"headers": True}, "OPTION_MISSING.*schemaRegistry"),
        ({"wire.format": "confluent"}, {}, r"OPTION_ILLEGAL.*wire\.format"),
    ],
)
def test_calls_that_make_no_sense_are_refused(options: dict[str, str], arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((ConnectorError, AvroAnalysisError), match=text):
        decode_call(V2, options, **arguments)


def test_frames_of_a_registry_are_not_written_around_single_objects() -> None:
    with pytest.raises(ConnectorError, match=r"OPTION_CONFLICT.*wire\.format.*to_avro"):
        encode_call("", SINGLE, "orders", "http://localhost:1")
