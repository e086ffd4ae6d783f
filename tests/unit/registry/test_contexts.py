"""Contexts of a registry: which schema an id, a reference or a subject means; a server on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.functions import decode_call, encode_call
from connectors.core.errors import ConnectorError, OptionError
from connectors.json.registry import registry_of as json_registry_of
from connectors.json.schema.columns import JsonColumn
from connectors.json.worker import PREFIX_BYTES, FrameCall
from connectors.protobuf.functions import _locate, _written
from connectors.protobuf.options import parse_protobuf_options
from connectors.protobuf.worker import DecodeCall, Engine
from connectors.registry.options import RegistryOptions, parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.avro_cases import record
from tests.support.protobuf_rig import compiled

A_B = record("Pair", ("a", "int"), ("b", "int"))
B_A = record("Pair", ("b", "int"), ("a", "int"))
PROTO = 'syntax = "proto3"; package shop; message Basic {{ {} id = 1; }}'
FRAME = b"\0\0\0\0\1"
STAGING = ":.staging:orders-value"
PERMISSIVE = {"mode": "PERMISSIVE"}


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


def avro(server: SchemaRegistryServer, subject: str, schema: Any, *references: Any) -> int:
    return server.register(subject, text=json.dumps(schema), schema_type="AVRO", references=references)


def options(server: SchemaRegistryServer, subject: str | None = None, path: str = "") -> RegistryOptions:
    given = {"address": server.address + path, "retry.timeout": "0", **({"subject": subject} if subject else {})}
    return parse_registry_options(given)


@pytest.fixture
def pairs(server: SchemaRegistryServer) -> SchemaRegistryServer:
    """The id 1 is one schema in the default context, and another one in the context staging."""
    assert avro(server, "orders-value", A_B) == 1
    assert avro(server, STAGING, B_A) == 1
    return server


PAIR = FRAME + b"\x0e\x10"  # 7 and 8


@pytest.mark.parametrize(
    ("subject", "path", "expected"),
    [
        ("orders-value", "", {"a": 7, "b": 8}),
        (":.:orders-value", "", {"a": 7, "b": 8}),
        (STAGING, "", {"b": 7, "a": 8}),
        ("orders-value", "/contexts/.staging", {"b": 7, "a": 8}),
        ("orders-value", "/contexts/staging", {"b": 7, "a": 8}),
        ("orders-value", "/contexts/:.staging:", {"b": 7, "a": 8}),
        (STAGING, "/contexts/.other", {"b": 7, "a": 8}),
        (":.:orders-value", "/contexts/.staging", {"a": 7, "b": 8}),
    ],
)
def test_avro_is_read_by_the_ids_of_the_subjects_context(
    pairs: SchemaRegistryServer, subject: str, path: str, expected: dict[str, int]
) -> None:
    call, _ = decode_call(None, PERMISSIVE, subject, pairs.address + path)
    assert call(pa.array([PAIR])).to_pylist() == [expected]
    given, _ = decode_call(json.dumps(A_B), PERMISSIVE, subject, pairs.address + path)
    assert given(pa.array([PAIR])).to_pylist() == [expected]


def test_contexts_are_read_side_by_side(pairs: SchemaRegistryServer) -> None:
    for _ in range(2):
        for subject, first in (("orders-value", "a"), (STAGING, "b")):
            call, _ = decode_call(json.dumps(A_B), PERMISSIVE, subject, pairs.address)
            assert call(pa.array([PAIR])).to_pylist()[0][first] == 7


def test_a_subject_that_is_only_a_context_says_where_ids_are_looked_up(pairs: SchemaRegistryServer) -> None:
    for subject in (":.staging:", ":.staging"):
        call, _ = decode_call(json.dumps(A_B), PERMISSIVE, subject, pairs.address)
        assert call(pa.array([PAIR])).to_pylist() == [{"b": 7, "a": 8}]
        with pytest.raises(OptionError, match=r"OPTION_MISSING.*subject"):
            decode_call(None, None, subject, pairs.address)


def test_guids_are_those_of_all_contexts(pairs: SchemaRegistryServer) -> None:
    staging = pairs.guid(1, ":.staging:")
    call, _ = decode_call(json.dumps(A_B), PERMISSIVE, "orders-value", pairs.address)
    assert call(pa.array([b"\1" + staging + b"\x0e\x10"])).to_pylist() == [{"b": 7, "a": 8}]


@pytest.mark.parametrize("path", ["", "/contexts/.staging"])
def test_a_reference_is_one_of_the_context_of_the_schema_that_has_it(server: SchemaRegistryServer, path: str) -> None:
    nested = ("shop.Deep", "deep", 1)
    avro(server, "deep", {"type": "enum", "name": "shop.Deep", "symbols": ["WRONG"]})
    avro(server, "inner", record("Inner", ("n", "string"), namespace="shop"))
    avro(server, ":.staging:deep", {"type": "enum", "name": "shop.Deep", "symbols": ["RIGHT"]})
    inner = {"type": "record", "name": "Inner", "namespace": "shop", "fields": [{"name": "n", "type": "shop.Deep"}]}
    avro(server, ":.staging:inner", inner, nested)
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": "shop.Inner"}]}
    number = avro(server, ":.staging:outer", outer, ("shop.Inner", "inner", 1))
    guid = server.guid(number, ":.staging:")
    subject = "outer" if path else ":.staging:outer"
    call, _ = decode_call(None, PERMISSIVE, subject, server.address + path)
    rows = [b"\0" + number.to_bytes(4, "big") + b"\0", b"\1" + guid + b"\0"]
    assert call(pa.array(rows)).to_pylist() == [{"inner": {"n": "RIGHT"}}] * 2


def test_a_reference_may_name_another_context_which_its_own_references_are_in(server: SchemaRegistryServer) -> None:
    enum = {"type": "enum", "name": "shop.Deep"}
    for subject, symbol in (("deep", "WRONG"), (":.a:deep", "WRONG"), (":.b:deep", "RIGHT")):
        avro(server, subject, {**enum, "symbols": [symbol]})
    inner = {"type": "record", "name": "shop.Inner", "fields": [{"name": "n", "type": "shop.Deep"}]}
    avro(server, ":.b:inner", inner, ("shop.Deep", "deep", 1))
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": "shop.Inner"}]}
    number = avro(server, ":.a:outer", outer, ("shop.Inner", ":.b:inner", 1))
    call, _ = decode_call(None, PERMISSIVE, ":.a:outer", server.address)
    assert call(pa.array([b"\0" + number.to_bytes(4, "big") + b"\0"])).to_pylist() == [{"inner": {"n": "RIGHT"}}]


def test_json_is_judged_by_the_ids_of_the_subjects_context(server: SchemaRegistryServer) -> None:
    server.register("days", text='{"type": "integer"}', schema_type="JSON")
    server.register(":.staging:days", text='"long"', schema_type="AVRO")  # which makes bad rows
    column = pa.array([(FRAME + b"1")[:PREFIX_BYTES]], pa.binary())
    found = {}
    for subject, path in (("days", ""), (":.staging:days", ""), ("days", "/contexts/.staging")):
        call = FrameCall(JsonColumn("bigint"), options(server, subject, path), error_column=True)
        found[subject + path] = call(column).to_pylist()[0]["value"]
    assert found == {"days": 5, ":.staging:days": None, "days/contexts/.staging": None}


@pytest.mark.parametrize("path", ["", "/contexts/.staging"])
def test_protobuf_is_read_and_written_by_the_ids_of_the_subjects_context(
    server: SchemaRegistryServer, path: str
) -> None:
    server.register("basic", compiled(PROTO.format("string")), "main.proto")
    server.register(":.staging:basic", compiled(PROTO.format("int64")), "main.proto")
    registry = options(server, "basic" if path else ":.staging:basic", path)
    descriptors, message, _ = _locate(registry, "Basic", None, None, None)
    parsed = parse_protobuf_options({"mode": "PERMISSIVE", "wire.format": "confluent"}, "from_protobuf")
    call = DecodeCall(descriptors, message, parsed, None, Engine.PYTHON, registry)
    assert call(pa.array([FRAME + b"\0\x08\x05"])).to_pylist() == [{"id": 5}]
    assert _written(registry, "Basic", None, None, None)[1] == "shop.Basic"


def test_protobuf_imports_come_from_the_context_of_the_schema(server: SchemaRegistryServer) -> None:
    other = 'syntax = "proto3"; package acme; message Kind { int64 RIGHT = 1; }'
    main = 'syntax = "proto3"; package shop; import "other.proto"; message Order { acme.Kind kind = 1; }'
    server.register("other", compiled(other.replace("RIGHT", "wrong")), "main.proto")
    files = compiled(main, other=other)
    server.register(":.staging:other", files, "other.proto")
    server.register(":.staging:orders", files, "main.proto", references=(("other.proto", "other", 1),))
    descriptors = _locate(options(server, ":.staging:orders"), "Order", None, None, None)[0]
    assert b"RIGHT" in descriptors


def test_what_is_written_has_ids_and_guids_of_the_subjects_context(server: SchemaRegistryServer) -> None:
    avro(server, "orders-value", A_B)
    avro(server, ":.staging:first", '"int"'.strip('"'))
    assert avro(server, STAGING, A_B) == 2
    header = {"schema.id.serializer": "header"}
    for schema in ("", json.dumps(A_B)):
        call = encode_call(schema, None, STAGING, server.address)
        assert call.frame is not None
        assert call.frame == encode_call(schema, None, "orders-value", f"{server.address}/contexts/.staging").frame
        assert call.frame != encode_call(schema, None, "orders-value", server.address).frame
        by_guid = encode_call(schema, header, STAGING, server.address)
        assert by_guid.header == ("__value_schema_id", b"\1" + server.guid(2, ":.staging:"))


def test_a_schema_is_registered_in_the_context_of_its_subject(server: SchemaRegistryServer) -> None:
    register = {"auto.register.schemas": "true"}
    avro(server, "orders-value", B_A)
    encode_call(json.dumps(A_B), register, STAGING, server.address)
    call, _ = decode_call(None, PERMISSIVE, STAGING, server.address)
    assert call(pa.array([PAIR])).to_pylist() == [{"a": 7, "b": 8}]


def test_a_subject_that_the_registry_finds_in_another_context_is_named(server: SchemaRegistryServer) -> None:
    # Confluent's looks for a subject in all contexts; its ids would be read as those of the default one.
    avro(server, STAGING, A_B)
    calls: list[Callable[[], object]] = [
        lambda: decode_call(None, None, "orders-value", server.address),
        lambda: encode_call("", None, "orders-value", server.address),
    ]
    for call in calls:
        with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*:\.staging:orders-value"):
            call()


def test_one_client_is_for_all_subjects_of_a_context(server: SchemaRegistryServer) -> None:
    clients = {json_registry_of(options(server, subject)) for subject in (":.a:x", ":.a:y", ":.a:", ":.a")}
    assert len(clients) == 1
    assert json_registry_of(options(server, "x")) is json_registry_of(options(server, "y"))
    assert json_registry_of(options(server, ":.b:x")) not in clients
