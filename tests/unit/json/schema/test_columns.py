"""The columns that JSON Schemas give, and what writers of other schemas wrote that has another meaning there."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest

from connectors.json.errors import JsonAnalysisError
from connectors.json.expressions import spark_type
from connectors.json.schema.columns import difference, json_column
from connectors.json.schema.parser import parse_schemas

CONNECT = "org.apache.kafka.connect.data."
NEW = "https://json-schema.org/draft/2020-12/schema"
NULL: dict[str, Any] = {"type": "null"}
INTEGER, NUMBER, TEXT = {"type": "integer"}, {"type": "number"}, {"type": "string"}
DATE = {"type": "integer", "connect.type": "int32", "title": f"{CONNECT}Date"}
TIMESTAMP = {"type": "integer", "connect.type": "int64", "title": f"{CONNECT}Timestamp"}
CLOCK = {"type": "integer", "connect.type": "int32", "title": f"{CONNECT}Time"}
DAY, TIME = {**TEXT, "format": "date"}, {**TEXT, "format": "date-time"}
BYTES = {**TEXT, "connect.type": "bytes"}


def decimal(kind: str, **parameters: str) -> dict[str, Any]:
    return {"type": kind, "connect.type": "bytes", "title": f"{CONNECT}Decimal", "connect.parameters": parameters}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def type_of(schema: Any, depth: int = -1, **references: Any) -> str:
    texts = {name.replace("_", "."): json.dumps(each) for name, each in references.items()}
    column = json_column(parse_schemas(json.dumps(schema), texts), depth)
    kind = spark_type(column)
    spark_type(column, as_read=True).json()
    return kind.simpleString()


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
    ("schema", "expected"),
    [
        ({**record(a={"$ref": "#/definitions/x"}), "definitions": {"x": INTEGER}}, "bigint"),
        ({**record(a={"$ref": "#/$defs/a~1b%20c~0"}), "$defs": {"a/b c~": INTEGER}}, "bigint"),
        ({**record(a={"$ref": "#/l/1"}), "l": [TEXT, INTEGER]}, "bigint"),
        ({**record(a={"$ref": "#x"}), "definitions": {"q": {**INTEGER, "$id": "#x"}}}, "bigint"),
        ({**record(a={"$ref": "#x"}), "definitions": {"q": {**INTEGER, "id": "#x"}}}, "bigint"),
        ({**record(a={"$ref": "#x"}), "$defs": {"q": {**INTEGER, "$anchor": "x"}}}, "bigint"),
        ({**record(a={"$dynamicRef": "#x"}), "$defs": {"q": {**INTEGER, "$dynamicAnchor": "x"}}}, "bigint"),
        ({**record(a={"$ref": "other.json"})}, "struct<o:tinyint>"),
        ({**record(a={"$ref": "other.json#/$defs/n"})}, "tinyint"),
        ({**record(a={"$ref": "other.json"}), "$id": "http://example.com/a/root.json"}, "struct<o:tinyint>"),
        ({**record(a={"$ref": "http://example.com/third.json#/$defs/n"})}, "string"),
        (
            {**record(a={"$ref": "urn:x:y#/$defs/n"}), "$defs": {"q": {"$id": "urn:x:y", "$defs": {"n": INTEGER}}}},
            "bigint",
        ),
        (
            {
                **record(a={"$ref": "b.json"}),
                "$id": "http://e.com/r.json",
                "$defs": {"q": {"$id": "b.json", **INTEGER}},
            },
            "bigint",
        ),
        ({**record(a={"$ref": "#/$defs/o", **record(p=TEXT)}), "$defs": {"o": record(o=TEXT)}}, "struct<o:string>"),
        (
            {"$schema": NEW, **record(a={"$ref": "#/$defs/o", **record(p=TEXT)}), "$defs": {"o": record(o=TEXT)}},
            "struct<o:string,p:string>",
        ),
    ],
)
def test_a_reference_leads_to_a_part_of_the_schema_or_to_one_that_the_registry_lists(
    schema: Any, expected: str
) -> None:
    other = {**record(o={"$ref": "#/$defs/n"}), "$defs": {"n": {**INTEGER, "connect.type": "int8"}}}
    third = {"$id": "http://example.com/third.json", "$defs": {"n": TEXT}}
    assert type_of(schema, other_json=other, third=third) == f"struct<a:{expected}>"


TREE = record(value=INTEGER, left={"oneOf": [NULL, {"$ref": "#"}]}, rest=array({"$ref": "#"}))


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (1, "struct<value:bigint>"),
        (2, "struct<value:bigint,left:struct<value:bigint>,rest:array<struct<value:bigint>>>"),
    ],
)
def test_a_schema_that_holds_itself_is_followed_as_deep_as_asked(depth: int, expected: str) -> None:
    assert type_of(TREE, depth) == expected
    with pytest.raises(JsonAnalysisError, match=r"RECURSIVE_JSON_SCHEMA.* 1 to 15"):
        type_of(TREE)


def test_a_definition_that_is_used_twice_beside_itself_is_not_recursive() -> None:
    schema = {**record(a={"$ref": "#/$defs/p"}, b=array({"$ref": "#/$defs/p"})), "$defs": {"p": record(x=NUMBER)}}
    assert type_of(schema) == "struct<a:struct<x:double>,b:array<struct<x:double>>>"


@pytest.mark.parametrize("kind", ["number", "string"])
def test_of_two_decimals_of_one_scale_the_one_with_fewer_digits_counts(kind: str) -> None:
    wide, narrow = decimal(kind, scale="2"), decimal(kind, scale="2", **{"connect.decimal.precision": "7"})
    for both in ([wide, narrow], [narrow, wide], [narrow, narrow]):
        assert type_of({"allOf": both}) == "decimal(7,2)"


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"allOf": [INTEGER, TEXT]}, "JSON_TYPE_NOT_SUPPORTED"),
        ({"allOf": [DATE, TIMESTAMP]}, "JSON_TYPE_NOT_SUPPORTED"),
        ({"allOf": [decimal("number", scale="2"), decimal("number", scale="3")]}, "JSON_TYPE_NOT_SUPPORTED"),
        ({"allOf": [decimal("string", scale="0"), decimal("string", scale="3")]}, "JSON_TYPE_NOT_SUPPORTED"),
        ({"allOf": [record(a=decimal("number")), record(a=decimal("number", scale="1"))]}, "JSON_TYPE_NOT_SUPPORTED"),
        (decimal("number", scale="39"), "JSON_TYPE_NOT_SUPPORTED"),
        (decimal("number", scale="-1"), "JSON_TYPE_NOT_SUPPORTED"),
        (decimal("string", scale="x"), "CANNOT_PARSE_JSON_SCHEMA"),
        (record(a=INTEGER, A=INTEGER), "JSON_FIELD_AMBIGUOUS"),
        (record(a={"$ref": "nowhere.json"}), "JSON_REFERENCE_NOT_FOUND"),
        (record(a={"$ref": "#/definitions/nothing"}), "JSON_REFERENCE_NOT_FOUND"),
        (record(a={"$ref": "http://[/"}), "JSON_REFERENCE_NOT_FOUND"),
        (record(a={"$ref": 7}), "CANNOT_PARSE_JSON_SCHEMA"),
        (record(a=7), "CANNOT_PARSE_JSON_SCHEMA"),
        ({"type": "what"}, "CANNOT_PARSE_JSON_SCHEMA"),
        ({"type": [7]}, "CANNOT_PARSE_JSON_SCHEMA"),
        ({"type": "object", "properties": []}, "CANNOT_PARSE_JSON_SCHEMA"),
        ({"allOf": {}}, "CANNOT_PARSE_JSON_SCHEMA"),
        ({"prefixItems": 7}, "CANNOT_PARSE_JSON_SCHEMA"),
        ([], "CANNOT_PARSE_JSON_SCHEMA"),
    ],
)
def test_what_has_no_column_is_refused(schema: Any, error: str) -> None:
    with pytest.raises(JsonAnalysisError, match=error):
        type_of(schema)


def chain(link: Any, count: int) -> dict[str, Any]:
    """Definitions of which each leads to the next one, as often as the link has it."""
    links = [json.loads(json.dumps(link).replace("NEXT", f"#/d/{number + 1}")) for number in range(count)]
    return {"$ref": "#/d/0", "d": [*links, INTEGER]}


NEXT = {"$ref": "NEXT"}


@pytest.mark.parametrize("depth", [-1, 15])
@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}),
        json.dumps({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json.dumps({"anyOf": [{"$ref": "#"}, {"$ref": "#"}, INTEGER]}),
        json.dumps({**record(a=INTEGER), "oneOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json.dumps(chain(record(x=NEXT, y=NEXT), 60)),
        json.dumps(chain({"allOf": [NEXT, NEXT]}, 40)),
        json.dumps(chain({"anyOf": [NEXT, NEXT]}, 40)),
        json.dumps(chain({**record(a=INTEGER), "anyOf": [NEXT, NEXT]}, 40)),
        json.dumps(chain(NEXT, 200)),
        json.dumps({"allOf": [{**record(b=TEXT), "anyOf": [record(a=array(TEXT)) for _ in range(20)]}] * 2}),
        json.dumps({"enum": [0] * 200_000}),
        '{"items":' * 300 + "{}" + "}" * 300,
        '{"items":' * 100_000 + "{}" + "}" * 100_000,
        '{"maximum": ' + "9" * 5000 + "}",
        '{"type": "object"',
        "\ud800",
        "",
    ],
    ids=range(17),
)
def test_hostile_schemas_end_within_bounds_by_an_error_that_has_a_name(text: str, depth: int) -> None:
    with pytest.raises(JsonAnalysisError, match=r"\[(CANNOT_PARSE_JSON_SCHEMA|JSON_TYPE_NOT_SUPPORTED)\]"):
        json_column(parse_schemas(text), depth)


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


HOSTILE = [
    *("1e400", "-1e400", "NaN", "true", "1e300", "2.5", "9" * 4000, f'"{"9" * 5000}"'),
    *('"\\ud800"', '"1_0"', '"\u0662"', "[]"),
]


@pytest.mark.parametrize("given", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("name", ["scale", "connect.decimal.precision"])
def test_digits_of_a_decimal_that_are_no_number_are_refused_by_name(name: str, given: str) -> None:
    for kind in ("number", "string"):
        text = json.dumps(decimal(kind, **{name: "HERE"})).replace('"HERE"', given)
        with pytest.raises(JsonAnalysisError, match="CANNOT_PARSE_JSON_SCHEMA"):
            json_column(parse_schemas(text))


KEYS = ("title", "format", "connect.type", "connect.index", "connect.parameters", "enum", "const", "type", "items")
KEYS += ("properties", "allOf", "anyOf", "required", "$id", "id", "$ref", "$anchor", "$schema", "$dynamicAnchor")


@pytest.mark.parametrize("key", KEYS)
def test_a_keyword_of_any_value_gives_a_column_or_an_error_that_has_a_name(key: str) -> None:
    values = [*HOSTILE, "{}", "null", '{"\\ud800": {}}', '["\\ud800", null, {}]', f'{{"$ref": "#/x/{"9" * 5000}"}}']
    for outer in ('{"type": "object", "properties": {"a": {"KEY": VALUE}}, "x": [1]}', '{"KEY": VALUE}'):
        for value in values:
            text = outer.replace("KEY", key).replace("VALUE", value)
            try:
                column = json_column(parse_schemas(text))
            except JsonAnalysisError as error:
                str(error).encode()
            else:
                spark_type(column).json().encode()


def nested_ids(count: int) -> str:
    return json.dumps({"$id": "http://e.com/" + "a/" * 1000, "$defs": {str(n): {"$id": f"b{n}"} for n in range(count)}})


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"$id": "e/" + "a" * 2_000_000, "$defs": {str(n): {"$anchor": f"x{n}"} for n in range(4000)}}),
        nested_ids(20_000),
        json.dumps({"allOf": [{"$ref": "#/d"}] * 5000, "d": record(**{f"p{n}": {} for n in range(20_000)})}),
        json.dumps({"allOf": [record(a={"$ref": f"#/d/{n}"}) for n in range(20_000)], "d": [{}] * 20_000}),
        json.dumps({"allOf": [{} for _ in range(49_000)]}),
        json.dumps({**record(a={}), "anyOf": [record(b={"title": str(n)}) for n in range(20_000)]}),
        json.dumps(record(**{f"p{n}": {"$ref": "#/d/" + "x" * 5000} for n in range(2000)})),
    ],
    ids=["long-id", "ids", "wide-refs", "same-name", "all-of", "branches", "long-refs"],
)
def test_schemas_that_multiply_themselves_end_soon_and_take_little_memory(text: str) -> None:
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(JsonAnalysisError, match=r"CANNOT_PARSE_JSON_SCHEMA|JSON_REFERENCE_NOT_FOUND"):
        json_column(parse_schemas(text))
    assert time.process_time() - begin < 20
    assert tracemalloc.get_traced_memory()[1] < 300 << 20
    tracemalloc.stop()


def test_anchors_share_the_uri_around_them() -> None:
    parts = {str(n): {"$anchor": f"x{n}", **INTEGER} for n in range(20_000)}
    schema = {"$id": "http://e.com/" + "a" * 4000, **record(a={"$ref": "#x7"}), "$defs": parts}
    assert type_of(schema) == "struct<a:bigint>"


def test_a_writer_with_many_alternatives_is_compared_with_wide_columns_within_bounds() -> None:
    column = json_column(parse_schemas(json.dumps(array(record(**{f"p{n}": TIME for n in range(9000)})))))
    writer = array({"anyOf": [record(**{f"p{n}": TIME}) for n in range(20_000)]})
    with pytest.raises(JsonAnalysisError, match="CANNOT_PARSE_JSON_SCHEMA"):
        difference(column, parse_schemas(json.dumps(writer)))
