"""The Azure Schema Registry: frames, options, schemas by id and name, tokens of Entra ID, and what goes wrong.

The frames are those of Microsoft's serializers for Kafka; the server answers as the REST interface 2022-10 does.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from connectors.avro.functions import decode_call, encode_call
from connectors.avro.worker import DecodeCall
from connectors.core.errors import ConnectorError, OptionError
from connectors.protobuf.functions import from_protobuf
from connectors.registry.azure import find_azure_frames, parse_azure_options
from connectors.testing.azure_schema_registry import AzureSchemaRegistry
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.avro_cases import record
from tests.support.avro_rig import encode

ID = "0123456789abcdef0123456789ABCDEF"
V1 = record("Order", ("id", "int"), ("old", "string"))
V2 = record(
    "Order", ("id", "long"), ("note", ["null", "string"], {"default": None}), ("new", "string", {"aliases": ["old"]})
)
COLUMN = {"mode": "PERMISSIVE", "on.error": "column"}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KIND = pa.struct([("id", pa.int32()), ("old", pa.string())])
STRUCTS = pa.StructArray.from_arrays([pa.array([{"id": 1, "old": "a"}, None], KIND)], ["value"])
MESSAGE = b"\x02\x02a"
SECRET = "canary~secret.1"

asked: list[int] = []


def entra_token(life: str = "3600") -> dict[str, Any]:
    """A credential provider: the first token is one that the registry does not take."""
    asked.append(1)
    return {"token": f"canary-token-{len(asked)}", "expires_at": datetime.now(UTC) + timedelta(seconds=float(life))}


@pytest.fixture
def azure() -> AzureSchemaRegistry:
    return AzureSchemaRegistry("shop")


@pytest.fixture
def server(azure: AzureSchemaRegistry) -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer(interface=azure) as running:
        yield running


def registry(server: SchemaRegistryServer, **changes: str) -> dict[str, str]:
    given = {"type": "azure", "schema.registry.url": server.address, "schemaGroup": "shop", "retry.timeout": "300ms"}
    return given | changes


def decoding(server: SchemaRegistryServer, reader: Any = V2, **changes: str) -> DecodeCall:
    return decode_call(
        None if reader is None else json.dumps(reader), COLUMN, schema_registry=registry(server, **changes)
    )[0]


def content_type(schema_id: str) -> list[dict[str, Any]]:
    return [{"key": "content-type", "value": f"avro/binary+{schema_id}".encode()}]


def rows_of(call: DecodeCall, rows: list[bytes | None], headers: list[Any] | None = None) -> list[Any]:
    columns = [pa.array(rows, pa.binary()), *([] if headers is None else [pa.array(headers, HEADERS)])]
    result = call(*columns)
    result.validate(full=True)
    rows_read: list[Any] = result.to_pylist()
    return rows_read


def error_of(work: Callable[[], object]) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        work()
    assert "canary" not in f"{caught.value!r} {caught.value}"
    return caught.value


def test_the_three_frames_of_azures_serializers_are_found() -> None:
    rows = [
        b"\0\0\0\0" + ID.encode() + MESSAGE,
        bytes([44]) + b"avro/binary+" + ID.encode() + MESSAGE,
        MESSAGE,
        None,
        b"\0\0\0\0" + b"f" * 32,
    ]
    headers = pa.array([None, [], content_type(ID), content_type(ID), content_type(ID)], HEADERS)
    frames = find_azure_frames(pa.array(rows, pa.binary()), headers)
    assert (frames.schemas, frames.which.tolist(), frames.errors) == ([ID.lower()], [0, 0, 0, -1, 0], {})
    assert frames.messages(np.array([0, 1, 2, 4])).to_pylist() == [MESSAGE, MESSAGE, MESSAGE, rows[4]]
    sliced = find_azure_frames(pa.array([b"x", *rows], pa.binary())[1:3])
    assert (sliced.which.tolist(), sliced.messages(np.arange(2)).to_pylist()) == ([0, 0], [MESSAGE, MESSAGE])
    assert find_azure_frames(pa.array([], pa.binary())).schemas == []


@pytest.mark.parametrize(
    "row",
    [b"", b"\0\0\0\0\x07", b"\0\0\0\0" + b"g" * 32, b"\x2cavro/binary+" + b"0" * 31, b"\0\0\0\x01" + b"0" * 40],
)
@pytest.mark.parametrize(
    "header", [None, b"", b"application/json", b"avro/binary+" + b"0" * 33, b"avro/binary;" + b"0" * 32, b"\xff"]
)
def test_what_is_in_no_frame_is_a_bad_row_that_says_so(row: bytes, header: bytes | None) -> None:
    given = pa.array([[{"key": "content-type", "value": header}]], HEADERS)
    frames = find_azure_frames(pa.array([row], pa.binary()), given)
    assert (frames.schemas, frames.which.tolist()) == ([], [-1])
    assert "is not a frame of Azure" in frames.errors[0]


@pytest.mark.parametrize("repeat", [1, 100], ids=["rows", "columns"])
def test_each_writer_is_read_by_its_own_schema_which_is_fetched_once(
    server: SchemaRegistryServer, azure: AzureSchemaRegistry, repeat: int
) -> None:
    first, second = (azure.register("shop", "Order", json.dumps(schema)) for schema in (V1, V2))
    rows = [
        encode(V1, {"id": 1, "old": "a"}),
        b"\0\0\0\0" + second.encode() + encode(V2, {"id": 2**40, "note": "n", "new": "b"}),
        None,
        bytes([44]) + b"avro/binary+" + first.encode() + encode(V1, {"id": 3, "old": "c"}),
        b"no frame",
    ]
    headers = [content_type(first), None, None, [], []]
    for _ in range(2):
        found = rows_of(decoding(server), rows * repeat, headers * repeat)
        assert [row and row["value"] for row in found] == [
            {"id": 1, "note": None, "new": "a"},
            {"id": 2**40, "note": "n", "new": "b"},
            None,
            {"id": 3, "note": None, "new": "c"},
            {"id": None, "note": None, "new": None},
        ] * repeat
        assert [bool(row and row["error"]) for row in found] == [False, False, False, False, True] * repeat
    assert sorted(server.requests) == sorted(
        f"/$schemaGroups/$schemas/{number}?api-version=2022-10" for number in (first, second)
    )


def test_the_latest_version_on_any_page_gives_the_columns(
    server: SchemaRegistryServer, azure: AzureSchemaRegistry
) -> None:
    azure.page = 2
    for number in range(5):
        azure.register("shop", "a b/Order", json.dumps(record("Order", (f"v{number}", "int"))))
    assert json.loads(decoding(server, None, schemaName="a b/Order").schema)["fields"][0]["name"] == "v4"
    path = "/$schemaGroups/shop/schemas/a%20b%2FOrder/versions"
    assert [request.partition("?")[0] for request in server.requests] == [path] * 3 + [f"{path}/5"]
    assert all("api-version=2022-10" in request for request in server.requests)


def test_messages_are_written_with_the_content_type_in_a_header(
    server: SchemaRegistryServer, azure: AzureSchemaRegistry
) -> None:
    first = azure.register("shop", "Order", json.dumps(V1))
    for given in ({"schemaName": "Order"}, {}):
        text = "" if given else json.dumps(V1)  # without a name, that of the record
        call = encode_call(text, schema_registry=registry(server, **given))
        assert (call.header, call.frame) == (("content-type", f"avro/binary+{first}".encode()), None)
        assert call(STRUCTS).to_pylist() == [MESSAGE, None]
    assert server.requests[-1] == "POST /$schemaGroups/shop/schemas/Order:get-id?api-version=2022-10"


def test_the_frame_of_kafka_streams_can_be_chosen(server: SchemaRegistryServer, azure: AzureSchemaRegistry) -> None:
    first = azure.register("shop", "Order", json.dumps(V1))
    options = {"schema.id.serializer": "prefix", "use.latest.version": "true"}
    call = encode_call(json.dumps(V1), options, schema_registry=registry(server))
    assert call(STRUCTS).to_pylist() == [bytes([44]) + b"avro/binary+" + first.encode() + MESSAGE, None]


def test_a_schema_is_registered_where_that_is_asked_for_and_else_an_error(
    server: SchemaRegistryServer, azure: AzureSchemaRegistry
) -> None:
    def call(**options: str) -> Any:
        return encode_call(json.dumps(V1), options, schema_registry=registry(server, schemaName="new"))

    missing = error_of(call)
    assert (missing.code, "auto.register.schemas" in missing.action) == ("SCHEMA_NOT_FOUND", True)
    server.fail(400)
    assert error_of(lambda: call(**{"auto.register.schemas": "true"})).code == "SCHEMA_REFUSED"
    azure.incompatible.add(json.dumps(V1))
    refused = error_of(lambda: call(**{"auto.register.schemas": "true"}))
    assert (refused.code, "not compatible with version 1" in refused.what) == ("SCHEMA_REFUSED", True)
    azure.incompatible.clear()
    written = call(**{"auto.register.schemas": "true"})
    assert written.header == ("content-type", b"avro/binary+" + azure.register("shop", "new", json.dumps(V1)).encode())
    assert server.requests[-1] == "PUT /$schemaGroups/shop/schemas/new?api-version=2022-10"


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ((401,), "SCHEMA_REGISTRY_ACCESS_DENIED"),
        ((403,), "SCHEMA_REGISTRY_ACCESS_DENIED"),
        ((404,), "SCHEMA_NOT_FOUND"),
        ((429,) * 50, "SCHEMA_REGISTRY_UNAVAILABLE"),
        ((0,) * 50, "SCHEMA_REGISTRY_UNAVAILABLE"),
        ((400,), "SCHEMA_UNUSABLE"),
    ],
)
@pytest.mark.parametrize("way", ["latest", "get-id", "register"])
def test_what_the_service_refuses_has_a_code_of_its_own(
    server: SchemaRegistryServer, azure: AzureSchemaRegistry, statuses: tuple[int, ...], code: str, way: str
) -> None:
    azure.register("shop", "Order", json.dumps(V1))
    options = {"auto.register.schemas": "true"} if way == "register" else {}
    server.fail(*statuses)
    text = "" if way == "latest" else json.dumps(V1)
    expected = "SCHEMA_REFUSED" if (way, code) == ("register", "SCHEMA_UNUSABLE") else code
    call = error_of(lambda: encode_call(text, options, schema_registry=registry(server, schemaName="Order")))
    assert call.code == expected


def test_a_throttled_request_is_repeated(server: SchemaRegistryServer, azure: AzureSchemaRegistry) -> None:
    azure.register("shop", "Order", json.dumps(V1))
    server.fail(429, 503)
    assert decoding(server, None, schemaName="Order", **{"retry.timeout": "10s"}).schema == json.dumps(V1)


def test_a_message_whose_schema_is_gone_or_no_avro_is_a_bad_row(
    server: SchemaRegistryServer, azure: AzureSchemaRegistry
) -> None:
    order, click = (azure.register("shop", name, json.dumps(V1), kind) for name, kind in (("O", "Avro"), ("C", "Json")))
    text = azure.register("shop", "T", "any text", "Custom")
    headers = [content_type(number) for number in (order, click, text, uuid4().hex)]
    errors = [row["error"] for row in rows_of(decoding(server, V1), [MESSAGE] * 4, headers)]
    assert errors[0] is None
    assert ["the type 'json'" in errors[1], "the type 'custom'" in errors[2]] == [True, True]
    assert "from_json_registry" not in errors[1]
    assert "SCHEMA_NOT_FOUND" in errors[3]


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"Value": []}',
        b'{"Value": ["x"]}',
        b'{"Value": null}',
        b'{"Value": [1], "NextLink": 7}',
        b'{"Value": [1], "NextLink": "https://[/"}',
        b'{"Value": [1], "NextLink": "/$schemaGroups/shop/schemas/O/versions"}',
    ],
)
def test_versions_that_make_no_sense_are_one_error(server: SchemaRegistryServer, body: bytes) -> None:
    server.respond("/$schemaGroups/shop/schemas/O/versions", body=body)
    assert error_of(lambda: decoding(server, None, schemaName="O")).code == "SCHEMA_UNUSABLE"


@pytest.mark.parametrize("headers", [{}, {"Schema-Id": "7"}, {"Schema-Id": ""}])
def test_a_schema_without_an_id_is_one_error(server: SchemaRegistryServer, headers: Mapping[str, str]) -> None:
    server.respond("/$schemaGroups/shop/schemas/O:get-id", 204, headers=headers)
    assert error_of(lambda: encode_call(json.dumps(V1), schema_registry=registry(server, schemaName="O"))).code == (
        "SCHEMA_UNUSABLE"
    )


def test_a_client_of_entra_id_gets_a_token_for_event_hubs(
    server: SchemaRegistryServer, azure: AzureSchemaRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    azure.register("shop", "Order", json.dumps(V1))
    server.clients = {"application": SECRET}
    login = {
        "bearer.auth.client.id": "application",
        "bearer.auth.client.secret": SECRET,
        "bearer.auth.issuer.endpoint.url": f"{server.address}/tenant/oauth2/v2.0/token",
    }
    with caplog.at_level(logging.DEBUG):
        call = decoding(server, None, schemaName="Order", **login)
        server.tokens.clear()  # as if it had been revoked
        assert decoding(server, None, schemaName="Order", **login).schema == json.dumps(V1)
    assert (
        server.token_forms
        == [{"grant_type": "client_credentials", "scope": "https://eventhubs.azure.net/.default"}] * 2
    )
    server.clients = {"application": "another"}
    server.tokens.clear()
    refused = error_of(lambda: decoding(server, None, schemaName="Order", **login))
    assert refused.code == "SCHEMA_REGISTRY_CREDENTIALS"
    assert SECRET not in f"{call!r} {caplog.text} {refused}"
    assert pickle.loads(pickle.dumps(call)) == call


def test_a_tenant_stands_for_its_token_endpoint_and_a_namespace_for_its_address() -> None:
    options = parse_azure_options(
        {
            "Type": "Azure",
            "fullyqualifiednamespace": "mynamespace.servicebus.windows.net",
            "schemaGroup": "shop",
            "tenantId": "contoso",
            "bearer.auth.client.id": "application",
            "bearer.auth.client.secret": SECRET,
        }
    )
    at = options.connection
    assert at.address == "https://mynamespace.servicebus.windows.net"
    assert at.token_url == "https://login.microsoftonline.com/contoso/oauth2/v2.0/token"
    assert SECRET not in repr(options)


def test_a_provider_gives_tokens_and_another_one_for_a_refused_or_an_old_one(
    server: SchemaRegistryServer, azure: AzureSchemaRegistry
) -> None:
    azure.register("shop", "Order", json.dumps(V1))
    asked.clear()
    server.credentials = "Bearer canary-token-2"
    given = {"schemaName": "Order", "credentialProvider": f"{__name__}:entra_token"}
    for _ in range(2):
        decoding(server, None, **given)
    assert len(asked) == 2
    server.credentials = "Bearer nobody"
    assert error_of(lambda: decoding(server, None, **given)).code == "SCHEMA_REGISTRY_ACCESS_DENIED"
    server.credentials, before = None, len(asked)
    for _ in range(2):
        decoding(server, None, **{**given, "credentialProvider": f"{__name__}:entra_token?life=0"})
    assert len(asked) - before == 4  # of each request: a token without a life is never used again


def test_a_fixed_token_is_sent(server: SchemaRegistryServer, azure: AzureSchemaRegistry) -> None:
    azure.register("shop", "Order", json.dumps(V1))
    server.credentials = "Bearer canary-token"
    decoding(server, None, schemaName="Order", **{"bearer.auth.token": "canary-token"})
    assert error_of(lambda: decoding(server, None, schemaName="Order")).code == "SCHEMA_REGISTRY_ACCESS_DENIED"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"schemaGroup": ""}, "OPTION_ILLEGAL"),
        ({"schemaGrupp": "shop"}, "OPTION_UNKNOWN"),
        ({"bearer.auth.token": "canary a"}, "OPTION_ILLEGAL"),
        ({"bearer.auth.token": "canary", "credentialProvider": "shop:tokens"}, "OPTION_CONFLICT"),
        ({"tenantId": "contoso", "credentialProvider": "shop:tokens"}, "OPTION_CONFLICT"),
        ({"tenantId": "contoso"}, "OPTION_MISSING"),
        ({"credentialProvider": "shop:tokens", "schema.registry.url": "http://registry.example"}, "OPTION_CONFLICT"),
        ({"bearer.auth.token": "canary", "schema.registry.url": "http://registry.example"}, "OPTION_CONFLICT"),
        ({"fullyQualifiedNamespace": "shop.servicebus.windows.net"}, "OPTION_CONFLICT"),
        ({"credentialProvider": "no_such_module:tokens", "schemaName": "O"}, "CREDENTIAL_PROVIDER"),
    ],
)
def test_options_that_cannot_be_are_refused(server: SchemaRegistryServer, changes: dict[str, str], code: str) -> None:
    assert error_of(lambda: decoding(server, None, **changes)).code == code


def test_messages_of_glue_still_take_the_place_of_ids_that_they_have() -> None:
    options, glue = {"schema.id.serializer": "prefix"}, {"type": "glue", "region": "eu-west-1"}
    assert error_of(lambda: encode_call("", options, schema_registry=glue)).code == "OPTION_MISSING"
    options = {"schema.id.serializer": "header"}
    assert error_of(lambda: encode_call("", options, schema_registry=glue)).code == "OPTION_CONFLICT"


@pytest.mark.parametrize("name", ["topic", "subject.name.strategy"])
def test_options_of_confluents_serializers_are_refused(server: SchemaRegistryServer, name: str) -> None:
    options = {name: "RecordNameStrategy"}
    refused = error_of(lambda: encode_call(json.dumps(V1), options, schema_registry=registry(server)))
    assert (refused.code, "type=azure" in refused.what) == ("OPTION_CONFLICT", True)
    assert "Glue" not in str(refused)


def test_keys_and_other_formats_are_refused(server: SchemaRegistryServer) -> None:
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*isKey and type=azure"):
        decode_call(json.dumps(V1), None, schema_registry=registry(server), is_key=True)
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*isKey and type=azure"):
        encode_call(json.dumps(V1), schema_registry=registry(server), is_key=True)
    with pytest.raises(OptionError, match=r"OPTION_ILLEGAL.*Give confluent or glue"):
        from_protobuf("value", schemaRegistry=registry(server))
    with pytest.raises(OptionError, match=r"OPTION_MISSING.*schemaName"):
        encode_call("", schema_registry=registry(server))
