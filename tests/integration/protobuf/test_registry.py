"""Confluent frames with a schema registry: a real server on loopback."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    OptionError,
    ServiceUnavailableError,
    SourceGoneError,
)
from connectors.protobuf.confluent.frames import indexes_of, message_at
from connectors.protobuf.confluent.registry import ProtobufRegistry, protobuf_registry
from connectors.protobuf.options import WireFormat, parse_protobuf_options
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine
from connectors.registry.frames import PrefixFrame
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.protobuf_rig import Rig, compiled, frame_prefix, schema_by_id
from tools.protos import compile_set

ADDRESS = 'syntax = "proto3"; package common; message Address { string city = 1; }'
ORDER = """syntax = "proto3"; package shop; import "common/address.proto"; import "google/protobuf/timestamp.proto";
message Other { int32 x = 1; }
message Order { int64 id = 1; common.Address address = 2; google.protobuf.Timestamp placed = 3; Kind kind = 4;
  enum Kind { NEW = 0; PAID = 1; } message Line { string sku = 1; } }"""


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


def registry(server: SchemaRegistryServer, **options: str) -> ProtobufRegistry:
    return protobuf_registry(parse_registry_options({"address": server.address, "retry.timeout": "2s", **options}))


def one(text: str) -> bytes:
    return compiled(text)


def call_of(server: SchemaRegistryServer, rig: Rig, message: str, **options: str) -> DecodeCall:
    parsed = dataclasses.replace(parse_protobuf_options(options, "from_protobuf"), wire_format=WireFormat.CONFLUENT)
    found = parse_registry_options({"address": server.address, "retry.timeout": "60s"})
    return DecodeCall(rig.data, rig.schema.find(message).full_name, parsed, None, Engine.AUTO, found)


BASIC = 'syntax = "proto3"; package shop; message Basic { int64 id = 1; string name = 2; }'


def framed(schema: int, message: Any, indexes: tuple[int, ...] = (0,)) -> bytes:
    return frame_prefix(schema, indexes) + message.SerializeToString()


def test_a_schema_is_fetched_once_by_its_id_and_messages_are_decoded(server: SchemaRegistryServer) -> None:
    rig = Rig(Engine.AUTO, one(BASIC))
    schema = server.register("basic-value", rig.data, "main.proto")
    call = call_of(server, rig, "Basic")
    frame = framed(schema, rig.type("Basic")(id=1, name="n"))
    for _ in range(3):
        assert call(pa.array([frame, None, frame])).to_pylist() == [
            {"id": 1, "name": "n"},
            None,
            {"id": 1, "name": "n"},
        ]
    assert server.requests == [f"/schemas/ids/{schema}?format=serialized"]


def test_references_and_what_comes_with_protobuf_are_resolved(server: SchemaRegistryServer) -> None:
    with_imports = compile_pair()
    server.register("address", with_imports, "common/address.proto")
    schema = server.register("order", with_imports, "main.proto", references=(("common/address.proto", "address", 1),))
    found = registry(server).latest("order")
    assert found.schema_id == schema
    order = message_at(found, (1,))
    assert order.full_name == "shop.Order"
    assert message_at(found, (1, 0)).full_name == "shop.Order.Line"
    assert indexes_of(found, "shop.Order.Line") == (1, 0)
    rig = Rig(Engine.AUTO, found.files)
    assert rig.ddl("Order") == "struct<id:bigint,address:struct<city:string>,placed:timestamp,kind:string>"


def compile_pair() -> bytes:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "common").mkdir()
        (root / "common" / "address.proto").write_text(ADDRESS)
        (root / "main.proto").write_text(ORDER)
        compile_set(root / "main.proto", root / "set.desc", root)
        return (root / "set.desc").read_bytes()


def test_a_registry_that_knows_only_text_is_served_by_protoc(server: SchemaRegistryServer) -> None:
    server.register("address", text=ADDRESS)
    server.register("order", text=ORDER, references=(("common/address.proto", "address", 1),))
    found = registry(server).latest("order")
    assert Rig(Engine.AUTO, found.files).ddl("Order").startswith("struct<id:bigint,address:struct<city:string>,")
    server.register("bad", text="syntax = nonsense")
    with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*protoc"):
        registry(server).latest("bad")


def test_writers_with_several_schemas_are_read_by_field_number(server: SchemaRegistryServer) -> None:
    rig = Rig(Engine.AUTO, one(BASIC))
    old = Rig(Engine.AUTO, one('syntax = "proto3"; package shop; message Basic { int32 key = 1; }'))
    new = Rig(Engine.AUTO, one(BASIC.replace("}", "bool more = 3; }")))
    other = Rig(Engine.AUTO, one('syntax = "proto3"; package shop; message Basic { sint64 id = 1; }'))
    strange = Rig(Engine.AUTO, one('syntax = "proto3"; package shop; message Refund { int64 id = 1; }'))
    ids = [server.register("basic", each.data, "main.proto") for each in (old, new, other, strange)]
    frames = [
        framed(ids[0], old.type("Basic")(key=1)),
        framed(ids[1], new.type("Basic")(id=2, name="n", more=True)),
        framed(ids[2], other.type("Basic")(id=3)),
        framed(ids[3], strange.type("Refund")(id=4)),
        framed(999, rig.type("Basic")(id=5)),
        framed(ids[0], rig.type("Basic")(id=6), (4,)),
        b"no frame",
    ]
    call = call_of(server, rig, "Basic", **{"mode": "PERMISSIVE", "on.error": "column"})
    rows = call(pa.array(frames)).to_pylist()
    assert [row["value"] for row in rows] == [{"id": 1, "name": None}, {"id": 2, "name": "n"}, *[None] * 5]
    assert [row["error"] is None for row in rows] == [True, True, *[False] * 5]
    assert "shop.Basic.id and shop.Basic.id have the number 1 and other types" in rows[2]["error"]
    assert f"holds a shop.Refund (schema {ids[3]}), not a shop.Basic" in rows[3]["error"]
    assert "has no schema id 999" in rows[4]["error"]
    assert "message indexes [4]" in rows[5]["error"]
    assert "is not a Confluent frame" in rows[6]["error"]
    failing = call_of(server, rig, "Basic")
    with pytest.raises(ConnectorError, match=r"MALFORMED_PROTOBUF_MESSAGE.*schema id 999"):
        failing(pa.array(frames[4:5]))


@pytest.mark.parametrize("by", ["id", "guid"])
@pytest.mark.parametrize("as_map", [False, True], ids=["kafka", "map"])
def test_key_and_value_are_read_each_by_its_own_header(server: SchemaRegistryServer, by: str, as_map: bool) -> None:
    rig = Rig(Engine.AUTO, one('syntax = "proto3"; package shop; message Basic { int64 qty = 5; }'))
    keys = Rig(Engine.AUTO, one('syntax = "proto3"; package shop; message Basic { sint64 qty = 5; }'))
    value_id = server.register("orders-value", rig.data, "main.proto")
    key_id = server.register("orders-key", keys.data, "main.proto")
    pairs = [
        (name, b"\x01" + server.guid(schema) if by == "guid" else b"\0" + schema.to_bytes(4, "big"))
        for name, schema in (("__key_schema_id", key_id), ("__value_schema_id", value_id))
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": name, "value": value} for name, value in pairs]], kind)
    if as_map:
        headers = pa.array([pairs], pa.map_(pa.string(), pa.binary()))
    key, value = (pa.array([each.type("Basic")(qty=5).SerializeToString()]) for each in (keys, rig))
    options = {"mode": "PERMISSIVE", "on.error": "column"}
    values, same_keys = call_of(server, rig, "Basic", **options), call_of(server, keys, "Basic", **options)
    assert values(value, headers).to_pylist() == [{"value": {"qty": 5}, "error": None}]
    same_keys = dataclasses.replace(same_keys, is_key=True)
    assert same_keys(key, headers).to_pylist() == [{"value": {"qty": 5}, "error": None}]
    [row] = dataclasses.replace(values, is_key=True)(key, headers).to_pylist()
    assert row["value"] is None
    assert (
        f"have the number 5 and other types (schema {key_id if by == 'id' else server.guid(key_id).hex()})"
        in row["error"]
    )


def test_guids_in_frames_and_ids_in_headers(server: SchemaRegistryServer) -> None:
    rig = Rig(Engine.AUTO, one(BASIC))
    schema = server.register("basic", rig.data, "main.proto")
    payload = rig.type("Basic")(id=1).SerializeToString()
    call = call_of(server, rig, "Basic")
    assert call(pa.array([b"\x01" + server.guid(schema) + b"\x00" + payload])).to_pylist()[0]["id"] == 1
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    header = {"key": "__value_schema_id", "value": b"\x01" + server.guid(schema) + b"\x00"}
    headers = pa.array([[{"key": "trace", "value": b"x"}, header], None], kind)
    rows = call(pa.array([payload, framed(schema, rig.type("Basic")(id=2))]), headers).to_pylist()
    assert [row["id"] for row in rows] == [1, 2]


def test_a_registry_in_trouble_is_asked_again_and_is_no_fault_of_a_row(server: SchemaRegistryServer) -> None:
    rig = Rig(Engine.AUTO, one(BASIC))
    schema = server.register("basic", rig.data, "main.proto")
    frame = pa.array([framed(schema, rig.type("Basic")(id=1))])
    server.fail(503, 429, 0, 500)
    assert call_of(server, rig, "Basic")(frame).to_pylist()[0]["id"] == 1
    assert len(server.requests) == 5
    server.fail(*[503] * 1000)
    call = dataclasses.replace(
        call_of(server, rig, "Basic", mode="PERMISSIVE"),
        registry=parse_registry_options({"address": server.address, "retry.timeout": "100ms"}),
    )
    with pytest.raises(ServiceUnavailableError, match=r"SCHEMA_REGISTRY_UNAVAILABLE.*schema id 1: HTTP 503"):
        call(frame)


def test_an_id_that_the_registry_cannot_answer_for_is_null_under_permissive_and_ends_a_failfast_query(
    server: SchemaRegistryServer,
) -> None:
    rig = Rig(Engine.AUTO, one(BASIC))
    schema = server.register("basic", rig.data, "main.proto")
    server.respond("/schemas/ids/77", 500)
    frames = pa.array([framed(each, rig.type("Basic")(id=1, name="n")) for each in (77, schema)])
    asked = parse_registry_options({"address": server.address, "retry.timeout": "0"})
    permissive = dataclasses.replace(call_of(server, rig, "Basic", mode="PERMISSIVE"), registry=asked)
    assert permissive(frames).to_pylist() == [None, {"id": 1, "name": "n"}]
    with pytest.raises(ServiceUnavailableError, match="schema id 77: HTTP 500"):
        dataclasses.replace(call_of(server, rig, "Basic"), registry=asked)(frames)


def test_a_login_is_sent_and_a_refusal_is_named_without_the_password(server: SchemaRegistryServer) -> None:
    server.register("basic", one(BASIC), "main.proto")
    server.credentials = "Basic " + base64.b64encode(b"me:canary-7").decode()
    assert registry(server, **{"basic.auth.user.info": "me:canary-7"}).latest("basic").schema_id == 1
    with pytest.raises(AccessDeniedError, match="SCHEMA_REGISTRY_ACCESS_DENIED") as caught:
        registry(server, **{"confluent.schema.registry.basic.auth.user.info": "me:canary-8"}).latest("basic")
    assert "canary" not in str(caught.value)
    server.credentials = "Bearer canary-9"
    found = parse_registry_options({"address": server.address, "bearer.auth.token": "canary-9"})
    assert protobuf_registry(found).latest("basic").schema_id == 1
    assert "canary" not in repr(found)


def test_what_the_registry_has_not_and_what_is_no_protobuf(server: SchemaRegistryServer) -> None:
    server.register("avro", text="{}", schema_type="AVRO")
    with pytest.raises(SourceGoneError, match=r"SCHEMA_NOT_FOUND.*subject none"):
        registry(server).latest("none")
    with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*type 'AVRO'"):
        schema_by_id(registry(server), 1)


def test_options_of_the_registry_are_checked() -> None:
    with pytest.raises(OptionError, match="OPTION_MISSING"):
        parse_registry_options({"subject": "s"})
    with pytest.raises(OptionError, match="not an http or https URL"):
        parse_registry_options({"address": "registry:8081"})
    with pytest.raises(OptionError) as caught:
        parse_registry_options({"address": "http://me:canary@registry:8081"})
    assert "canary" not in str(caught.value)
    with pytest.raises(OptionError, match=r"ssl.ca.location"):
        parse_registry_options({"address": "http://r", "confluent.schema.registry.ssl.truststore.location": "x"})


def test_frames_are_written_with_the_id_of_the_subject(server: SchemaRegistryServer) -> None:
    rig = Rig(Engine.AUTO, compile_pair())
    server.register("address", rig.data, "common/address.proto")
    schema = server.register("order", rig.data, "main.proto", references=(("common/address.proto", "address", 1),))
    found = registry(server).latest("order")
    options = parse_protobuf_options({}, "to_protobuf")
    frame = PrefixFrame(frame_prefix(int(found.schema_id), indexes_of(found, "shop.Order")))
    call = EncodeCall(found.files, "shop.Order", options, Engine.AUTO, frame)
    kind = pa.struct([("id", pa.int64())])
    encoded = call(pa.array([{"id": 5}, None], kind)).to_pylist()
    assert encoded == [frame_prefix(schema, (1,)) + b"\x08\x05", None]
    decode = call_of(server, rig, "Order")
    assert decode(pa.array(encoded)).to_pylist()[0]["id"] == 5


def test_wire_format_confluent_without_a_registry_believes_the_frames() -> None:
    rig = Rig(Engine.AUTO, one(BASIC))
    call = rig.call("Basic", {"wire.format": "confluent"})
    frame = framed(12345, rig.type("Basic")(id=1))
    assert call(pa.array([frame])).to_pylist()[0]["id"] == 1
