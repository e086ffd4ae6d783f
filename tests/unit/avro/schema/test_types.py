"""Columns of a schema: how far it may expand, and what the types of Spark in it mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.options import parse_avro_options
from connectors.avro.schema.parser import AvroType, parse_schema
from connectors.avro.schema.plan import compile_plan
from connectors.avro.schema.types import spark_type
from tests.support.avro_cases import record

CATALYST = "spark.sql.catalyst.type"


def parsed(schema: Any) -> AvroType:
    return parse_schema(json.dumps(schema), "test")


def type_of(schema: Any, **options: str) -> str:
    return spark_type(parsed(schema), parse_avro_options(options, "from_avro")).simpleString()


def doubling(levels: int, *, union: bool = False) -> list[Any]:
    """Return definitions, each after those it needs, of records that hold the one before them twice."""
    made = [record("R0", ("a", "int"))]
    for level in range(1, levels):
        inner = f"R{level - 1}"
        made.append(record(f"R{level}", ("a", ["null", "int", inner] if union else inner), ("b", inner)))
    return made


def all_of(definitions: list[Any]) -> AvroType:
    """Return the last one."""
    texts = [json.dumps(definition) for definition in definitions]
    return parse_schema(texts[-1], "test", texts[:-1])


@pytest.mark.parametrize("union", [False, True])
def test_records_that_hold_each_other_several_times_end_at_a_bound(union: bool) -> None:
    options = parse_avro_options({}, "from_avro")
    assert spark_type(all_of(doubling(10, union=union)), options) is not None
    for levels in (17, 60):
        with pytest.raises(
            AvroAnalysisError,
            match=r"AVRO_TOO_MANY_COLUMNS.*more than 50000.*Declare what you "
            r"do not need as bytes",
        ):
            spark_type(all_of(doubling(levels, union=union)), options)


def test_a_recursive_record_with_several_of_itself_is_followed_to_the_same_bound() -> None:
    node = record("Node", ("v", "int"), *((name, ["null", "Node"]) for name in "abcd"))
    assert type_of(node, recursiveFieldMaxDepth="3").count("v:int") == 21
    with pytest.raises(AvroAnalysisError, match=r"AVRO_TOO_MANY_COLUMNS.*Lower recursiveFieldMaxDepth, which is 15"):
        type_of(node, recursiveFieldMaxDepth="15")


@pytest.mark.parametrize("levels", [151, 5000])
def test_records_in_records_end_at_a_level(levels: int) -> None:
    definitions = [record("R0", ("a", "int"))]
    definitions += [record(f"R{level}", ("r", ["null", f"R{level - 1}"])) for level in range(1, levels)]
    options = parse_avro_options({}, "from_avro")
    with pytest.raises(AvroAnalysisError, match="AVRO_TOO_DEEP"):
        spark_type(all_of(definitions), options)
    kind = spark_type(all_of(definitions[:150]), options)
    assert compile_plan(all_of(definitions[:150]), all_of(definitions[:150]), kind, options) is not None


def test_a_writer_cannot_expand_what_a_reader_has_once() -> None:
    definitions: list[Any] = [record("A0", ("f", "int")), record("B0", ("f", "int"))]
    for level in range(1, 40):
        union = [f"A{level - 1}", f"B{level - 1}"]
        definitions += [record(f"A{level}", ("f", union)), record(f"B{level}", ("f", union))]
    reader = record("A0", ("f", "int"))
    for level in range(1, 40):
        reader = record(f"A{level}", ("f", reader))
    options = parse_avro_options({}, "from_avro")
    kind = spark_type(parsed(reader), options)
    with pytest.raises(AvroAnalysisError, match=r"AVRO_TOO_MANY_COLUMNS.*The writer's schema"):
        compile_plan(all_of(definitions[:-1]), parsed(reader), kind, options)


def test_a_writer_without_an_end_in_sight_is_refused_where_it_is_dropped_too() -> None:
    definitions = [record("R0", ("a", "int"))]
    definitions += [record(f"R{level}", ("r", [f"R{level - 1}", "null"])) for level in range(1, 5000)]
    texts = [json.dumps(definition) for definition in definitions]
    writer = parse_schema(json.dumps(record("W", ("deep", "R4999"), ("i", "int"))), "test", texts)
    reader, options = parsed(record("W", ("i", "int"))), parse_avro_options({}, "from_avro")
    with pytest.raises(AvroAnalysisError, match="AVRO_TOO_DEEP"):
        compile_plan(writer, reader, spark_type(reader, options), options)


@pytest.mark.parametrize("kind", ["time(0)", "time(3)", "time(6)", "TIME(9)", "time"])
def test_a_time_that_spark_has_written_is_the_number_that_it_is_without_that_type(kind: str) -> None:
    assert type_of({"type": "long", "logicalType": "time-micros", CATALYST: kind}) == "bigint"
    assert type_of({"type": "long", "logicalType": "time-micros"}) == "bigint"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "long", CATALYST: "time(6)"},  # each value is a bad row of Spark's
        {"type": "int", CATALYST: "time(3)"},
        {"type": "int", CATALYST: "interval month"},
        {"type": "long", "logicalType": "time-micros", CATALYST: "interval month"},
        {"type": "long", "logicalType": "time-micros", CATALYST: "time(10)"},
    ],
)
def test_other_types_that_only_spark_has_are_refused(schema: Any) -> None:
    with pytest.raises(AvroAnalysisError, match="AVRO_TYPE_NOT_SUPPORTED"):
        type_of(schema)
