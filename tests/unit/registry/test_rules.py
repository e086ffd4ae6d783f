"""Rules of registered schemas: what needs one is refused by its name, in all formats; a server on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.functions import decode_call, encode_call
from connectors.core.errors import ConnectorError
from connectors.json import from_json_registry, to_json_registry
from connectors.json.registry import registry_of as json_registry_of
from connectors.json.schema.columns import JsonColumn
from connectors.json.worker import PREFIX_BYTES, FrameCall
from connectors.protobuf import from_protobuf, to_protobuf
from connectors.protobuf.functions import _locate
from connectors.protobuf.options import parse_protobuf_options
from connectors.protobuf.worker import DecodeCall, Engine
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.protobuf_rig import compiled

PROTO = 'syntax = "proto3"; package shop; message Basic { int64 id = 1; }'
SUBJECTS = {"avro": '"long"', "json": '{"type": "integer"}', "protobuf": PROTO}
FORMATS = list(SUBJECTS)
MESSAGES = {"avro": b"\x0a", "json": b"7", "protobuf": b"\0\x08\x05"}
IGNORING: dict[str, Any] = {"ignore.read.rules": "true"}
REFUSED = r"SCHEMA_RULE_UNSUPPORTED.*'pii'.*'ENCRYPT'"


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


def rule(mode: object = "WRITEREAD", **more: Any) -> dict[str, Any]:
    return {"name": "pii", "kind": "TRANSFORM", "mode": mode, "type": "ENCRYPT", "tags": ["PII"], **more}


def domain(*rules: Any) -> dict[str, Any]:
    return {"domainRules": list(rules)}


def register(server: SchemaRegistryServer, name: str, rule_set: Any = None, subject: str = "") -> int:
    files = compiled(PROTO) if name == "protobuf" else b""
    return server.register(
        subject or name, files, "main.proto", text=SUBJECTS[name], schema_type=name.upper(), rule_set=rule_set
    )


def options(server: SchemaRegistryServer, subject: str, **more: str) -> dict[str, str]:
    return {"address": server.address, "subject": subject, "retry.timeout": "0", **more}


def write(server: SchemaRegistryServer, name: str, subject: str = "", **more: str) -> object:
    registry = options(server, subject or name, **more)
    calls: dict[str, Callable[[], object]] = {
        "avro": lambda: encode_call("", None, schema_registry=registry),
        "json": lambda: to_json_registry("order", schemaRegistry=registry),
        "protobuf": lambda: to_protobuf("order", schemaRegistry=registry),
    }
    return calls[name]()


def plan(server: SchemaRegistryServer, name: str, **more: str) -> object:
    """Read by the latest version, on the driver."""
    registry = options(server, name, **more)
    calls: dict[str, Callable[[], object]] = {
        "avro": lambda: decode_call(None, None, schema_registry=registry),
        "json": lambda: from_json_registry("value", schemaRegistry=registry),
        "protobuf": lambda: from_protobuf("value", schemaRegistry=registry),
    }
    return calls[name]()


def read(
    server: SchemaRegistryServer, name: str, frame: bytes, *, latest: str = "", permissive: bool = True, **more: Any
) -> Any:
    """Read one message on a worker: by a schema that is given, or by the latest one of a subject."""
    parsed = {"mode": "PERMISSIVE", "on.error": "column"} if permissive else {"mode": "FAILFAST"}
    subject = {"subject": latest} if latest else {}
    given = {"address": server.address, "retry.timeout": "0", **subject, **more}
    registry, message = parse_registry_options(given), frame + MESSAGES[name]
    call: Any
    if name == "avro":
        call, _ = decode_call(None if latest else '"long"', parsed, schema_registry=given)
    elif name == "json":
        message = message[:PREFIX_BYTES]
        reader = json_registry_of(registry).latest(latest).migrations if latest else None
        call = FrameCall(JsonColumn("bigint"), registry, permissive=permissive, error_column=permissive, reader=reader)
    else:
        files = None if latest else compiled(PROTO)
        descriptors, full_name, registered = _locate(registry, "Basic", None, files, None)
        spark = parse_protobuf_options({**parsed, "wire.format": "confluent"}, "from_protobuf")
        version = registered.migrations if registered else None
        call = DecodeCall(descriptors, full_name, spark, None, Engine.PYTHON, registry, reader=version)
    return call(pa.array([message], pa.binary())).to_pylist()[0]


def framed(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def reason(row: Any) -> str:
    assert row["value"] is None
    return str(row["error"])


@pytest.mark.parametrize("phase", ["domainRules", "encodingRules"])
@pytest.mark.parametrize("mode", ["WRITE", "WRITEREAD", None])
@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_written_by_a_schema_with_a_rule_for_writing(
    server: SchemaRegistryServer, name: str, mode: str | None, phase: str
) -> None:
    register(server, name, {phase: [rule(mode)]})
    for more in ({}, IGNORING):
        with pytest.raises(ConnectorError, match=REFUSED) as caught:
            write(server, name, **more)
        assert name in str(caught.value)
        assert not caught.value.transient


@pytest.mark.parametrize("phase", ["domainRules", "encodingRules"])
@pytest.mark.parametrize("mode", ["READ", "WRITEREAD", None])
@pytest.mark.parametrize("name", FORMATS)
def test_messages_of_a_schema_with_a_rule_for_reading_are_bad_rows(
    server: SchemaRegistryServer, name: str, mode: str | None, phase: str
) -> None:
    bad, good = register(server, name, {phase: [rule(mode)]}), register(server, name, subject="other")
    for frame in (framed(bad), b"\1" + server.guid(bad)):
        assert "SCHEMA_RULE_UNSUPPORTED" in reason(read(server, name, frame))
        assert "'pii'" in reason(read(server, name, frame))
        with pytest.raises(ConnectorError, match=REFUSED):
            read(server, name, frame, permissive=False)
        assert read(server, name, frame, **IGNORING)["error"] is None
    assert read(server, name, framed(good))["error"] is None


@pytest.mark.parametrize("name", FORMATS)
def test_the_columns_are_not_those_of_a_schema_with_a_rule_for_reading(server: SchemaRegistryServer, name: str) -> None:
    register(server, name, domain(rule("READ")))
    with pytest.raises(ConnectorError, match=REFUSED):
        plan(server, name)


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_read_as_stored_if_rules_for_reading_are_ignored(server: SchemaRegistryServer, name: str) -> None:
    number = register(server, name, domain(rule()))
    assert read(server, name, framed(number), latest=name, **IGNORING)["error"] is None


@pytest.mark.parametrize(
    ("rule_set", "writes", "reads"),
    [
        (domain(rule(disabled=True)), True, True),
        (domain(rule("WRITE")), False, True),
        (domain(rule("READ")), True, False),
        (domain(rule("READ", onFailure="NONE")), True, False),
        (domain(rule("WRITE", onFailure="NONE,NONE", kind="CONDITION")), False, True),
        ({"migrationRules": [rule("UPDOWN")]}, True, True),
        ({"domainRules": None, "migrationRules": [], "enableAt": "LOCAL"}, True, True),
        ({}, True, True),
    ],
)
@pytest.mark.parametrize("name", FORMATS)
def test_only_the_rules_that_are_active_for_a_direction_count(
    server: SchemaRegistryServer, name: str, rule_set: Any, writes: bool, reads: bool
) -> None:
    number = register(server, name, rule_set)
    assert (read(server, name, framed(number))["error"] is None) == reads
    if writes and name == "avro":  # the others need a session of Spark for the rest of the call
        assert write(server, name) is not None
    elif not writes:
        with pytest.raises(ConnectorError, match=REFUSED):
            write(server, name)


MALFORMED = [
    7,
    [],
    "text",
    {"domainRules": 7},
    {"domainRules": {"name": "pii"}},
    {"newRules": [rule()]},
    domain(None),
    domain("text"),
    domain(rule("SOMETIMES")),
    domain(rule("UPGRADE")),
    domain(rule(7)),
    domain(rule(["READ"])),
    domain(rule(kind="MAGIC")),
    domain(rule(kind=["TRANSFORM"])),
    domain(rule(type=None)),
    domain(rule(type=7)),
    domain(rule(name=None)),
    domain(rule(disabled="true")),
    {"migrationRules": [rule("READ")]},
    {"migrationRules": [rule(None)]},
    domain(rule(name="\ud800", mode="\ud800")),
]


@pytest.mark.parametrize("rule_set", MALFORMED, ids=range(len(MALFORMED)))
@pytest.mark.parametrize("name", FORMATS)
def test_a_rule_set_that_makes_no_sense_is_never_ignored(
    server: SchemaRegistryServer, name: str, rule_set: Any
) -> None:
    number = register(server, name, rule_set)
    for more in ({}, IGNORING):
        error = reason(read(server, name, framed(number), **more))
        assert "SCHEMA_UNUSABLE" in error
        assert "rule" in error
        with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*rule") as caught:
            write(server, name, **more)
        str(caught.value).encode()


@pytest.mark.parametrize("registers_id_only", [True, False])
@pytest.mark.parametrize("given", [{}, {"auto.register.schemas": "true"}])
def test_a_schema_that_is_looked_up_or_registered_has_rules_too(
    server: SchemaRegistryServer, given: dict[str, str], registers_id_only: bool
) -> None:
    server.registers_id_only = registers_id_only
    server.register("orders", text='"long"', schema_type="AVRO", rule_set=domain(rule("WRITE")))
    with pytest.raises(ConnectorError, match=REFUSED):
        encode_call('"long"', given, "orders", server.address)
    if given:  # the new version has the rules of the one before it
        for _ in range(2):
            with pytest.raises(ConnectorError, match=REFUSED):
                encode_call('"int"', given, "orders", server.address)


@pytest.mark.parametrize("mode", ["UPGRADE", "DOWNGRADE", "UPDOWN"])
@pytest.mark.parametrize("context", ["", ":.staging:"])
@pytest.mark.parametrize("name", FORMATS)
def test_another_version_that_only_a_migration_leads_to_is_refused(
    server: SchemaRegistryServer, name: str, mode: str, context: str
) -> None:
    rules = {"migrationRules": [rule(mode)]}
    first, second = context + name, register(server, name, None, context + name)
    latest = register(server, name, rules, first)
    own = read(server, name, framed(latest), latest=first)
    older = read(server, name, framed(second), latest=first)
    assert own["error"] is None
    assert (older["error"] is None) == (mode == "DOWNGRADE")
    assert read(server, name, framed(second), latest=first, **IGNORING)["error"] is None
    if mode != "DOWNGRADE":
        assert "SCHEMA_RULE_UNSUPPORTED" in older["error"]
        with pytest.raises(ConnectorError, match=REFUSED):
            read(server, name, framed(second), latest=first, permissive=False)


def test_a_later_version_that_only_a_migration_leads_from_is_refused(server: SchemaRegistryServer) -> None:
    for mode, refused in (("DOWNGRADE", True), ("UPDOWN", True), ("UPGRADE", False)):
        subject = f":.staging:{mode}"
        server.register(subject, text='"long"', schema_type="AVRO")
        call, _ = decode_call(None, {"mode": "PERMISSIVE"}, subject, server.address)
        later = server.register(subject, text='"long"', schema_type="AVRO", rule_set={"migrationRules": [rule(mode)]})
        assert call(pa.array([framed(later) + b"\x0a"])).to_pylist() == ([None] if refused else [5])


def test_rules_of_schemas_that_are_referred_to_do_not_count_as_in_confluents_clients(
    server: SchemaRegistryServer,
) -> None:
    inner = {"type": "enum", "name": "Kind", "symbols": ["A"]}
    server.register("kind", text=json.dumps(inner), schema_type="AVRO", rule_set=domain(rule()))
    outer = json.dumps({"type": "array", "items": "Kind"})
    number = server.register("kinds", text=outer, schema_type="AVRO", references=(("Kind", "kind", 1),))
    call, _ = decode_call(None, {"mode": "PERMISSIVE"}, "kinds", server.address)
    assert call(pa.array([framed(number) + b"\2\0\0"])).to_pylist() == [["A"]]
    assert encode_call("", None, "kinds", server.address) is not None


def test_tags_without_rules_are_only_metadata(server: SchemaRegistryServer) -> None:
    tagged = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long", "confluent:tags": ["PII"]}]}
    number = server.register("tagged", text=json.dumps(tagged), schema_type="AVRO")
    call, _ = decode_call(None, {"mode": "PERMISSIVE"}, "tagged", server.address)
    assert call(pa.array([framed(number) + b"\x0a"])).to_pylist() == [{"a": 5}]


def test_many_rules_are_named_within_bounds(server: SchemaRegistryServer) -> None:
    rules = [rule(name=f"{'n' * 5000}{number}", type="t" * 5000) for number in range(100)]
    register(server, "avro", domain(*rules))
    with pytest.raises(ConnectorError, match="and 95 more") as caught:
        write(server, "avro")
    assert len(str(caught.value)) < 3000
