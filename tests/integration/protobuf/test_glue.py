"""`from_protobuf` and `to_protobuf` with the AWS Glue Schema Registry, as moto serves it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from connectors.core.errors import ConnectorError, OptionError
from connectors.protobuf.errors import ProtobufError
from connectors.protobuf.glue import glue_index
from connectors.protobuf.options import WireFormat, parse_protobuf_options
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine, registry_of
from connectors.registry.glue.options import parse_schema_registry
from connectors.registry.kinds import frame_of
from tests.support.glue_rig import ORDERS_PROTO, GlueRig, header

LATER = ORDERS_PROTO.replace("int64 id = 1;", "int64 id = 1; string note = 9;")
OTHER = ORDERS_PROTO.replace("int64 id = 1;", "string id = 1;")
COLUMN = {"mode": "PERMISSIVE", "on.error": "column"}


def call_of(
    glue: GlueRig, message: str, options: Mapping[str, str] = COLUMN, engine: Engine = Engine.AUTO, **given: str
) -> DecodeCall:
    """Return the call of a message of the latest version."""
    registry = parse_schema_registry({**glue.options, **given})
    latest = registry_of(registry).latest("orders")
    parsed = parse_protobuf_options({"wire.format": "confluent", **options}, "from_protobuf")
    assert parsed.wire_format is WireFormat.CONFLUENT
    return DecodeCall(latest.files, message, parsed, None, engine, registry)


def rows_of(call: DecodeCall, rows: list[bytes | None]) -> list[Any]:
    result = call(pa.array(rows, pa.binary()))
    result.validate(full=True)
    return result.to_pylist()


@pytest.mark.parametrize(
    ("name", "index", "message", "value"),
    [
        ("shop.Box", 0, b"\x0a\x01b", {"label": "b"}),
        ("shop.Order", 1, b"\x08\x05", {"id": 5, "item": None}),
        ("shop.Order.Item", 2, b"\x08\x07\x12\x06\x0a\x01k\x12\x01v", {"count": 7, "labels": [("k", "v")]}),
        ("shop.Order.Zone", 4, b"\x0a\x01z", {"name": "z"}),
    ],
)
@pytest.mark.parametrize("engine", [Engine.PYTHON, Engine.AUTO])
def test_messages_are_found_by_the_place_of_their_names(
    glue: GlueRig, name: str, index: int, message: bytes, value: Any, engine: Engine
) -> None:
    version = glue.register("orders", ORDERS_PROTO, "PROTOBUF")
    plain = header(version) + bytes([index]) + message
    packed = header(version, 5) + zlib.compress(bytes([index]) + message)
    call = call_of(glue, name, engine=engine)
    asked = len(glue.calls)
    rows = [plain, None, packed] * 100
    expected = [{"value": value, "error": None}, None, {"value": value, "error": None}] * 100
    assert rows_of(call, rows) == expected
    assert rows_of(call_of(glue, name, engine=engine), rows) == expected
    assert glue.calls[asked:] == ["GetSchemaVersion", "GetSchemaVersion"]  # of the version, once, and the latest again


def test_a_message_is_read_by_the_version_of_its_writer(glue: GlueRig) -> None:
    first = glue.register("orders", ORDERS_PROTO, "PROTOBUF")
    second = glue.register("orders", LATER, "PROTOBUF")
    call = call_of(glue, "shop.Order")
    rows: list[bytes | None] = [header(first) + b"\1\x08\x05", header(second) + b"\1\x08\x06\x4a\x01n"]
    assert [row["value"] for row in rows_of(call, rows)] == [
        {"id": 5, "item": None, "note": None},
        {"id": 6, "item": None, "note": "n"},
    ]


def test_bad_frames_and_writers_that_do_not_fit_change_no_neighbour(glue: GlueRig) -> None:
    other = glue.register("other", OTHER, "PROTOBUF")
    avro = glue.register("avro", '"int"')
    good = glue.register("orders", ORDERS_PROTO, "PROTOBUF")
    neighbour = header(good) + b"\1\x08\x05"
    bad = {
        b"": "is not a frame of Glue",
        header(good)[:-1]: "is not a frame of Glue",
        header(good): "message index is cut off",
        header(good) + b"\x80": "message index is cut off",
        header(good) + b"\xff\xff\xff\xff\xff\x01": "message index is cut off",
        header(good) + b"\x05\x08\x05": "has the message index 5, and its schema has 5 messages",
        header(good) + b"\xff\x01\x08\x05": "has the message index 255",
        header(good) + b"\0\x08\x05": "holds a shop.Box",
        header(good) + b"\1\x08": "",
        header(good, 5) + b"\1\x08\x05": "cannot be decompressed",
        header(other) + b"\1\x0a\x01a": "shop.Order.id",
        header(avro) + b"\1": "AVRO",
        header(str(uuid4())) + b"\1": "SCHEMA_NOT_FOUND",
    }
    call = call_of(glue, "shop.Order")
    rows = [row for each in bad for row in (each, neighbour)]
    for row, frame in zip(rows_of(call, list(rows)), rows, strict=True):
        if frame in bad:
            assert row["error"]
            assert bad[frame] in row["error"]
        else:
            assert row == {"value": {"id": 5, "item": None}, "error": None}
    long_index = header(good) + b"\x81\x00\x08\x05"  # no writer writes it so, and Java reads it
    assert rows_of(call, [neighbour, long_index, neighbour])[1]["value"] == {"id": 5, "item": None}
    strict = call_of(glue, "shop.Order", {"mode": "FAILFAST"})
    with pytest.raises(ConnectorError, match="MALFORMED_PROTOBUF_MESSAGE"):
        strict(pa.array([neighbour, b"\0"], pa.binary()))


@pytest.mark.parametrize("compression", ["NONE", "ZLIB"])
def test_what_is_written_is_framed_with_version_and_index(glue: GlueRig, compression: str) -> None:
    version = glue.register("orders", ORDERS_PROTO, "PROTOBUF")
    registry = parse_schema_registry({**glue.options, "compression": compression})
    latest = registry_of(registry).latest("orders")
    frame = frame_of(latest.schema_id, registry, glue_index(latest, "shop.Order"))
    options = parse_protobuf_options({}, "to_protobuf")
    call = EncodeCall(latest.files, "shop.Order", options, Engine.AUTO, frame)
    written = call(pa.array([{"id": 5}, None], pa.struct([("id", pa.int64())]))).to_pylist()
    packed = compression == "ZLIB"
    body = b"\1\x08\x05"
    assert written == [header(version, 5 if packed else 0) + (zlib.compress(body) if packed else body), None]
    assert rows_of(call_of(glue, "shop.Order"), written)[0]["value"] == {"id": 5, "item": None}


def test_a_message_that_the_schema_has_not_gets_no_index(glue: GlueRig) -> None:
    glue.register(
        "orders", "\n".join(['syntax = "proto3";', *(f"message M{n:03} {{}}" for n in range(200))]), "PROTOBUF"
    )
    latest = registry_of(parse_schema_registry(glue.options)).latest("orders")
    assert glue_index(latest, "M127") == b"\x7f"
    assert glue_index(latest, "M199") == b"\xc7\x01"
    with pytest.raises(ProtobufError, match="PROTOBUF_MESSAGE_NOT_FOUND"):
        glue_index(latest, "shop.Order")
    frame = header(str(latest.schema_id)) + b"\xc7\x01"
    assert rows_of(call_of(glue, "M199"), [frame])[0] == {"value": {}, "error": None}


def test_maps_are_read_as_the_serializers_write_them_into_schemas(glue: GlueRig) -> None:
    entry = "message LabelsEntry { option  map_entry = true ; string key = 1; string value = 2; }"
    wide = "message WideEntry { option map_entry = true; string key = 1; string value = 2; string more = 3; }"
    fields = "repeated LabelsEntry labels = 2; repeated WideEntry wide = 3;"
    version = glue.register("orders", f'syntax = "proto3"; message A {{ {fields} {entry} {wide} }}', "PROTOBUF")
    (row,) = rows_of(call_of(glue, "A"), [header(version) + b"\0\x12\x06\x0a\x01k\x12\x01v"])
    assert row["value"] == {"labels": [("k", "v")], "wide": []}


def test_a_schema_that_is_no_protobuf_is_named(glue: GlueRig) -> None:
    glue.register("orders", '"int"')
    with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*AVRO"):
        call_of(glue, "shop.Order")
    with pytest.raises(OptionError, match="OPTION_ILLEGAL"):
        parse_schema_registry({**glue.options, "compression": "lz4"})
