"""Hostile answers and messages: what they may cost, and what they may make a client ask for; servers on loopback."""

from __future__ import annotations

import gzip
import json
import re
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.functions import decode_call, encode_call
from connectors.core.errors import ConnectorError
from connectors.protobuf.confluent.registry import protobuf_registry
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.hostile_answers import FORGED
from tests.support.protobuf_rig import schema_by_id

COLUMN = {"mode": "PERMISSIVE", "on.error": "column"}


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


def respond(server: SchemaRegistryServer, path: str, answer: Any, **headers: str) -> None:
    server.respond(path, body=json.dumps(answer).encode(), headers=headers)


def framed(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + b"\x0a"


def rows_of(server: SchemaRegistryServer, rows: list[bytes], **more: str) -> list[Any]:
    given = {"address": server.address, "retry.timeout": "0", **more}
    call, _ = decode_call('"long"', COLUMN, schema_registry=given)
    return call(pa.array(rows, pa.binary())).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "nonsense"])
def test_a_compressed_answer_is_not_decompressed(server: SchemaRegistryServer, encoding: str) -> None:
    bomb = json.dumps({"schema": '"long"', "padding": " " * (64 << 20)}).encode()
    body = zlib.compress(bomb) if encoding == "deflate" else gzip.compress(bomb, 1)
    server.respond("*", body=body, headers={"Content-Encoding": encoding})
    began = time.monotonic()
    registry = protobuf_registry(parse_registry_options({"address": server.address, "retry.timeout": "0"}))
    with pytest.raises(ConnectorError, match="SCHEMA_REGISTRY_UNAVAILABLE"):
        registry.latest("basic")
    assert time.monotonic() - began < 5


def test_references_in_a_long_chain_or_a_wide_fan_end(server: SchemaRegistryServer) -> None:
    for version in range(1, 200):
        reference = [{"name": f"r{version + 1}", "subject": "chain", "version": version + 1}]
        respond(server, f"/subjects/chain/versions/{version}", {"schema": '"long"', "references": reference})
    respond(server, "/schemas/ids/1", {"schema": '"long"', "references": [reference[0] | {"version": 1}]})
    fan = [{"name": f"f{number}", "subject": "leaf", "version": 1} for number in range(100_000)]
    respond(server, "/subjects/leaf/versions/1", {"schema": '"long"'})
    respond(server, "/schemas/ids/2", {"schema": '"long"', "references": fan[:20_000]})
    for schema_id, most in ((1, 60), (2, 1100)):
        before = len(server.requests)
        (row,) = rows_of(server, [framed(schema_id)])
        assert "SCHEMA_UNUSABLE" in row["error"]
        assert len(server.requests) - before < most


@pytest.mark.parametrize(
    "name", ["..", "../../admin", "a/b", "?x=1", "#f", "a\nb", "a\rb: c", "\0", "%2e%2e", ".", "", " "]
)
def test_a_subject_of_a_reference_stays_one_part_of_the_path(server: SchemaRegistryServer, name: str) -> None:
    reference = {"name": "Kind", "subject": name, "version": 1}
    respond(server, "/schemas/ids/1", {"schema": '"long"', "references": [reference]})
    rows_of(server, [framed(1)])
    for path in server.requests:
        assert re.fullmatch(r"/schemas/ids/[01]|/subjects/[^/?#\s]+/versions/1\?deleted=true", path), path
        assert "/../" not in path


@pytest.mark.parametrize("subject", ["..", "."])
def test_a_subject_that_is_no_part_of_a_path_is_refused(server: SchemaRegistryServer, subject: str) -> None:
    registry = {"address": server.address, "retry.timeout": "0", "subject": subject}
    calls: list[Callable[[], object]] = [
        lambda: decode_call(None, None, schema_registry=registry),
        lambda: encode_call('"long"', None, schema_registry=registry),
        lambda: encode_call("", None, schema_registry=registry),
    ]
    for call in calls:
        with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*subject"):
            call()
    assert not server.requests


def test_versions_of_references_are_numbers(server: SchemaRegistryServer) -> None:
    for version in ("../../x", 1.5, True, None, [1], 10**400):
        reference = {"name": "Kind", "subject": "kind", "version": version}
        respond(server, "/schemas/ids/1", {"schema": '"long"', "references": [reference]})
        (row,) = rows_of(server, [framed(1)], subject=f":.{abs(hash(str(version)))}:")
        assert row["value"] is None
        assert not [path for path in server.requests if ".." in path]


@pytest.mark.parametrize("size", [0, 1, 4, 5, 8, 15, 16, 17, 18, 64, 100_000])
@pytest.mark.parametrize("magic", [b"\0", b"\1", b"\2"])
def test_headers_of_odd_size_are_bad_rows_or_read(server: SchemaRegistryServer, magic: bytes, size: int) -> None:
    header = (magic + bytes(size))[:size]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "__value_schema_id", "value": header}]], kind)
    call, _ = decode_call('"long"', COLUMN, schema_registry={"address": server.address, "retry.timeout": "0"})
    (row,) = call(pa.array([b"\x0a"]), headers).to_pylist()
    assert row["value"] is None
    assert len(row["error"]) < 1000


def test_secrets_and_forged_lines_are_in_no_error(server: SchemaRegistryServer) -> None:
    secrets = {"basic.auth.user.info": "canary-user:canary-password"}
    reference = {"name": FORGED, "subject": FORGED.replace("\ud800", ""), "version": 1}
    answers: list[Any] = [
        {"schema": '"long"', "ruleSet": {"domainRules": [{"name": FORGED, "type": FORGED, "mode": "READ"}]}},
        {"schema": '"long"', "ruleSet": {FORGED: [{"name": FORGED, "type": "x", "mode": FORGED}]}},
        {"schema": '"long"', "schemaType": FORGED.replace("\ud800", "")},
        {"schema": '"long"', "subject": ":." + FORGED.replace("\ud800", ""), "id": 1},
        {"schema": '"long"', "references": [{**reference, "name": FORGED.replace("\ud800", "")}]},
    ]
    for answer in answers:
        respond(server, "*", answer)
        registry = {"address": server.address, "retry.timeout": "0", "subject": "orders", **secrets}
        try:
            call, _ = decode_call(None, COLUMN, schema_registry=registry)
        except ConnectorError as error:
            text = str(error)
        else:
            text = repr(call)
        assert "canary" not in text
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u202e\ud800]", text), text


def test_an_answer_for_one_id_is_not_taken_for_another_one_in_an_error(server: SchemaRegistryServer) -> None:
    registry = protobuf_registry(parse_registry_options({"address": server.address, "retry.timeout": "0"}))
    respond(server, "/schemas/ids/7", {"schema": "x", "schemaType": "AVRO", "id": 8})
    with pytest.raises(ConnectorError, match="schema id 7"):
        schema_by_id(registry, 7)
