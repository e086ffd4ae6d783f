"""Registries of others that speak Confluent's interface: what Apicurio and Karapace answer and their writers write.

Neither runs here. The bytes and responses are those of their source: Apicurio Registry 2.6.9 and 3.3.1
(``Default4ByteIdHandler``, ``Legacy8ByteIdHandler``, ``DefaultIdHandler``, ``ccompat/v7``) and Karapace 6.2.0
(``karapace/api/controller.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.options import parse_avro_options
from connectors.avro.worker import DecodeCall
from connectors.core.functions.bad_rows import BadRowError
from connectors.json.schema.columns import JsonColumn
from connectors.json.worker import PREFIX_BYTES, FrameCall
from connectors.protobuf.confluent.frames import SchemaKey, read_frames
from connectors.registry.frames import find_frames, read_schema
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer

LONG = bytes(5) + b"\0\0\0\7"
SHORT = b"\0\0\0\0\7"


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


def test_an_id_of_8_bytes_is_read_because_no_registry_gives_out_the_id_0() -> None:
    assert read_schema(LONG + b"x") == (7, 9)
    assert read_schema(SHORT + b"x") == (7, 5)
    assert read_schema(bytes(5) + b"\xff\xff\xff\xff") == (2**32 - 1, 9)
    assert read_schema(bytes(8)) == (0, 5)  # too short for it; nobody has the schema 0
    with pytest.raises(BadRowError):
        read_schema(bytes(4))


def test_ids_of_4_and_of_8_bytes_stand_in_one_batch() -> None:
    column = pa.array([LONG + b"a", SHORT + b"b", None, LONG, bytes(6), b"\1" + bytes(16) + b"c"], pa.binary())
    frames = find_frames(column)
    schemas = [None if place < 0 else frames.schemas[place] for place in frames.which.tolist()]
    assert schemas == [7, 7, None, 7, 0, "0" * 32]
    begins = (frames.begin - [0, 10, 16, 16, 25, 31]).tolist()
    assert begins == [9, 5, 0, 9, 5, 17]


@pytest.mark.parametrize("others", [[], [None]], ids=["usual", "with NULL"])
def test_protobuf_of_apicurio_is_read_with_indexes_and_without_its_own_type_reference(others: list[None]) -> None:
    rows = [LONG + b"\0" + b"message", SHORT + b"\0" + b"other", LONG + b"\2\2" + b"second", *others]
    frames = read_frames(pa.array(rows, pa.binary()))
    assert frames.messages.to_pylist() == [b"message", b"other", b"second", *others]
    assert frames.keys == [SchemaKey(7, (0,)), SchemaKey(7, (0,)), SchemaKey(7, (1,)), *others]
    assert not frames.errors


def registry_of(server: SchemaRegistryServer, path: str) -> Any:
    return parse_registry_options({"address": server.address + path, "retry.timeout": "300ms"})


def respond(server: SchemaRegistryServer, path: str, answer: dict[str, Any]) -> None:
    server.respond(path, body=json.dumps(answer).encode())


@pytest.mark.parametrize("path", ["/apis/ccompat/v7", ""], ids=["Apicurio", "Karapace"])
def test_avro_and_json_are_read_by_what_they_answer(server: SchemaRegistryServer, path: str) -> None:
    respond(server, f"{path}/schemas/ids/7", {"schema": '"long"'})  # neither names the type of an Avro schema
    respond(server, f"{path}/schemas/ids/8", {"schema": '{"type": "integer"}', "schemaType": "JSON"})
    registry = registry_of(server, path)
    avro = DecodeCall('"long"', parse_avro_options({"mode": "PERMISSIVE"}, "from_avro"), registry=registry)
    eight, seven = b"\0\0\0\0\x08", b"\0\0\0\0\7"
    rows = [seven + b"\2", LONG + b"\4", bytes(5) + eight[1:] + b"\2", bytes(5) + b"{}{}{}"]
    assert avro(pa.array(rows, pa.binary())).to_pylist() == [1, 2, None, None]
    call = FrameCall(JsonColumn("bigint"), registry, error_column=True)
    rows = [eight + b"1", bytes(4) + eight[1:], bytes(4) + eight + b"2", seven + b"3", bytes(5) + b'{"id": 1}']
    found = call(pa.array([row[:PREFIX_BYTES] for row in rows], pa.binary())).to_pylist()
    assert [row["value"] for row in found] == [5, None, 9, None, None]
    assert "type 'AVRO'" in found[3]["error"]
    assert found[4]["error"] is not None


def test_karapace_has_no_guids_so_these_are_bad_rows(server: SchemaRegistryServer) -> None:
    respond(server, "/schemas/ids/7", {"schema": "{}", "schemaType": "JSON"})
    call = FrameCall(JsonColumn("variant"), registry_of(server, ""))
    column = pa.array([SHORT + b"1", b"\1" + bytes(range(16)) + b"1"], pa.binary())
    assert call(column).to_pylist() == [5, None]
