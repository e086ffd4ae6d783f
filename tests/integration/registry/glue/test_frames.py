"""Messages that Glue's own serializers in Java write are read here, and those written here are read by them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from connectors.avro.functions import decode_call, encode_call
from connectors.protobuf.glue import glue_index
from connectors.protobuf.options import parse_protobuf_options
from connectors.protobuf.schema.descriptors import parse_set
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine, registry_of
from connectors.registry.glue.options import parse_schema_registry
from connectors.registry.kinds import frame_of
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


def java(glue: GlueRig, lines: Sequence[Sequence[str]]) -> list[list[bytes]]:
    if reason := find_java_client(POM).reason:
        pytest.skip(reason)
    answered = run_java_client(POM, PROGRAM, [glue.url, glue.registry], lines)
    return [[base64.b64decode(each) for each in line] for line in answered]


@dataclass(frozen=True)
class AvroCase:
    """The orders in Avro; ``lines`` let Java write them, ``read`` is what it makes of the frames of `answer`."""

    glue: GlueRig
    compression: str

    @property
    def lines(self) -> list[list[str]]:
        text = field(json.dumps(SCHEMA))
        data = [field(encode(SCHEMA, order)) for order in ORDERS]
        return [["write", "AVRO", "orders-avro", text, "", each, self.compression] for each in data]

    @property
    def read(self) -> list[list[bytes]]:
        return [[b"Order", encode(SCHEMA, order)] for order in ORDERS]

    def answer(self, frames: list[bytes]) -> list[bytes]:
        """Check the frames of Java, and write our own."""
        assert {frame[:2] for frame in frames} == {b"\3\5" if self.compression == "ZLIB" else b"\3\0"}
        reading: dict[str, Any] = {"schema_registry": self.glue.options}
        call, _ = decode_call(None, None, "orders-avro", **reading)
        assert call(pa.array(frames, pa.binary())).to_pylist() == ORDERS
        writing = {**self.glue.options, "compression": self.compression}
        column = pa.StructArray.from_arrays([pa.array(ORDERS, KIND)], ["value"])
        written: list[bytes] = encode_call("", None, "orders-avro", schema_registry=writing)(column).to_pylist()
        if self.compression == "NONE":  # versions of zlib may compress in other ways
            assert written == frames
        return written


@dataclass(frozen=True)
class ProtobufCase:
    """The same for the messages in protobuf."""

    glue: GlueRig
    compression: str

    @property
    def lines(self) -> list[list[str]]:
        file: FileDescriptorProto = parse_set(compiled(ORDERS_PROTO)).file[0]
        schema = ["write", "PROTOBUF", "orders-protobuf", field(file.SerializeToString())]
        return [[*schema, field(name), field(data), self.compression] for name, (data, _) in MESSAGES.items()]

    @property
    def read(self) -> list[list[bytes]]:
        return [[name.encode(), message] for name, (message, _) in MESSAGES.items()]

    def answer(self, frames: list[bytes]) -> list[bytes]:
        """Check the frames of Java, and write our own."""
        registry = parse_schema_registry({**self.glue.options, "compression": self.compression})
        latest = registry_of(registry).latest("orders-protobuf")
        decoding = parse_protobuf_options({"wire.format": "confluent"}, "from_protobuf")
        written: list[bytes] = []
        for (name, (message, value)), frame in zip(MESSAGES.items(), frames, strict=True):
            call = DecodeCall(latest.files, name, decoding, None, Engine.AUTO, registry)
            values = call(pa.array([frame], pa.binary()))
            assert values.to_pylist() == [value]
            framed = frame_of(latest.schema_id, registry, glue_index(latest, name))
            encoding = EncodeCall(latest.files, name, parse_protobuf_options({}, "to_protobuf"), Engine.AUTO, framed)
            written += encoding(values).to_pylist()
            if self.compression == "NONE":
                assert (written[-1], frame[19:]) == (frame, message)
        return written


@pytest.mark.may_skip_in_ci("Maven may not serve Glue's serializers")
def test_each_side_reads_what_the_other_writes_in_both_formats_with_and_without_compression(glue: GlueRig) -> None:
    cases = [kind(glue, compression) for kind in (AvroCase, ProtobufCase) for compression in ("NONE", "ZLIB")]
    lines = [case.lines for case in cases]
    frames = iter([frame for (frame,) in java(glue, list(chain(*lines)))])
    written = [case.answer(list(islice(frames, len(own)))) for case, own in zip(cases, lines, strict=True)]
    assert next(frames, None) is None
    reading = [["read", own[0][1], field(frame)] for own, each in zip(lines, written, strict=True) for frame in each]
    assert java(glue, reading) == list(chain(*(case.read for case in cases)))
