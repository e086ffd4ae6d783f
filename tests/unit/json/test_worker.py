"""The frames of JSON messages: found by the first bytes, with the schemas of a registry on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.json.errors import JsonDataError
from connectors.json.schema.columns import json_column
from connectors.json.schema.parser import parse_schemas
from connectors.json.worker import PREFIX_BYTES, FrameCall
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer

READER = {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}, "n": {"type": "integer"}}}
OTHER = {"type": "object", "properties": {"n": {"type": "string"}}}
MILLIS = {"type": "object", "properties": {"at": {"type": "integer"}}}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MESSAGE = b'{"at": "2026-01-01T00:00:00Z", "n": 1}'


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


def registered(server: SchemaRegistryServer, schema: Any, kind: str = "JSON") -> int:
    return server.register("orders", text=json.dumps(schema), schema_type=kind)


def call_of(server: SchemaRegistryServer, **settings: bool) -> FrameCall:
    registry = parse_registry_options({"address": server.address, "retry.timeout": "300ms"})
    return FrameCall(json_column(parse_schemas(json.dumps(READER))), registry, **settings)


def framed(schema_id: int, message: bytes = MESSAGE) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + message


def places(call: FrameCall, messages: list[bytes | None], headers: Any = None) -> list[Any]:
    prefixes = pa.array([None if message is None else message[:PREFIX_BYTES] for message in messages], pa.binary())
    columns = [] if headers is None else [pa.array(headers, HEADERS)]
    result = call(prefixes, *columns)
    result.validate(full=True)
    return result.to_pylist()


def test_the_json_begins_after_an_id_or_a_guid_and_each_schema_is_fetched_once(server: SchemaRegistryServer) -> None:
    first, second = registered(server, READER), registered(server, OTHER)
    guid = b"\1" + server.guid(first) + MESSAGE
    call = call_of(server)
    assert places(call, [framed(first), None, framed(second, b"{}"), guid, framed(first, b"0")]) == [5, None, 5, 17, 5]
    assert places(call, [framed(first)] * 3) == [5, 5, 5]
    assert len(server.requests) == 3
    sliced = pa.array([b"x", framed(first)[:PREFIX_BYTES], b"y"], pa.binary()).slice(1, 1)
    assert call(sliced).to_pylist() == [5]
    assert places(call, []) == []


def test_a_header_with_the_schema_leaves_the_message_alone(server: SchemaRegistryServer) -> None:
    schema = registered(server, READER)
    value = [{"key": "__value_schema_id", "value": framed(schema, b"")}]
    key = [{"key": "__key_schema_id", "value": b"\1" + server.guid(schema)}]
    rows, headers = [MESSAGE, framed(schema), MESSAGE, b""], [value, None, key, value]
    assert places(call_of(server), rows, headers) == [0, 5, None, None]
    assert places(call_of(server, is_key=True), rows, headers) == [None, 5, 0, None]
    reasons = [row["error"] for row in places(call_of(server, error_column=True), rows, headers)]
    assert reasons[:2] == [None, None]
    assert "isKey=True" in reasons[2]
    assert reasons[3] == "has no message after its frame"


def test_garbage_at_every_byte_of_a_frame_is_a_bad_row_and_changes_no_neighbour(server: SchemaRegistryServer) -> None:
    schema = registered(server, READER)
    call, good = call_of(server), framed(schema)
    for frame in (good, b"\1" + server.guid(schema) + MESSAGE):
        size = len(frame) - len(MESSAGE)
        wrong = [
            frame[:place] + bytes([frame[place] ^ bit]) + frame[place + 1 :]
            for place in range(size)
            for bit in (2, 255)
        ]
        wrong += [frame[:end] for end in range(size + 1)]
        rows = [message for each in wrong for message in (good, each)]
        found = places(call, rows)
        assert found[::2] == [5] * len(wrong)
        assert [place for place in found[1::2] if place is not None] == []


def test_a_schema_of_another_kind_or_meaning_makes_bad_rows(server: SchemaRegistryServer) -> None:
    good, millis = registered(server, READER), registered(server, MILLIS)
    avro, broken = registered(server, "long", "AVRO"), server.register("orders", text="{", schema_type="JSON")
    lost = registered(server, {"$ref": "nowhere"})
    rows = [framed(each) for each in (good, millis, avro, broken, lost, 77)]
    errors = [row["error"] for row in places(call_of(server, error_column=True), rows)]
    assert errors[0] is None
    expected = ("at was written as bigint and is read as timestamp", "type 'AVRO'", "not JSON", "nowhere", "id 77")
    for error, part in zip(errors[1:], expected, strict=True):
        assert part in error
    with pytest.raises(JsonDataError, match=r"\[MALFORMED_JSON_MESSAGE\].*row 1 of the batch.*read as timestamp"):
        places(call_of(server, permissive=False), rows[:2])
    with pytest.raises(ConnectorError, match="SCHEMA_UNUSABLE"):
        places(call_of(server, permissive=False), [rows[2]])


def test_a_registry_that_does_not_answer_ends_the_query_and_makes_no_bad_rows(server: SchemaRegistryServer) -> None:
    schema = registered(server, READER)
    call = call_of(server)
    server.respond("*", 503)
    with pytest.raises(ServiceUnavailableError):
        places(call, [framed(schema)])
