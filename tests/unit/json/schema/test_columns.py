"""The columns that JSON Schemas give, and what writers of other schemas wrote that has another meaning there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.json.errors import JsonAnalysisError
from connectors.json.schema.columns import difference, json_column
from connectors.json.schema.parser import parse_schemas
from tests.support.json_schemas import (
    CONNECT,
    DATE,
    INTEGER,
    NULL,
    NUMBER,
    TEXT,
    TIMESTAMP,
    TREE,
    array,
    decimal,
    record,
    type_of,
)

NEW = "https://json-schema.org/draft/2020-12/schema"
CLOCK = {"type": "integer", "connect.type": "int32", "title": f"{CONNECT}Time"}
DAY, TIME = {**TEXT, "format": "date"}, {**TEXT, "format": "date-time"}
BYTES = {**TEXT, "connect.type": "bytes"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (INTEGER, "bigint"),
        (NUMBER, "double"),
        (TEXT, "string"),
        ({"type": "boolean"}, "boolean"),
        *(
            ({"type": kind, "connect.type": connect}, expected)
            for kind, connect, expected in (
                ("integer", "int8", "tinyint"),
                ("integer", "int16", "smallint"),
                ("integer", "int32", "int"),
                ("integer", "int64", "bigint"),
                ("number", "float32", "float"),
                ("number", "float64", "double"),
                ("integer", "what", "bigint"),
                ("string", "int8", "string"),
            )
        ),
        (DATE, "date"),
        (TIMESTAMP, "timestamp"),
        ({"type": "integer", "connect.type": "int32", "title": f"{CONNECT}Time"}, "int"),
        (decimal("number", scale="2"), "decimal(38,2)"),
        (decimal("string", **{"scale": "3", "connect.decimal.precision": "9"}), "decimal(9,3)"),
        (BYTES, "binary"),
        (DAY, "date"),
        (TIME, "timestamp"),
        ({**TEXT, "format": "uuid"}, "string"),
        ({**TEXT, "title": "org.example.Date"}, "string"),
    ],
)
def test_a_plain_type_is_a_column(schema: Any, expected: str) -> None:
    assert type_of(schema) == expected
    assert type_of(record(a=schema)) == f"struct<a:{expected}>"
    assert type_of({"oneOf": [NULL, schema]}) == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (record(b=INTEGER, a=TEXT), "struct<b:bigint,a:string>"),
        (
            record(b={**INTEGER, "connect.index": 1}, a={**TEXT, "connect.index": 0}, c=TEXT),
            "struct<a:string,b:bigint,c:string>",
        ),
        ({"properties": {"a": INTEGER}}, "struct<a:bigint>"),
        ({"type": "object"}, "map<string,variant>"),
        ({"type": "object", "additionalProperties": False}, "map<string,variant>"),
        ({"type": "object", "additionalProperties": INTEGER}, "map<string,bigint>"),
        ({"type": "object", "connect.type": "map", "additionalProperties": INTEGER}, "map<string,bigint>"),
        ({"type": "object", "patternProperties": {"^a": INTEGER}}, "map<string,bigint>"),
        ({"patternProperties": {"^a": INTEGER}, "additionalProperties": TEXT}, "map<string,variant>"),
        ({**record(a=INTEGER), "additionalProperties": TEXT}, "struct<a:bigint>"),
        (array(INTEGER), "array<bigint>"),
        ({"type": "array"}, "array<variant>"),
        ({"items": [INTEGER, NUMBER], "additionalItems": False}, "array<double>"),
        ({"items": [INTEGER, NUMBER]}, "array<variant>"),
        ({"$schema": NEW, "prefixItems": [INTEGER, INTEGER], "items": False}, "array<bigint>"),
        (array(record(key=INTEGER, value=DATE)), "array<struct<key:bigint,value:date>>"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"enum": [1, 2.5]}, "double"),
        ({"enum": [1, True]}, "variant"),
        ({"const": False}, "boolean"),
        ({"const": None}, "variant"),
        ({"type": "string", "enum": ["a"]}, "string"),
        ({"type": ["string", "null"]}, "string"),
        ({"type": ["null"]}, "variant"),
        ({"type": ["integer", "number", "null"]}, "double"),
        ({"type": ["string", "integer"]}, "variant"),
        ({"type": ["object", "null"], "properties": {"a": INTEGER}}, "struct<a:bigint>"),
        ({"anyOf": [INTEGER, NUMBER]}, "double"),
        ({"anyOf": [{**INTEGER, "connect.type": "int8"}, {**INTEGER, "connect.type": "int32"}]}, "int"),
        ({"anyOf": [INTEGER, {**NUMBER, "connect.type": "float32"}]}, "double"),
        ({"oneOf": [INTEGER, TEXT, NULL]}, "variant"),
        ({"oneOf": [DATE, INTEGER]}, "variant"),
        ({"oneOf": [record(a=INTEGER), record(a=INTEGER)]}, "struct<a:bigint>"),
        ({"oneOf": [record(a=INTEGER), record(b=INTEGER)]}, "variant"),
        ({**record(a=INTEGER), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "struct<a:bigint>"),
        (
            {**record(a=INTEGER), "oneOf": [record(b=TEXT), record(b=TEXT, c=TEXT)]},
            "struct<a:bigint,b:string,c:string>",
        ),
        ({**record(a=INTEGER), "anyOf": [record(b=TEXT), record(b=INTEGER)]}, "struct<a:bigint,b:variant>"),
        ({"allOf": [record(a=INTEGER), record(b=TEXT)]}, "struct<a:bigint,b:string>"),
        ({"allOf": [record(a=NUMBER), record(a=INTEGER)]}, "struct<a:bigint>"),
        ({"allOf": [TEXT, DAY]}, "date"),
        ({"allOf": [DAY, TEXT, {"minLength": 1}]}, "date"),
        ({**TEXT, "allOf": [{"minLength": 1}]}, "string"),
        ({}, "variant"),
        (True, "variant"),
        (record(a=True, b=False), "struct<a:variant,b:variant>"),
    ],
)
def test_what_holds_other_schemas_is_a_column(schema: Any, expected: str) -> None:
    assert type_of(schema) == expected


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        (TIME, INTEGER, "it was written as bigint and is read as timestamp"),
        (record(at=TIME), record(at=TIMESTAMP), "at was written as bigint (millis) and is read as timestamp"),
        (TIMESTAMP, INTEGER, "it was written as bigint and is read as timestamp"),
        (TIMESTAMP, DATE, "it was written as int (days) and is read as timestamp"),
        (DATE, INTEGER, "it was written as bigint and is read as date"),
        (BYTES, TEXT, "it was written as string and is read as binary"),
        (BYTES, decimal("string", scale="2"), "it was written as binary (decimal) and is read as binary"),
        (decimal("string", scale="2"), decimal("string", scale="3"), "it was written as binary (decimal)"),
        (record(a=array(record(b=TIME))), record(a=array(record(b=NUMBER))), "a[].b was written as double"),
        ({"additionalProperties": TIME}, {"additionalProperties": INTEGER}, "[] was written as bigint"),
        (record(a=TIME), record(a={"oneOf": [NULL, TEXT, INTEGER]}), "a was written as bigint"),
        (record(a=TIME), record(b=INTEGER), ""),
        (TIME, TEXT, ""),
        (TIME, {}, ""),
        (TIME, NULL, ""),
        (DAY, TIME, ""),
        (DAY, INTEGER, ""),
        (INTEGER, TEXT, ""),
        (INTEGER, TIMESTAMP, ""),
        (NUMBER, INTEGER, ""),
        (TEXT, record(a=INTEGER), ""),
        (record(a=INTEGER), array(TEXT), ""),
        (decimal("string", scale="2"), decimal("string", scale="2"), ""),
        (decimal("number", scale="2"), decimal("string", scale="2"), "it was written as binary (decimal)"),
        (decimal("string", scale="2"), decimal("number", scale="2"), "it was written as decimal (number)"),
        (decimal("number", scale="2"), decimal("number", scale="3"), "it was written as decimal (number) and is read"),
        (decimal("number", scale="2"), decimal("number", scale="2"), ""),
        (decimal("number", scale="2"), INTEGER, ""),
        (decimal("number", scale="2"), NUMBER, ""),
        (decimal("number", scale="2"), TEXT, "it was written as string and is read as decimal (number)"),
        (decimal("number", scale="2"), TIMESTAMP, "it was written as bigint (millis)"),
        (decimal("number", scale="2"), BYTES, "it was written as binary (base64)"),
        (NUMBER, decimal("string", scale="2"), "it was written as binary (decimal) and is read as double"),
        (NUMBER, decimal("number", scale="2"), ""),
        (TEXT, BYTES, "it was written as binary (base64) and is read as string"),
        (TEXT, decimal("string", scale="2"), "it was written as binary (decimal) and is read as string"),
        (TEXT, DAY, ""),
        (BYTES, BYTES, ""),
        (BYTES, DAY, "it was written as date"),
        (DAY, DATE, "it was written as int (days) and is read as date"),
        (DAY, BYTES, "it was written as binary (base64)"),
        (DATE, DATE, ""),
        (DATE, TIMESTAMP, "it was written as bigint (millis) and is read as date"),
        (DATE, CLOCK, "it was written as int (time) and is read as date"),
        (CLOCK, CLOCK, ""),
        (CLOCK, INTEGER, "it was written as bigint and is read as int (time)"),
        (CLOCK, TIMESTAMP, "it was written as bigint (millis) and is read as int (time)"),
        (CLOCK, DATE, "it was written as int (days) and is read as int (time)"),
        (TIMESTAMP, CLOCK, "it was written as int (time) and is read as timestamp"),
        (TIMESTAMP, TIMESTAMP, ""),
        (INTEGER, CLOCK, ""),
        (TIME, BYTES, "it was written as binary (base64) and is read as timestamp"),
        ({}, decimal("string", scale="2"), ""),
        (record(a=TIMESTAMP), {"additionalProperties": INTEGER}, "a was written as bigint"),
        ({"additionalProperties": TIMESTAMP}, record(a=TIMESTAMP, b=INTEGER), "[] was written as bigint"),
        (record(a=TIMESTAMP), array(INTEGER), ""),
    ],
)
def test_what_a_writer_meant_otherwise_is_found(reader: Any, writer: Any, reason: str) -> None:
    column = json_column(parse_schemas(json.dumps(reader)))
    found = difference(column, parse_schemas(json.dumps(writer)))
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_a_writer_whose_schema_holds_itself_is_compared_with_columns_that_end() -> None:
    column = json_column(parse_schemas(json.dumps(TREE)), 5)
    assert difference(column, parse_schemas(json.dumps(TREE))) == ""
    endless = {"anyOf": [INTEGER, {"$ref": "#/x"}], "x": {"anyOf": [TEXT, {"$ref": "#"}]}}
    with pytest.raises(JsonAnalysisError, match="CANNOT_PARSE_JSON_SCHEMA"):
        difference(column, parse_schemas(json.dumps(endless)))


@pytest.mark.parametrize("within", [lambda a: record(a=a), array, lambda a: {"additionalProperties": a}])
@pytest.mark.parametrize("form", ["number", "string"])
def test_a_decimal_of_another_scale_is_found_at_every_depth(form: str, within: Any) -> None:
    reader, writer = (within(record(b=array(decimal(form, scale=scale)))) for scale in ("2", "4"))
    column = json_column(parse_schemas(json.dumps(reader)))
    assert difference(column, parse_schemas(json.dumps(reader))) == ""
    assert difference(column, parse_schemas(json.dumps(writer))).endswith("decimal of the scale 2, not 4")


def test_a_writer_with_many_alternatives_is_compared_with_wide_columns_within_bounds() -> None:
    column = json_column(parse_schemas(json.dumps(array(record(**{f"p{n}": TIME for n in range(9000)})))))
    writer = array({"anyOf": [record(**{f"p{n}": TIME}) for n in range(20_000)]})
    with pytest.raises(JsonAnalysisError, match="CANNOT_PARSE_JSON_SCHEMA"):
        difference(column, parse_schemas(json.dumps(writer)))
