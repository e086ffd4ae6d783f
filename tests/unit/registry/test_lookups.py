"""Answers that ask for patience, and what a registry has deleted: for every call, in all formats; on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.functions import decode_call, encode_call
from connectors.core.errors import ConnectorError, SourceGoneError
from connectors.json.registry import registry_of as json_registry_of
from connectors.protobuf.confluent.registry import protobuf_registry
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.protobuf_rig import compiled, schema_by_id

TRANSIENT = [408, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529]
REGISTER = {"auto.register.schemas": "true"}
HEADER = {"schema.id.serializer": "header"}


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        running.register("orders", text='"long"', schema_type="AVRO")
        yield running


def read(server: SchemaRegistryServer, mode: str) -> list[Any]:
    call, _ = decode_call('"long"', {"mode": mode}, schema_registry={"address": server.address})
    return call(pa.array([b"\0\0\0\0\1\x0a"])).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST"])
@pytest.mark.parametrize("status", TRANSIENT)
def test_a_transient_answer_makes_no_bad_row_and_ends_no_query(
    server: SchemaRegistryServer, status: int, mode: str
) -> None:
    server.fail(status, status)
    assert read(server, mode) == [5]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda address: decode_call(None, None, "orders", address),
        lambda address: encode_call("", None, "orders", address),
        lambda address: encode_call('"long"', None, "orders", address),
        lambda address: encode_call('"int"', REGISTER, "orders", address),
        lambda address: encode_call('"long"', HEADER, "orders", address),
    ],
    ids=["latest", "latest to write", "look up", "register", "guid"],
)
@pytest.mark.parametrize("status", [408, 425, 429, 503, 522])
def test_the_driver_asks_again_after_a_transient_answer(
    server: SchemaRegistryServer, ask: Callable[[str], object], status: int
) -> None:
    server.fail(status)
    ask(server.address)
    assert len(server.requests) > 1


@pytest.mark.parametrize("status", TRANSIENT)
def test_a_registry_that_stays_transient_ends_at_the_retry_timeout(server: SchemaRegistryServer, status: int) -> None:
    server.respond("*", status)
    registry = {"address": server.address, "subject": "orders", "retry.timeout": "200ms"}
    with pytest.raises(ConnectorError, match=rf"SCHEMA_REGISTRY_UNAVAILABLE.*HTTP {status}") as caught:
        decode_call(None, None, schema_registry=registry)
    assert caught.value.transient


@pytest.mark.parametrize("status", [400, 405, 406, 410, 418, 501, 505])
def test_other_answers_are_not_asked_for_again(server: SchemaRegistryServer, status: int) -> None:
    server.respond("*", status)
    with pytest.raises(ConnectorError, match=rf"SCHEMA_UNUSABLE.*HTTP {status}"):
        decode_call(None, None, "orders", server.address)
    assert len(server.requests) == 1


# -- what is soft-deleted ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, 1], ids=["subject", "version"])
def test_avro_is_read_by_references_that_are_soft_deleted(server: SchemaRegistryServer, version: int | None) -> None:
    enum = json.dumps({"type": "enum", "name": "Kind", "symbols": ["A"]})
    server.register("deep", text=enum, schema_type="AVRO")
    row = json.dumps({"type": "record", "name": "Row", "fields": [{"name": "kind", "type": "Kind"}]})
    server.register("row", text=row, schema_type="AVRO", references=(("Kind", "deep", 1),))
    rows = json.dumps({"type": "array", "items": "Row"})
    number = server.register("rows", text=rows, schema_type="AVRO", references=(("Row", "row", 1),))
    call, _ = decode_call(None, {"mode": "FAILFAST"}, "rows", server.address)
    for subject in ("deep", "row", "rows"):
        server.delete(subject, version)
    assert call(pa.array([b"\0" + number.to_bytes(4, "big") + b"\2\0\0"])).to_pylist() == [[{"kind": "A"}]]


def test_json_and_protobuf_are_read_by_references_that_are_soft_deleted(server: SchemaRegistryServer) -> None:
    server.register("kind", text='{"type": "integer"}', schema_type="JSON")
    order = json.dumps({"type": "object", "properties": {"kind": {"$ref": "kind.json"}}})
    by_json = server.register("order", text=order, schema_type="JSON", references=(("kind.json", "kind", 1),))
    other = 'syntax = "proto3"; package acme; message Kind { int64 id = 1; }'
    main = 'syntax = "proto3"; package shop; import "other.proto"; message Order { acme.Kind kind = 1; }'
    files = compiled(main, other=other)
    server.register("other", files, "other.proto")
    by_protobuf = server.register("main", files, "main.proto", references=(("other.proto", "other", 1),))
    for subject in ("kind", "other"):
        server.delete(subject)
    options = parse_registry_options({"address": server.address, "retry.timeout": "0"})
    json_registry, registry = json_registry_of(options), protobuf_registry(options)
    assert json_registry.by_ids([by_json], 1)[by_json].documents  # type: ignore[union-attr]
    assert b"acme" in schema_by_id(registry, by_protobuf).files
    assert json_registry.latest("order").schema_id == by_json
    assert b"acme" in registry.latest("main").files


def test_a_subject_that_is_soft_deleted_is_named_so(server: SchemaRegistryServer) -> None:
    server.delete("orders")
    calls: list[Callable[[], object]] = [
        lambda: decode_call(None, None, "orders", server.address),
        lambda: encode_call("", None, "orders", server.address),
    ]
    for call in calls:
        with pytest.raises(SourceGoneError, match=r"SCHEMA_NOT_FOUND.*orders.*soft-deleted"):
            call()
    assert read(server, "FAILFAST") == [5]  # its ids are still served


def test_the_latest_version_is_the_last_one_that_is_not_soft_deleted(server: SchemaRegistryServer) -> None:
    server.register("orders", text='"int"', schema_type="AVRO")
    server.delete("orders", 2)
    assert decode_call(None, None, "orders", server.address)[0].schema == '"long"'


# -- what is not there ------------------------------------------------------------------------------------------


def test_what_to_do_fits_what_was_asked_for(server: SchemaRegistryServer) -> None:
    with pytest.raises(SourceGoneError, match=r"no subject nothing.*Check the subject"):
        decode_call(None, None, "nothing", server.address)
    server.register("lost", text='"Kind"', schema_type="AVRO", references=(("Kind", "gone", 7),))
    with pytest.raises(SourceGoneError, match=r"reference 'Kind'.*deleted permanently") as caught:
        decode_call(None, None, "lost", server.address)
    assert "address" not in caught.value.action
    registry = protobuf_registry(parse_registry_options({"address": server.address, "retry.timeout": "0"}))
    for schema in (77, "00" * 16):
        with pytest.raises(SourceGoneError, match="address and context"):
            schema_by_id(registry, schema)
