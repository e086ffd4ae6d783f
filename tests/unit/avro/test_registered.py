"""`from_avro` with a registry: frames, schemas of writers, references and what goes wrong; a server on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.options import parse_avro_options
from connectors.avro.registered import registry_of
from connectors.avro.worker import DecodeCall
from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.avro_cases import record
from tests.support.avro_rig import encode

V1 = record("Order", ("id", "int"), ("old", "string"))
V2 = record(
    "Order", ("id", "long"), ("note", ["null", "string"], {"default": None}), ("new", "string", {"aliases": ["old"]})
)
COLUMN = {"mode": "PERMISSIVE", "on.error": "column"}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


def registered(server: SchemaRegistryServer, schema: Any, subject: str = "orders-value", *references: Any) -> int:
    return server.register(subject, text=json.dumps(schema), schema_type="AVRO", references=references)


def call_of(
    server: SchemaRegistryServer, reader: Any, options: Mapping[str, str] | None = None, *, is_key: bool = False
) -> DecodeCall:
    registry = parse_registry_options({"address": server.address, "retry.timeout": "300ms"})
    parsed = parse_avro_options(options or {"mode": "PERMISSIVE"}, "from_avro")
    return DecodeCall(json.dumps(reader), parsed, registry=registry, is_key=is_key)


def framed(schema_id: int, message: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + message


def values_of(call: DecodeCall, *columns: pa.Array) -> list[Any]:
    result = call(*columns)
    result.validate(full=True)
    return result.to_pylist()


@pytest.mark.parametrize("repeat", [1, 100], ids=["rows", "columns"])
def test_each_writer_is_read_by_its_own_schema_which_is_fetched_once(server: SchemaRegistryServer, repeat: int) -> None:
    first, second = registered(server, V1), registered(server, V2)
    old = framed(first, encode(V1, {"id": 1, "old": "a"}))
    new = framed(second, encode(V2, {"id": 2**40, "note": "n", "new": "b"}))
    guid = b"\1" + server.guid(first) + encode(V1, {"id": 3, "old": "c"})
    rows = [old, new, None, guid, old] * repeat
    expected = [
        {"id": 1, "note": None, "new": "a"},
        {"id": 2**40, "note": "n", "new": "b"},
        None,
        {"id": 3, "note": None, "new": "c"},
        {"id": 1, "note": None, "new": "a"},
    ]
    for _ in range(2):
        call = call_of(server, V2)  # of another task
        assert values_of(call, pa.array(rows, pa.binary())) == expected * repeat
        assert values_of(call, pa.array([b"x", *rows], pa.large_binary())[1:]) == expected * repeat
        assert values_of(call, pa.array([old] * repeat)) == expected[:1] * repeat
    by_guid = next(path for path in server.requests if "guids" in path)
    assert sorted(server.requests) == sorted([f"/schemas/ids/{first}", f"/schemas/ids/{second}", by_guid])


def test_empty_batches_and_empty_messages_are_read(server: SchemaRegistryServer) -> None:
    schema = registered(server, record("E"))
    call = call_of(server, record("E"))
    assert values_of(call, pa.array([], pa.binary())) == []
    assert values_of(call, pa.array([None, None], pa.binary())) == [None, None]
    assert values_of(call, pa.array([framed(schema, b"")] * 3)) == [{}] * 3


def test_what_is_in_no_frame_or_does_not_fit_is_a_bad_row_and_changes_no_neighbour(
    server: SchemaRegistryServer,
) -> None:
    good, wrong = registered(server, V1), registered(server, record("Order", ("id", "string")))
    protobuf = server.register("other", text='syntax = "proto3";')
    message = encode(V1, {"id": 1, "old": "a"})
    bad = {
        b"": "is not a Confluent frame",
        b"\0\0\0": "is not a Confluent frame",
        b"\2" * 30: "is not a Confluent frame",
        b"\1" + bytes(15): "is not a Confluent frame",
        framed(good, message[:-1]): "ends too early",
        framed(wrong, b"\2a"): f"missing required field new (schema {wrong})",
        framed(999, message): "SCHEMA_NOT_FOUND",
        framed(protobuf, message): "SCHEMA_UNUSABLE",
        b"\1" + bytes(16) + message: "SCHEMA_NOT_FOUND",
    }
    rows = [row for data in bad for row in (framed(good, message), data)]
    for repeat in (1, 20):
        answers = values_of(call_of(server, V2, COLUMN), pa.array([*rows, None] * repeat, pa.binary()))
        assert len(answers) == repeat * (len(rows) + 1)
        for place, data in enumerate(bad):
            neighbour, answer = answers[2 * place], answers[2 * place + 1]
            assert neighbour == {"value": {"id": 1, "note": None, "new": "a"}, "error": None}
            assert answer["value"] == {"id": None, "note": None, "new": None}  # a struct of NULLs, as without frames
            assert bad[data] in answer["error"]
        assert answers[len(rows)] is None


def test_failfast_names_the_row_and_an_unknown_id_is_a_bad_row_there_too(server: SchemaRegistryServer) -> None:
    schema = registered(server, "int")
    call = call_of(server, "int", {"mode": "FAILFAST"})
    rows = [framed(schema, b"\2"), framed(999, b"\2")]
    assert values_of(call, pa.array(rows[:1])) == [1]
    with pytest.raises(ConnectorError, match=r"MALFORMED_AVRO_MESSAGE.*row 1 of the batch.*no schema id 999"):
        call(pa.array(rows))
    unusable = server.register("other", text="no schema", schema_type="AVRO")
    with pytest.raises(ConnectorError, match="SCHEMA_UNUSABLE"):
        call(pa.array([framed(unusable, b"\2")]))


@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST"])
def test_a_registry_that_cannot_be_reached_ends_the_query(server: SchemaRegistryServer, mode: str) -> None:
    schema = registered(server, "int")
    server.respond("*", 503)
    with pytest.raises(ServiceUnavailableError, match="SCHEMA_REGISTRY_UNAVAILABLE"):
        call_of(server, "int", {"mode": mode})(pa.array([framed(schema, b"\2")]))


@pytest.mark.parametrize("as_guid", [False, True])
def test_garbage_costs_a_bounded_number_of_requests(server: SchemaRegistryServer, as_guid: bool) -> None:
    schema = registered(server, "int")
    rows = [framed(number, b"\2") for number in range(1000, 6000)]
    if as_guid:
        rows = [b"\1" + number.to_bytes(16, "big") + b"\2" for number in range(5000)]
    good = framed(schema, b"\2")
    assert values_of(call_of(server, "int"), pa.array([*rows, good, good])) == [*[None] * 5000, 1, 1]
    assert len(server.requests) == 33


@pytest.mark.parametrize("is_key", [False, True])
@pytest.mark.parametrize("by", ["id", "guid"])
def test_a_header_has_the_schema_and_that_of_the_other_column_is_never_taken(
    server: SchemaRegistryServer, by: str, is_key: bool
) -> None:
    ids = {"__key_schema_id": registered(server, "int", "k"), "__value_schema_id": registered(server, "string", "v")}
    own, other = sorted(ids, reverse=not is_key)
    message, value = (b"\2", "1") if is_key else (b"\2z", "z")
    reader = ["null", "int"] if is_key else "string"
    value = 1 if is_key else value
    prefixes = {
        name: framed(schema, b"") if by == "id" else b"\1" + server.guid(schema) for name, schema in ids.items()
    }
    both = [{"key": name, "value": prefix} for name, prefix in prefixes.items()]
    headers = [
        both,
        both[::-1],
        None,
        [{"key": other, "value": prefixes[other]}],
        [{"key": "x", "value": None}, {"key": own, "value": b"\0\0"}],
        both,
    ]
    rows = [message, message, prefixes[own] + message, message, message, None]
    call = call_of(server, reader, COLUMN, is_key=is_key)
    answers = values_of(call, pa.array(rows, pa.binary()), pa.array(headers, HEADERS))
    assert [row and row["value"] for row in answers] == [value, value, value, None, None, None]
    assert f"isKey={not is_key}: {other} has its id" in answers[3]["error"]
    assert "is not a Confluent frame" in answers[4]["error"]
    assert answers[5] is None


def test_references_are_resolved_each_before_what_needs_it(server: SchemaRegistryServer) -> None:
    country = {"type": "enum", "name": "Country", "namespace": "common", "symbols": ["NL", "DE"]}
    address = record("Address", ("city", "string"), ("country", "Country"), namespace="common")
    order = record("shop.Order", ("home", "common.Address"), ("from", "common.Country"))
    registered(server, country, "country")
    registered(server, address, "address", ("common.Country", "country", 1))
    references = (("common.Country", "country", 1), ("common.Address", "address", 1))
    for given in (references, references[::-1]):
        schema = registered(server, order, "order", *given)
        latest = registry_of(parse_registry_options({"address": server.address})).latest("order")
        assert latest.schema_id == schema
        parsed = parse_avro_options({}, "from_avro")
        registry = parse_registry_options({"address": server.address})
        call = DecodeCall(latest.text, parsed, references=latest.references, registry=registry)
        answer = values_of(call, pa.array([framed(schema, b"\2x\2\0")]))
        assert answer == [{"home": {"city": "x", "country": "DE"}, "from": "NL"}]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '"common.Unknown"',
        '{"type":"record","name":"A","fields":[{"name":"a","type":"B"}]}',
        '{"type":"array","items":' * 400 + '"int"' + "}" * 400,
    ],
    ids=["no JSON", "no type", "no reference", "deep"],
)
def test_a_schema_that_makes_no_sense_is_a_bad_row_beside_good_ones(server: SchemaRegistryServer, text: str) -> None:
    good, odd = registered(server, "int"), server.register("odd", text=text, schema_type="AVRO")
    answers = values_of(call_of(server, "int", COLUMN), pa.array([framed(good, b"\2"), framed(odd, b"\2")]))
    assert [row["value"] for row in answers] == [1, None]
    assert "SCHEMA_UNUSABLE" in answers[1]["error"]


def test_a_writers_schema_that_expands_without_bounds_is_a_bad_row_beside_good_ones(
    server: SchemaRegistryServer,
) -> None:
    first: Any = record("A0", ("f", "int"))
    definitions, reader = [first, record("B0", ("f", "int"))], first
    for level in range(1, 40):
        union = [f"A{level - 1}", f"B{level - 1}"]
        definitions += [record(f"A{level}", ("f", union)), record(f"B{level}", ("f", union))]
        reader = record(f"A{level}", ("f", reader))
    inner = [(f"f{place}", definition) for place, definition in enumerate(definitions)]
    wide = registered(server, record("W", *inner, ("g", "A39")))
    good = registered(server, record("W", ("g", reader)))
    call = call_of(server, record("W", ("g", reader)), COLUMN)
    answers = values_of(call, pa.array([framed(wide, b"\2"), framed(good, b"\2")]))
    assert "more than 50000 columns" in answers[0]["error"]
    assert answers[1]["error"] is None


def test_records_in_records_of_any_depth_end_no_task(server: SchemaRegistryServer) -> None:
    rows = []
    for levels in (*range(100, 400, 20), 900, 5000):
        deep = [record("R0", ("i", "int"))]
        deep += [record(f"R{level}", ("r", [f"R{level - 1}", "null"])) for level in range(1, levels)]
        inner = [(f"f{place}", ["null", definition]) for place, definition in enumerate(deep)]
        registered(server, record("Inner", *inner), f"inner-{levels}")
        writer = record("A", ("i", "int"), ("deep", f"R{levels - 1}"))
        schema = registered(server, writer, "orders-value", ("Inner", f"inner-{levels}", 1))
        rows.append(framed(schema, b"\2" + bytes(levels)))
    answers = values_of(call_of(server, record("A", ("i", "int")), COLUMN), pa.array(rows))
    assert answers[0] == {"value": {"i": 1}, "error": None}
    assert "too many levels" in answers[-1]["error"]
    assert all(answer["error"] is None or "too many levels" in answer["error"] for answer in answers)


@pytest.mark.parametrize("more", [b"\xff", bytes(30)])
def test_bytes_behind_the_id_in_a_header_are_ignored_as_by_confluents_clients(
    server: SchemaRegistryServer, more: bytes
) -> None:
    schema = registered(server, "int")
    headers = [
        [{"key": "__value_schema_id", "value": prefix + more}]
        for prefix in (framed(schema, b""), b"\1" + server.guid(schema))
    ]
    assert values_of(call_of(server, "int"), pa.array([b"\2"] * 2), pa.array(headers, HEADERS)) == [1, 1]


def test_references_in_a_circle_end(server: SchemaRegistryServer) -> None:
    a, b = record("A", ("b", ["null", "B"])), record("B", ("a", ["null", "A"]))
    registered(server, a, "a", ("B", "b", 1))
    schema = registered(server, b, "b", ("A", "a", 1))
    answers = values_of(call_of(server, "int", COLUMN), pa.array([framed(schema, b"\2")]))
    assert "SCHEMA_UNUSABLE" in answers[0]["error"]
