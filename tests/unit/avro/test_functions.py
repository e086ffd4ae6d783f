"""What calls of `from_avro` and `to_avro` are refused for, and where schemas and registries come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.functions import decode_call, encode_call
from connectors.core.errors import ConnectorError, OptionError, SourceGoneError
from connectors.testing.schema_registry import SchemaRegistryServer

INT, LONG = '"int"', '"long"'


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        running.register("orders", text=INT, schema_type="AVRO")
        running.register("orders", text=LONG, schema_type="AVRO")
        yield running


def test_the_latest_version_of_the_subject_gives_the_columns_unless_a_schema_is_given(
    server: SchemaRegistryServer,
) -> None:
    registry = {"address": server.address, "subject": "orders"}
    call, kind = decode_call(None, None, schema_registry=registry)
    assert (call.schema, kind.simpleString()) == (LONG, "bigint")
    call, kind = decode_call(None, None, "orders", schema_registry={"address": server.address})
    assert (call.schema, kind.simpleString()) == (LONG, "bigint")
    asked = len(server.requests)
    assert decode_call(INT, None, schema_registry=registry)[0].schema == INT
    call, _ = decode_call(INT, {"avroSchema": '"float"'}, schema_registry=registry)
    assert call.schema == '"float"'
    assert call.registry is not None
    assert len(server.requests) == asked


def test_the_form_of_databricks_has_the_registry_among_the_options(server: SchemaRegistryServer) -> None:
    options = {
        "mode": "PERMISSIVE",
        "confluent.schema.registry.basic.auth.credentials.source": "USER_INFO",
        "Confluent.schema.registry.basic.auth.user.info": "canary-user:canary-password",
    }
    server.credentials = "Basic Y2FuYXJ5LXVzZXI6Y2FuYXJ5LXBhc3N3b3Jk"
    call, kind = decode_call(None, options, "orders", server.address)
    assert kind.simpleString() == "bigint"
    assert call.options.permissive
    assert call.registry is not None
    assert call.registry.address == server.address
    assert "canary" not in repr(call)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, AvroAnalysisError, "AVRO_SCHEMA_MISSING"),
        ({"subject": "orders"}, OptionError, "OPTION_MISSING.*schemaRegistry"),
        ({"jsonFormatSchema": INT, "is_key": True}, OptionError, "OPTION_MISSING.*schemaRegistry"),
        ({"jsonFormatSchema": INT, "headers": True}, OptionError, "OPTION_MISSING.*schemaRegistry"),
        ({"address": "A"}, OptionError, r"OPTION_MISSING.*schema\.registry\.subject"),
        ({"address": "A", "subject": "none"}, SourceGoneError, "SCHEMA_NOT_FOUND"),
        ({"address": "A", "subject": 5}, OptionError, "OPTION_ILLEGAL.*subject"),
        ({"address": "A", "subject": "a", "schema_registry": {"address": "A"}}, OptionError, "OPTION_CONFLICT"),
        ({"subject": "a", "schema_registry": {"address": "A", "subject": "b"}}, OptionError, "two names of one option"),
        ({"subject": "a", "schema_registry": {"address": "ftp://x"}}, OptionError, "OPTION_ILLEGAL"),
        ({"address": "A", "subject": "orders", "options": {"mod": "x"}}, OptionError, "OPTION_UNKNOWN"),
    ],
)
def test_calls_that_make_no_sense_are_refused(
    server: SchemaRegistryServer, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    given = json.loads(json.dumps(arguments).replace('"A"', json.dumps(server.address)))
    positional = [given.pop(name, None) for name in ("jsonFormatSchema", "options", "subject", "address")]
    with pytest.raises(error, match=text):
        decode_call(*positional, **given)


def test_a_subject_that_holds_no_avro_is_named(server: SchemaRegistryServer) -> None:
    server.register("other", text='syntax = "proto3";')
    with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*PROTOBUF"):
        decode_call(None, None, "other", server.address)


@pytest.mark.parametrize(("schema", "code"), [(None, "AVRO_SCHEMA_MISSING"), ("{", "CANNOT_PARSE_AVRO_SCHEMA")])
def test_a_schema_to_write_by_is_a_text_that_can_be_parsed(schema: Any, code: str) -> None:
    with pytest.raises(AvroAnalysisError, match=code):
        encode_call(schema)
    assert encode_call("").schema is None
    assert encode_call(INT).schema == INT


def test_a_subject_gives_the_schema_to_write_by_and_nothing_is_registered(server: SchemaRegistryServer) -> None:
    calls = [
        encode_call("", None, "orders", server.address),
        encode_call("", {"schema.registry.subject": "orders"}, None, server.address),
        encode_call("", schema_registry={"address": server.address, "subject": "orders"}),
    ]
    assert [call.schema for call in calls] == [LONG] * 3
    messages = calls[0](pa.StructArray.from_arrays([pa.array([1, None, -1])], ["value"]))
    frame = b"\0" + (calls[0].frame or 0).to_bytes(4, "big")
    assert messages.to_pylist() == [frame + b"\x02", None, frame + b"\x01"]
    decoding, _ = decode_call(None, None, "orders", server.address)
    assert decoding(messages).to_pylist() == [1, None, -1]
    server.register("orders", text=INT, schema_type="AVRO")
    again = encode_call("", None, "orders", server.address)
    assert (again.schema, again.frame == calls[0].frame) == (INT, False)


def test_what_is_written_by_a_subject_may_refer_to_others(server: SchemaRegistryServer) -> None:
    city = {"type": "record", "name": "City", "fields": [{"name": "n", "type": "long"}]}
    server.register("city", text=json.dumps(city), schema_type="AVRO")
    text = json.dumps({"type": "array", "items": "City"})
    number = server.register("cities", text=text, schema_type="AVRO", references=(("City", "city", 1),))
    cities = pa.StructArray.from_arrays([pa.array([[{"n": 1}], []])], ["value"])
    frame = b"\0" + number.to_bytes(4, "big")
    messages = encode_call("", None, "cities", server.address)(cities)
    assert messages.to_pylist() == [frame + b"\x02\x02\0", frame + b"\0"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"subject": "orders"}, "OPTION_MISSING.*to_avro"),
        ({"address": "A"}, r"OPTION_MISSING.*schema\.registry\.subject"),
        ({"address": "A", "subject": "none"}, "SCHEMA_NOT_FOUND"),
        ({"address": "A", "subject": "orders", "schema": INT}, "OPTION_CONFLICT.*nothing is registered.*to_avro"),
        ({"address": "A", "subject": "a", "schema_registry": {"address": "A"}}, "OPTION_CONFLICT.*to_avro"),
        ({"options": {"mode": "PERMISSIVE"}}, "OPTION_UNKNOWN.*mode"),
    ],
)
def test_calls_that_write_and_make_no_sense_are_refused(
    server: SchemaRegistryServer, arguments: dict[str, Any], text: str
) -> None:
    given = json.loads(json.dumps(arguments).replace('"A"', json.dumps(server.address)))
    with pytest.raises(ConnectorError, match=text):
        encode_call(given.pop("schema", ""), **given)
