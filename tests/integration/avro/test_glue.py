"""`from_avro` and `to_avro` with the AWS Glue Schema Registry, as moto serves it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
import pytest

from connectors.avro.functions import decode_call, encode_call
from connectors.avro.worker import DecodeCall
from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    OptionError,
    ServiceUnavailableError,
    SourceGoneError,
)
from connectors.registry.glue.frames import GlueFrame, find_glue_frames
from tests.support.avro_cases import record
from tests.support.avro_rig import encode
from tests.support.glue_rig import KEYS, GlueRig, header
from tests.support.providers import CANARY, calls

V1 = record("Order", ("id", "int"), ("old", "string"))
V2 = record(
    "Order", ("id", "long"), ("note", ["null", "string"], {"default": None}), ("new", "string", {"aliases": ["old"]})
)
NOTHING = {"id": None, "note": None, "new": None}
COLUMN = {"mode": "PERMISSIVE", "on.error": "column"}
KIND = pa.struct([("id", pa.int32()), ("old", pa.string())])
STRUCTS = pa.StructArray.from_arrays([pa.array([{"id": 1, "old": "a"}, {"id": -1, "old": ""}], KIND)], ["value"])
MESSAGES = [b"\x02\x02a", b"\x01\x00"]
LARGEST = 16 << 20


def decoding(glue: GlueRig, reader: Any = V2, options: Mapping[str, str] | None = None, **registry: str) -> DecodeCall:
    text = None if reader is None else json.dumps(reader)
    return decode_call(text, options or COLUMN, schema_registry={**glue.options, **registry})[0]


def values_of(call: DecodeCall, rows: list[bytes | None]) -> list[Any]:
    result = call(pa.array(rows, pa.binary()))
    result.validate(full=True)
    return [row and row.get("value", row) for row in result.to_pylist()]


def errors_of(call: DecodeCall, rows: list[bytes | None]) -> list[str | None]:
    return [row and row["error"] for row in call(pa.array(rows, pa.binary())).to_pylist()]


def test_frames_have_the_documented_layout() -> None:
    version = "01234567-89ab-cdef-0123-456789abcdef"
    plain = bytes.fromhex("0300 0123456789abcdef 0123456789abcdef 020261")
    packed = bytes.fromhex("0305 0123456789abcdef 0123456789abcdef 789c63624a0400006e0066")
    column = pa.array([b"\2\2a", None], pa.binary())
    assert GlueFrame(version).around(column).to_pylist() == [plain, None]
    found = find_glue_frames(pa.array([plain, packed, None], pa.binary()))
    assert (found.schemas, found.which.tolist(), found.errors) == ([version], [0, 0, -1], {})
    assert found.messages(np.arange(2)).to_pylist() == [b"\2\2a"] * 2


@pytest.mark.parametrize("repeat", [1, 100], ids=["rows", "columns"])
def test_each_writer_is_read_by_its_own_version_which_is_fetched_once(glue: GlueRig, repeat: int) -> None:
    first, second = glue.register("orders", json.dumps(V1)), glue.register("orders", json.dumps(V2))
    old = header(first) + encode(V1, {"id": 1, "old": "a"})
    new = header(second, 5) + zlib.compress(encode(V2, {"id": 2**40, "note": "n", "new": "b"}))
    small = header(first, 5) + zlib.compress(encode(V1, {"id": 3, "old": "c"}), 0)
    expected = [
        {"id": 1, "note": None, "new": "a"},
        {"id": 2**40, "note": "n", "new": "b"},
        None,
        {"id": 3, "note": None, "new": "c"},
    ]
    for _ in range(2):
        call = decoding(glue)
        rows = [old, new, None, small] * repeat
        assert values_of(call, rows) == expected * repeat
        assert values_of(call, [old] * repeat) == expected[:1] * repeat
        sliced = call(pa.array([b"x", *rows], pa.large_binary())[1:])
        assert [row and row["value"] for row in sliced.to_pylist()] == expected * repeat
    assert glue.calls == ["GetSchemaVersion"] * 2


def test_the_latest_version_gives_the_columns_unless_a_schema_is_given(glue: GlueRig) -> None:
    glue.register("orders", json.dumps(V1))
    glue.register("orders", json.dumps(V2))
    assert decoding(glue, None, schemaName="orders").schema == json.dumps(V2)
    call, kind = decode_call(None, None, "orders", schema_registry=glue.options)
    assert (call.schema, kind.simpleString()) == (json.dumps(V2), "struct<id:bigint,note:string,new:string>")
    assert decoding(glue, V1).schema == json.dumps(V1)
    assert glue.calls == ["GetSchemaVersion"] * 2


def test_empty_batches_and_empty_messages_are_read(glue: GlueRig) -> None:
    empty = record("E")
    version = glue.register("e", json.dumps(empty))
    call = decoding(glue, empty)
    assert values_of(call, []) == []
    assert values_of(call, [None, None]) == [None, None]
    assert values_of(call, [header(version), header(version, 5) + zlib.compress(b"")]) == [{}, {}]


def test_what_is_in_no_frame_or_does_not_fit_is_a_bad_row_and_changes_no_neighbour(glue: GlueRig) -> None:
    good, wrong = (
        glue.register("orders", json.dumps(V1)),
        glue.register("other", json.dumps(record("Order", ("id", "string")))),
    )
    protobuf = glue.register("proto", 'syntax = "proto3"; message A {}', "PROTOBUF")
    message = encode(V1, {"id": 1, "old": "a"})
    packed = zlib.compress(message)
    unknown = str(uuid4())
    bad = {
        b"": "is not a frame of Glue: it begins with no byte",
        b"\3": "is not a frame of Glue",
        header(good)[:-1]: "is not a frame of Glue",
        b"\0" + header(good)[1:] + message: "is not a frame of Glue",
        header(good, 1) + message: "is not a frame of Glue: it begins with 03 01",
        header(good, 5) + message: "cannot be decompressed",
        header(good, 5) + packed[:-1]: "cut off",
        header(good, 5): "cut off",
        header(good, 5) + packed + b"x": "1 bytes after what can be decompressed",
        header(good) + message[:-1]: "ends too early",
        header(good, 5) + zlib.compress(message[:-1]): "ends too early",
        header(wrong) + b"\2a": f"missing required field new (schema {wrong})",
        header(protobuf) + b"\0": "PROTOBUF",
        header(unknown) + message: f"SCHEMA_NOT_FOUND] The schema registry has no schema version {unknown}",
        header(str(UUID(int=0))) + message: "SCHEMA_NOT_FOUND",
    }
    neighbour = header(good) + message
    rows = [row for each in bad for row in (each, neighbour)]
    call = decoding(glue)
    result = call(pa.array(rows, pa.binary()))
    result.validate(full=True)
    for number, (row, reason) in enumerate(zip(result.to_pylist(), rows, strict=True)):
        expected = bad.get(reason)
        assert (row["error"] is None) == (expected is None), number
        assert expected is None or expected in row["error"]
        assert row["value"] == ({"id": 1, "note": None, "new": "a"} if expected is None else NOTHING)
    strict = decoding(glue, options={"mode": "FAILFAST"})
    for each in bad:
        with pytest.raises(ConnectorError, match=r"MALFORMED_AVRO_MESSAGE|SCHEMA_UNUSABLE"):
            strict(pa.array([neighbour, each], pa.binary()))
    assert values_of(strict, [neighbour]) == [{"id": 1, "note": None, "new": "a"}]


def test_garbage_at_every_byte_changes_no_neighbour(glue: GlueRig, seed: int) -> None:
    version, random = glue.register("orders", json.dumps(V1)), Random(seed)
    plain = header(version) + encode(V1, {"id": 1, "old": "a" * 9})
    packed = header(version, 5) + zlib.compress(plain[18:])
    expected = {"id": 1, "old": b"a" * 9}
    call = decoding(glue, record("Order", ("id", "int"), ("old", "bytes")))  # any byte may be in it
    for frame in (plain, packed):
        rows: list[bytes | None] = []
        for place in range(len(frame)):
            damaged = bytearray(frame)
            damaged[place] ^= random.randrange(1, 256)
            rows += [plain, bytes(damaged), packed, frame[:place]]
        result = call(pa.array(rows, pa.binary()))
        result.validate()
        values = [row["value"] for row in result.to_pylist()]
        assert values[::4] == values[2::4] == [expected] * len(frame)
        assert all(row["error"] for row in result.to_pylist()[3::4])  # what is cut off
        damaged_rows = result.to_pylist()[1::4]
        assert all(row["error"] for row in damaged_rows[: len(header(version))])
        if frame is packed:  # zlib has a checksum; bits of its header say how hard it has tried
            assert all(row["error"] or row["value"] == expected for row in damaged_rows)


def test_a_message_that_grows_without_bound_is_a_bad_row(glue: GlueRig) -> None:
    version = glue.register("b", '"bytes"')
    size = LARGEST - 4
    largest = b"\xf8\xff\xff\x0f" + bytes(size)  # 2 * size as a varint
    assert len(largest) == LARGEST
    rows = [header(version, 5) + zlib.compress(data) for data in (largest, largest + b"\0", b"\2a", bytes(64 << 20))]
    call = decoding(glue, "bytes")
    result = call(pa.array(rows, pa.binary())).to_pylist()
    assert [None if row["value"] is None else len(row["value"]) for row in result] == [size, None, 1, None]
    errors = [row["error"] for row in result]
    assert [error and "is larger than 16 MB when it is decompressed" in error for error in errors] == [
        None,
        True,
        None,
        True,
    ]


def test_of_messages_that_are_too_large_together_the_largest_are_bad_rows(glue: GlueRig) -> None:
    """Seventeen of 16 kB, which become 16 MB each, ended a query whatever its mode."""
    version = glue.register("b", '"bytes"')
    small = header(version) + b"\2a"
    bomb = header(version, 5) + zlib.compress(b"\xf8\xff\xff\x0f" + bytes(LARGEST - 4))
    packed = header(version, 5) + zlib.compress(b"\2b")
    rows = [each for _ in range(40) for each in (bomb, small, packed)]
    result = decoding(glue, "bytes")(pa.array(rows, pa.binary())).to_pylist()
    assert [row["value"] for row in result[1::3] + result[2::3]] == [b"a"] * 40 + [b"b"] * 40
    bad = [row["error"] for row in result[::3] if row["value"] is None]
    assert len(bad) == 25  # sixteen are not, less what the small ones take
    assert all("256 MB" in error and "maxRecordsPerBatch" in error for error in bad)
    with pytest.raises(ConnectorError, match=r"MALFORMED_AVRO_MESSAGE.*256 MB.*maxRecordsPerBatch"):
        decoding(glue, "bytes", {"mode": "FAILFAST"})(pa.array(rows, pa.binary()))


# -- writing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "ZLIB"])
def test_what_is_written_by_the_latest_version_has_its_id_and_is_read_again(glue: GlueRig, compression: str) -> None:
    glue.register("orders", json.dumps(record("Order", ("id", "int"))))
    version = glue.register("orders", json.dumps(V1))
    call = encode_call("", None, "orders", schema_registry={**glue.options, "compression": compression})
    written = call(STRUCTS).to_pylist()
    packed = compression == "ZLIB"
    expected = [header(version, 5 if packed else 0) + (zlib.compress(each) if packed else each) for each in MESSAGES]
    assert written == expected
    assert call(pa.StructArray.from_arrays([pa.array([None], KIND)], ["value"])).to_pylist() == [None]
    assert values_of(decoding(glue, V1), written) == STRUCTS.field(0).to_pylist()
    assert glue.versions("orders") == 2


def test_a_schema_that_is_there_is_written_by_and_asked_for_once(glue: GlueRig) -> None:
    version = glue.register("orders", json.dumps(V1))
    glue.register("orders", json.dumps(V2))
    for _ in range(5):  # as in foreachBatch
        call = encode_call(json.dumps(V1), None, "orders", schema_registry=glue.options)
        assert call(STRUCTS).to_pylist() == [header(version) + each for each in MESSAGES]
    assert glue.calls == ["GetSchemaByDefinition"]
    latest = encode_call(json.dumps(V1), {"use.latest.version": "true"}, "orders", schema_registry=glue.options)
    assert latest.schema == json.dumps(V2)


def test_a_schema_is_registered_only_if_asked_and_once(glue: GlueRig) -> None:
    for there in (False, True):  # neither the schema, nor a version of it
        if there:
            glue.register("orders", json.dumps(V2))
        with pytest.raises(SourceGoneError, match=r"SCHEMA_NOT_FOUND.*schemaAutoRegistrationEnabled"):
            encode_call(json.dumps(V1), None, "orders", schema_registry=glue.options)
    glue.calls.clear()
    registering = {**glue.options, "schemaAutoRegistrationEnabled": "true"}
    for _ in range(3):
        written = encode_call(json.dumps(V1), None, "orders", schema_registry=registering)(STRUCTS).to_pylist()
        assert values_of(decoding(glue, V1), written) == STRUCTS.field(0).to_pylist()
    assert [call for call in glue.calls if call != "GetSchemaVersion"] == [
        "GetSchemaByDefinition",
        "RegisterSchemaVersion",
    ]
    assert glue.versions("orders") == 2
    glue.calls.clear()
    encode_call(json.dumps(V1), None, "new", schema_registry=registering)
    assert glue.calls == ["GetSchemaByDefinition", "RegisterSchemaVersion", "CreateSchema"]
    assert glue.versions("new") == 1
    glue.faults += [(400, "EntityNotFoundException"), (400, "InvalidInputException")]
    with pytest.raises(ConnectorError, match=r"SCHEMA_REFUSED.*RegisterSchemaVersion"):
        encode_call(json.dumps(V2), None, "new", schema_registry=registering)


def test_a_schema_that_another_writer_creates_meanwhile_is_registered(glue: GlueRig) -> None:
    glue.register("orders", json.dumps(V2))
    glue.faults += [(400, "EntityNotFoundException"), (400, "EntityNotFoundException"), (400, "AlreadyExistsException")]
    registering = {**glue.options, "schemaAutoRegistrationEnabled": "true"}
    call = encode_call(json.dumps(V1), None, "orders", schema_registry=registering)
    assert values_of(decoding(glue, V1), call(STRUCTS).to_pylist()) == STRUCTS.field(0).to_pylist()


# -- options and errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"type": "other"}, "OPTION_ILLEGAL.*confluent or glue"),
        ({"address": "http://localhost"}, "OPTION_UNKNOWN.*address"),
        ({"awsSecretKey": None}, "OPTION_MISSING.*awsSecretKey"),
        ({"profile": "other"}, "OPTION_CONFLICT.*profile"),
        ({"compression": "gzip"}, "OPTION_ILLEGAL.*none or zlib"),
        ({"endpointUrl": "http://203.0.113.7"}, r"OPTION_CONFLICT.*203\.0\.113\.7.*allowInsecure"),
        ({"stsEndpoint": "http://203.0.113.7"}, r"OPTION_CONFLICT.*203\.0\.113\.7.*allowInsecure"),
        ({"schemaName": "a", "subject": "b"}, "two names for one option"),
    ],
)
def test_options_that_make_no_sense_are_refused(glue: GlueRig, given: dict[str, Any], code: str) -> None:
    options = {name: value for name, value in {**glue.options, **given}.items() if value is not None}
    with pytest.raises(OptionError, match=code) as caught:
        decode_call(json.dumps(V1), None, schema_registry=options)
    assert not any(secret in str(caught.value) for secret in KEYS.values())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "OPTION_MISSING.*schemaName"),
        ({"subject": "none"}, "SCHEMA_NOT_FOUND"),
        ({"subject": "a", "is_key": True}, "OPTION_CONFLICT.*isKey"),
        ({"subject": "a", "schema": '"int"', "options": {"auto.register.schemas": "true"}}, "schemaAutoRegistration"),
        ({"subject": "a", "options": {"topic": "a"}}, "OPTION_CONFLICT.*topic"),
        ({"subject": "a", "options": {"schema.id.serializer": "header"}}, r"OPTION_CONFLICT.*schema\.id\.serializer"),
        ({"subject": "no name for Glue!"}, "SCHEMA"),
    ],
)
def test_calls_that_write_and_make_no_sense_are_refused(glue: GlueRig, arguments: dict[str, Any], text: str) -> None:
    given = dict(arguments)
    with pytest.raises(ConnectorError, match=text):
        encode_call(given.pop("schema", ""), schema_registry=glue.options, **given)


def test_headers_and_keys_are_nothing_to_glue(glue: GlueRig) -> None:
    for arguments in ({"headers": True}, {"is_key": True}):
        with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*glue"):
            decode_call(json.dumps(V1), None, schema_registry=glue.options, **arguments)
    with pytest.raises(OptionError, match=r"OPTION_MISSING.*subject"):
        decode_call(None, None, schema_registry=glue.options)


@pytest.mark.parametrize(
    ("status", "name", "error", "code"),
    [
        (400, "AccessDeniedException", AccessDeniedError, "SCHEMA_REGISTRY_ACCESS_DENIED.*glue:GetSchemaVersion"),
        (400, "UnrecognizedClientException", CredentialsError, "SCHEMA_REGISTRY_CREDENTIALS"),
        (400, "ExpiredTokenException", CredentialsError, "SCHEMA_REGISTRY_CREDENTIALS"),
        (400, "EntityNotFoundException", SourceGoneError, "SCHEMA_NOT_FOUND"),
        (400, "InvalidInputException", ConnectorError, "SCHEMA_UNUSABLE.*InvalidInputException"),
        (400, "ThrottlingException", ServiceUnavailableError, "SCHEMA_REGISTRY_UNAVAILABLE.*ThrottlingException"),
        (500, "InternalServiceException", ServiceUnavailableError, "SCHEMA_REGISTRY_UNAVAILABLE"),
        (503, "Nonsense", ServiceUnavailableError, "SCHEMA_REGISTRY_UNAVAILABLE"),
        (408, "Nonsense", ServiceUnavailableError, "SCHEMA_REGISTRY_UNAVAILABLE"),
        (425, "Nonsense", ServiceUnavailableError, "SCHEMA_REGISTRY_UNAVAILABLE"),
        (429, "Nonsense", ServiceUnavailableError, "SCHEMA_REGISTRY_UNAVAILABLE"),
        (400, "LimitExceededException", ServiceUnavailableError, "SCHEMA_REGISTRY_UNAVAILABLE"),
        (400, "ProvisionedThroughputExceededException", ServiceUnavailableError, "SCHEMA_REGISTRY_UNAVAILABLE"),
        (400, "RequestTimeoutException", ServiceUnavailableError, "SCHEMA_REGISTRY_UNAVAILABLE"),
        (307, "Nonsense", ConnectorError, "SCHEMA_UNUSABLE.*Nonsense"),
    ],
)
def test_errors_of_the_service_have_names(
    glue: GlueRig, status: int, name: str, error: type[Exception], code: str
) -> None:
    glue.register("orders", json.dumps(V1))
    glue.faults += [(status, name)] * 50
    with pytest.raises(error, match=code) as caught:
        decoding(glue, None, schemaName="orders")
    assert not any(secret in str(caught.value) for secret in KEYS.values())


def test_throttling_and_outages_are_waited_for_and_bounded(glue: GlueRig) -> None:
    version = glue.register("orders", json.dumps(V1))
    glue.faults += [(400, "ThrottlingException"), (500, "InternalServiceException")]
    patient = {"retry.timeout": "60s"}
    rows: list[bytes | None] = [header(version) + encode(V1, {"id": 1, "old": "a"})]
    assert values_of(decoding(glue, V1, **patient), rows) == [{"id": 1, "old": "a"}]
    assert glue.calls == ["GetSchemaVersion"] * 3
    glue.faults += [(400, "ThrottlingException")] * 1000
    other: list[bytes | None] = [header(glue_version()) + rows[0][18:]] if rows[0] else []
    with pytest.raises(ServiceUnavailableError, match="SCHEMA_REGISTRY_UNAVAILABLE"):
        decoding(glue, V1)(pa.array(other, pa.binary()))
    assert len(glue.faults) > 900


def glue_version() -> str:
    return str(uuid4())


def test_a_server_that_is_not_there_is_named(glue: GlueRig) -> None:
    with pytest.raises(ServiceUnavailableError, match=r"SCHEMA_REGISTRY_UNAVAILABLE.*EndpointConnectionError"):
        decoding(glue, None, schemaName="orders", endpointUrl="http://127.0.0.1:1")


def test_credentials_are_found_as_the_kinesis_format_finds_them(glue: GlueRig, monkeypatch: pytest.MonkeyPatch) -> None:
    glue.register("orders", json.dumps(V1))
    options = {name: value for name, value in glue.options.items() if name not in KEYS and name != "region"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    assert decode_call(None, None, "orders", schema_registry=options)[0].schema == json.dumps(V1)
    with pytest.raises(CredentialsError, match=r"SCHEMA_REGISTRY_CREDENTIALS.*nobody"):
        decode_call(None, None, "orders", schema_registry={**options, "profile": "nobody"})
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", "http://203.0.113.7")
    del options["endpointUrl"]
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*203\.0\.113\.7.*allowInsecure"):
        decode_call(None, None, "orders", schema_registry={**options, "region": "eu-west-1"})


def test_secrets_are_in_no_text_of_a_call(glue: GlueRig) -> None:
    glue.register("orders", json.dumps(V1))
    call = decoding(glue, None, schemaName="orders")
    assert not any(secret in repr(call) for secret in KEYS.values())


def test_a_frame_of_glue_without_a_registry_gets_a_hint() -> None:
    frame = header(glue_version()) + b"\2\2a"
    call = decode_call(json.dumps("string"), COLUMN)[0]
    (error,) = errors_of(call, [frame])
    assert error is not None
    assert "It may be in a frame of Glue" in error


def test_keys_may_come_from_a_provider(glue: GlueRig, tmp_path: Path) -> None:
    glue.register("orders", json.dumps(V2))
    log = tmp_path / "calls"
    path = f"tests.support.providers:obstore_dict?log={log}"
    options = {name: text for name, text in glue.options.items() if name not in KEYS} | {"credentialProvider": path}
    decode_call(None, None, "orders", schema_registry=options)
    assert len(calls(log)) == 1
    options["credentialProvider"] = "tests.support.providers:failing?kind=TypeError"
    with pytest.raises(CredentialsError, match="CREDENTIAL_PROVIDER_FAILED") as caught:
        decode_call(None, None, "orders", schema_registry=options)
    assert CANARY not in str(caught.value)
