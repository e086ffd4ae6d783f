"""Messages that Glue's own serializers in Java write are read here, and those written here are read by them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from connectors.avro.functions import decode_call, encode_call
from connectors.protobuf.glue import glue_index
from connectors.protobuf.options import parse_protobuf_options
from connectors.protobuf.schema.descriptors import parse_set
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine, registry_of
from connectors.registry.glue.frames import frame_of
from connectors.registry.glue.options import parse_schema_registry
from tests.support.avro_cases import record
from tests.support.avro_rig import encode
from tests.support.clients import find_java_client, run_java_client
from tests.support.glue_rig import ORDERS_PROTO, GlueRig
from tests.support.protobuf_rig import compiled

POM, PROGRAM = "glue-serde", "GlueSerdeClient"
SCHEMA = record("Order", ("id", "long"), ("note", ["null", "string"]), ("tags", {"type": "array", "items": "string"}))
ORDERS = [{"id": number, "note": None if number % 2 else "n" * number, "tags": ["x"] * number} for number in range(20)]
KIND = pa.struct([("id", pa.int64()), ("note", pa.string()), ("tags", pa.list_(pa.string()))])
MESSAGES = {
    "shop.Order": (b"\x08\x05\x12\x02\x08\x07", {"id": 5, "item": {"count": 7, "labels": []}}),
    "shop.Order.Zone": (b"\x0a\x01z", {"name": "z"}),
    "shop.Order.Item": (b"\x08\x07\x12\x06\x0a\x01k\x12\x01v", {"count": 7, "labels": [("k", "v")]}),
    "shop.Box": (b"\x0a\x03abc", {"label": "abc"}),
}


def field(data: bytes | str) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def java(glue: GlueRig, compression: str, lines: Sequence[Sequence[str]]) -> list[list[bytes]]:
    if reason := find_java_client(POM).reason:
        pytest.skip(reason)
    answered = run_java_client(POM, PROGRAM, [glue.url, glue.registry, compression], lines)
    return [[base64.b64decode(each) for each in line] for line in answered]


@pytest.mark.parametrize("compression", ["NONE", "ZLIB"])
@pytest.mark.may_skip_in_ci("Maven may not serve Glue's serializers")
def test_avro(glue: GlueRig, compression: str) -> None:
    text = json.dumps(SCHEMA)
    lines = [["write", "AVRO", "orders", field(text), "", field(encode(SCHEMA, order))] for order in ORDERS]
    frames = [frame for (frame,) in java(glue, compression, lines)]
    assert {frame[:2] for frame in frames} == {b"\3\5" if compression == "ZLIB" else b"\3\0"}
    reading: dict[str, Any] = {"schema_registry": glue.options}
    call, _ = decode_call(None, None, "orders", **reading)
    assert call(pa.array(frames, pa.binary())).to_pylist() == ORDERS
    writing = {**glue.options, "compression": compression}
    column = pa.StructArray.from_arrays([pa.array(ORDERS, KIND)], ["value"])
    written = encode_call("", None, "orders", schema_registry=writing)(column).to_pylist()
    if compression == "NONE":  # versions of zlib may compress in other ways
        assert written == frames
    read = java(glue, compression, [["read", "AVRO", field(frame)] for frame in written])
    assert read == [[b"Order", encode(SCHEMA, order)] for order in ORDERS]


@pytest.mark.parametrize("compression", ["NONE", "ZLIB"])
@pytest.mark.may_skip_in_ci("Maven may not serve Glue's serializers")
def test_protobuf(glue: GlueRig, compression: str) -> None:
    file: FileDescriptorProto = parse_set(compiled(ORDERS_PROTO)).file[0]
    schema = field(file.SerializeToString())
    lines = [["write", "PROTOBUF", "orders", schema, field(name), field(MESSAGES[name][0])] for name in MESSAGES]
    frames = [frame for (frame,) in java(glue, compression, lines)]
    registry = parse_schema_registry({**glue.options, "compression": compression})
    latest = registry_of(registry).latest("orders")
    decoding = parse_protobuf_options({"wire.format": "confluent"}, "from_protobuf")
    written = []
    for (name, (message, value)), frame in zip(MESSAGES.items(), frames, strict=True):
        call = DecodeCall(latest.files, name, decoding, None, Engine.AUTO, registry)
        values = call(pa.array([frame], pa.binary()))
        assert values.to_pylist() == [value]
        framed = frame_of(latest.schema_id, registry, glue_index(latest, name))
        encoding = EncodeCall(latest.files, name, parse_protobuf_options({}, "to_protobuf"), Engine.AUTO, framed)
        written += encoding(values).to_pylist()
        if compression == "NONE":
            assert (written[-1], frame[19:]) == (frame, message)
    read = java(glue, compression, [["read", "PROTOBUF", field(frame)] for frame in written])
    assert read == [[name.encode(), message] for name, (message, _) in MESSAGES.items()]
