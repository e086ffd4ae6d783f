"""Schemas as JSON: names, namespaces, logical types, and what is refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.schema.parser import parse_schema


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("nothing", "neither a type nor the name"),
        (7, "7 is not a type"),
        ({"type": "array"}, "None is not a type"),
        ({"type": "record", "name": "R"}, "no list of fields"),
        ({"type": "record", "name": "a b", "fields": []}, "is not a name of a type"),
        (record({"name": "1", "type": "int"}), "is not a name of a field"),
        (record({"name": "a", "type": "int"}, {"name": "a", "type": "int"}), "the field 'a' twice"),
        (record({"name": "a", "type": "R"}), "holds itself without an end"),
        (record({"name": "a", "type": record()}), "defined twice"),
        ([["int"], "string"], "another union"),
        (["int", "int"], "'int' twice"),
        ({"type": "fixed", "name": "F"}, "has no size"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "a symbol twice"),
        ({"type": "enum", "name": "E"}, "no list of symbols"),
        ({}, "None is not a type"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(schema: Any, why: str) -> None:
    with pytest.raises(AvroAnalysisError, match=r"^\[CANNOT_PARSE_AVRO_SCHEMA\]") as caught:
        parse_schema(json.dumps(schema), "here")
    assert why in str(caught.value)
    assert "(here)" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "int", "[" * 100_000, "\ud800"])
def test_a_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(AvroAnalysisError, match="CANNOT_PARSE_AVRO_SCHEMA"):
        parse_schema(text, "here")


def test_names_are_looked_up_in_the_namespace_that_they_stand_in() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    fields = [{"name": "a", "type": inner}, {"name": "b", "type": "E"}, {"name": "c", "type": "space.E"}]
    parsed = parse_schema(json.dumps(record(*fields, namespace="space", aliases=["Old", "other.Old"])), "here")
    assert parsed.name == "space.R"
    assert parsed.aliases == ("space.Old", "other.Old")
    assert {each.type.name for each in parsed.fields} == {"space.E"}
    assert len({id(each.type) for each in parsed.fields}) == 1
    dotted = parse_schema(json.dumps({"type": "fixed", "name": "x.y.F", "namespace": "ignored", "size": 1}), "here")
    assert (dotted.name, dotted.short_name) == ("x.y.F", "F")


@pytest.mark.parametrize(
    ("schema", "logical"),
    [
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "long", "logicalType": "date"}, ""),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, "decimal"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, ""),
        ({"type": "bytes", "logicalType": "decimal"}, ""),
        ({"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9}, "decimal"),
        ({"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 10}, ""),
        ({"type": "string", "logicalType": "uuid"}, "uuid"),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, "uuid"),
        ({"type": "fixed", "name": "F", "size": 15, "logicalType": "uuid"}, ""),
        ({"type": "bytes", "logicalType": "decimal", "precision": True, "scale": 0}, ""),
        ({"type": "int", "logicalType": ["date"]}, ""),
    ],
)
def test_a_logical_type_that_does_not_fit_is_ignored(schema: Any, logical: str) -> None:
    assert parse_schema(json.dumps(schema), "here").logical == logical


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_records_that_hold_each_other_in_a_circle_without_an_end_are_refused(hops: int) -> None:
    inner: Any = "R0"
    for number in reversed(range(hops)):
        inner = record({"name": "a", "type": "int"}, {"name": "b", "type": inner}, name=f"R{number}")
    with pytest.raises(AvroAnalysisError, match="'R0' holds itself without an end"):
        parse_schema(json.dumps(inner), "here")
    twice = record({"name": "a", "type": record(name="S")}, {"name": "b", "type": "S"})
    assert len(parse_schema(json.dumps(twice), "here").fields) == 2
    ended = record({"name": "a", "type": {"type": "array", "items": "R"}}, {"name": "b", "type": ["null", "R"]})
    assert parse_schema(json.dumps(ended), "here").name == "R"


def test_schemas_of_some_megabytes_are_parsed_in_bounded_time() -> None:
    """With a time that grows by the square, each of these would take many minutes."""
    names = [f"f{number}" for number in range(100_000)]
    wide = record(*({"name": name, "type": "int"} for name in names))
    assert len(parse_schema(json.dumps(wide), "here").fields) == len(names)
    chain = [{"name": names[0], "type": record(name="f0")}]
    for before, name in itertools.pairwise(names[:50_000]):
        chain.append({"name": name, "type": record({"name": "a", "type": before}, name=name)})
    assert len(parse_schema(json.dumps(record(*chain)), "here").fields) == len(chain)
