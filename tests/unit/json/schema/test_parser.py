"""JSON Schemas that refer to parts of themselves and to others."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest

from connectors.json.errors import JsonAnalysisError
from connectors.json.schema.columns import json_column
from connectors.json.schema.parser import parse_schemas
from tests.support.json_schemas import INTEGER, TEXT, record, type_of

NEW = "https://json-schema.org/draft/2020-12/schema"


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
