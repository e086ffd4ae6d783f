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
from connectors.registry.frames import confluent_frame
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
        (
            {"subject": "a", "schema_registry": {"address": "A", "subject": "b"}},
            OptionError,
            "two names for one option",
        ),
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
    frame = b"\0\0\0\0\2"
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
        ({"address": "A", "subject": "orders", "schema": '"bytes"'}, r"SCHEMA_NOT_FOUND.*auto\.register\.schemas"),
        ({"address": "A", "subject": "none", "schema": INT}, r"SCHEMA_NOT_FOUND.*auto\.register\.schemas"),
        (
            {"address": "A", "schema": INT, "options": {"subject.name.strategy": "RecordNameStrategy"}},
            "OPTION_MISSING.*name of a record",
        ),
        ({"is_key": True}, "OPTION_MISSING.*isKey"),
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


# -- to_avro with a schema and a registry ------------------------------------------------------------------------

ORDER = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "n", "type": "long"}]})
STRUCTS = pa.StructArray.from_arrays([pa.array([{"n": 1}, {"n": -1}])], ["value"])
REGISTER = {"auto.register.schemas": "true"}


def frames(number: int) -> list[bytes]:
    return [b"\0" + number.to_bytes(4, "big") + message for message in (b"\2", b"\1")]


def test_a_schema_that_its_subject_has_is_written_by_and_asked_for_once(server: SchemaRegistryServer) -> None:
    number = server.register("o", text=ORDER, schema_type="AVRO")
    server.register("o", text=INT, schema_type="AVRO")
    for _ in range(5):  # as in foreachBatch
        call = encode_call(ORDER, None, "o", server.address)
        for _ in range(3):
            assert call(STRUCTS).to_pylist() == frames(number)
    assert server.requests == ["POST /subjects/o"]


def test_a_schema_is_registered_only_if_asked_and_once(server: SchemaRegistryServer) -> None:
    with pytest.raises(SourceGoneError, match=r"SCHEMA_NOT_FOUND.*auto\.register\.schemas"):
        encode_call(ORDER, None, "orders", server.address)
    assert decode_call(None, None, "orders", server.address)[0].schema == LONG
    for _ in range(5):
        call = encode_call(ORDER, REGISTER, "orders", server.address)
        assert call(STRUCTS).to_pylist() == frames(3)
    assert [path for path in server.requests if "POST" in path][1:] == ["POST /subjects/orders/versions"]
    assert decode_call(None, None, "orders", server.address)[0].schema == ORDER
    again = encode_call(ORDER, REGISTER, "copy", server.address)
    assert again.frame == confluent_frame(3)  # as registries do: one id for one schema


def test_the_latest_version_is_written_by_where_a_schema_only_names_its_subject(server: SchemaRegistryServer) -> None:
    more = json.loads(ORDER) | {"fields": [{"name": "n", "type": "long"}, {"name": "m", "type": ["null", "int"]}]}
    number = server.register("shop.Order", text=json.dumps(more), schema_type="AVRO")
    options = {"use.latest.version": "true", "subject.name.strategy": "RecordNameStrategy"}
    call = encode_call(ORDER, options, None, server.address)
    assert (call.schema, call.frame) == (json.dumps(more), confluent_frame(number))
    assert server.requests == ["/subjects/shop.Order/versions/latest"]


@pytest.mark.parametrize(
    ("options", "is_key", "subject"),
    [
        ({"topic": "t"}, False, "t-value"),
        ({"topic": "t"}, True, "t-key"),
        ({"topic": "t", "subject.name.strategy": "TopicNameStrategy"}, False, "t-value"),
        ({"subject.name.strategy": "RecordNameStrategy"}, False, "shop.Order"),
        ({"topic": "t", "subject.name.strategy": "RecordNameStrategy"}, True, "shop.Order"),
        ({"topic": "t", "subject.name.strategy": "TopicRecordNameStrategy"}, True, "t-shop.Order"),
        (
            {"topic": "t", "subject.name.strategy": "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy"},
            False,
            "t-shop.Order",
        ),
    ],
)
def test_strategies_name_subjects_as_confluents_serializers_do(
    server: SchemaRegistryServer, options: dict[str, str], is_key: bool, subject: str
) -> None:
    number = server.register(subject, text=ORDER, schema_type="AVRO")
    for schema_registry in (None, {"address": server.address}):
        address = server.address if schema_registry is None else None
        call = encode_call(ORDER, options, None, address, schema_registry=schema_registry, is_key=is_key)
        assert call.frame == confluent_frame(number)
    assert server.requests == [f"POST /subjects/{subject}"]


def test_a_topic_names_the_subject_whose_latest_version_is_written_by(server: SchemaRegistryServer) -> None:
    number = server.register("t-value", text=ORDER, schema_type="AVRO")
    call = encode_call("", {"topic": "t"}, None, server.address)
    assert (call.schema, call.frame) == (ORDER, confluent_frame(number))


@pytest.mark.parametrize("status", [409, 422])
def test_a_schema_that_the_registry_refuses_is_named_with_its_reason(server: SchemaRegistryServer, status: int) -> None:
    body = json.dumps({"error_code": status, "message": "READER_FIELD_MISSING_DEFAULT_VALUE"}).encode()
    server.respond("/subjects/orders/versions", status, body)
    with pytest.raises(ConnectorError, match=r"SCHEMA_REFUSED.*schema of orders.*READER_FIELD_MISSING_DEFAULT_VALUE"):
        encode_call(ORDER, REGISTER, "orders", server.address)
    for odd in (b"\xff", b"[]", b"{}", b'"x"', b"[" * 10_000, b"1" * 5000, b'{"message": "\\ud800\\n"}'):
        server.respond("/subjects/orders/versions", status, odd)
        with pytest.raises(ConnectorError, match="SCHEMA_REFUSED") as caught:
            encode_call(ORDER, REGISTER, "orders", server.address)
        assert str(caught.value).encode().decode().isprintable()


def test_registering_is_tried_again_while_the_registry_does_not_answer(server: SchemaRegistryServer) -> None:
    server.fail(503, 0, 500)
    call = encode_call(ORDER, REGISTER, "orders", server.address)
    assert call.frame == confluent_frame(3)
    assert server.requests == ["POST /subjects/orders/versions"] * 4


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"id": "1"}', b'{"id": -1}', b'{"id": true}', b'{"id": 4294967296}'])
def test_an_answer_without_an_id_is_named(server: SchemaRegistryServer, body: bytes) -> None:
    server.respond("/subjects/orders", 200, body)
    with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*no id"):
        encode_call(ORDER, None, "orders", server.address)


@pytest.mark.parametrize(("status", "followed"), [(301, False), (302, False), (303, False), (307, True), (308, True)])
def test_what_is_sent_follows_no_redirect_that_would_change_it(
    server: SchemaRegistryServer, status: int, followed: bool
) -> None:
    registry = {"address": server.address, "subject": "s", "basic.auth.user.info": "canary-user:canary-password"}
    with SchemaRegistryServer() as target:
        server.respond("/subjects/s", status, headers={"Location": f"{target.address}/subjects/orders"})
        with pytest.raises(ConnectorError) as caught:
            encode_call(INT, schema_registry=registry)
        assert caught.value.code == ("SCHEMA_REGISTRY_REDIRECT" if followed else "SCHEMA_UNUSABLE")
        assert "canary" not in str(caught.value)
        assert target.requests == []
    server.respond("/subjects/s", status, headers={"Location": "/subjects/orders"})
    if followed:
        assert encode_call(INT, schema_registry=registry).frame == confluent_frame(1)
    else:
        with pytest.raises(ConnectorError, match="SCHEMA_UNUSABLE"):
            encode_call(INT, schema_registry=registry)


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        (REGISTER | {"use.latest.version": "true"}, ORDER, r"OPTION_CONFLICT.*use\.latest\.version"),
        (REGISTER, "", r"OPTION_MISSING.*auto\.register\.schemas.*Give the schema"),
        ({"topic": "t"}, ORDER, "OPTION_CONFLICT.*topic"),
        ({"subject.name.strategy": "RecordNameStrategy"}, ORDER, r"OPTION_CONFLICT.*subject\.name\.strategy"),
        ({"subject.name.strategy": "recordname"}, ORDER, "OPTION_ILLEGAL.*TopicRecordNameStrategy"),
        ({"auto.register": "true"}, ORDER, r"OPTION_UNKNOWN.*auto\.register\.schemas"),
    ],
)
def test_options_for_writing_that_make_no_sense_are_refused(
    server: SchemaRegistryServer, options: dict[str, str], schema: str, text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        encode_call(schema, options, "orders", server.address)
    assert server.requests == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto.register.schemas", "true"),
        ("use.latest.version", "true"),
        ("topic", "t"),
        ("schema.id.serializer", "header"),
    ],
)
def test_options_of_a_registry_need_one(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"OPTION_MISSING.*{name}.*schemaRegistryAddress"):
        encode_call(ORDER, {name: value})


@pytest.mark.parametrize("schema", ["", LONG])
def test_the_guid_of_the_schema_goes_into_the_header_of_the_key_or_value(
    server: SchemaRegistryServer, schema: str
) -> None:
    options = {"schema.id.serializer": "header"}
    guid = b"\1" + server.guid(2)
    for is_key, name in ((False, "__value_schema_id"), (True, "__key_schema_id")):
        call = encode_call(schema, options, "orders", server.address, is_key=is_key)
        assert (call.frame, call.header) == (None, (name, guid))


@pytest.mark.parametrize("guid", [b"", b', "guid": "none"', b', "guid": 7'])
def test_a_registry_that_has_no_guid_of_a_schema_is_named(server: SchemaRegistryServer, guid: bytes) -> None:
    server.respond("/schemas/ids/2", 200, b'{"schema": "\\"long\\""%b}' % guid)
    with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*schema id 2.*no GUID"):
        encode_call("", {"schema.id.serializer": "header"}, "orders", server.address)
