"""What JSON Schemas say of a value, and what is refused: recursion, decimals, hostile keywords."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.json.errors import JsonAnalysisError
from connectors.json.expressions import spark_type
from connectors.json.schema.columns import json_column
from connectors.json.schema.parser import parse_schemas
from tests.support.json_schemas import DATE, INTEGER, NUMBER, TEXT, TIMESTAMP, TREE, array, decimal, record, type_of


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
