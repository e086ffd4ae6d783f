"""Schemas that import what registries have built in, without a reference; and what they import and nobody has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from connectors.core.errors import ConnectorError
from connectors.protobuf.confluent.registry import add_built_in, built_in_set
from connectors.protobuf.functions import _locate
from connectors.protobuf.options import parse_protobuf_options
from connectors.protobuf.schema.descriptors import Schema, serialized
from connectors.protobuf.worker import DecodeCall, Engine
from connectors.registry.options import RegistryOptions, parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.protobuf_rig import frame_prefix
from tools.built_in_protos import published

SHIPPED = [file.name for file in FileDescriptorSet.FromString(built_in_set()).file]
MONEY = """syntax = "proto3"; package shop; import "google/type/money.proto"; import "confluent/type/decimal.proto";
import "confluent/meta.proto"; import "google/protobuf/timestamp.proto";
message Order { google.type.Money price = 1; confluent.type.Decimal tax = 2; google.protobuf.Timestamp at = 3; }"""
IMPORTS = ["google/type/money.proto", "confluent/type/decimal.proto", "confluent/meta.proto"]
IMPORTS += ["google/protobuf/timestamp.proto"]
UNKNOWN = """syntax = "proto3"; import "google/rpc/status.proto"; message Order { google.rpc.Status status = 1; }"""


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


def order() -> FileDescriptorProto:
    """What the registry has of MONEY: its file alone."""
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend(IMPORTS)
    message = file.message_type.add(name="Order")
    kinds = (("price", ".google.type.Money"), ("tax", ".confluent.type.Decimal"), ("at", ".google.protobuf.Timestamp"))
    for number, (name, kind) in enumerate(kinds, 1):
        message.field.add(name=name, number=number, type=11, label=1, type_name=kind)
    return file


def registered(server: SchemaRegistryServer, form: str) -> RegistryOptions:
    files = b"" if form == "text" else FileDescriptorSet(file=[order()]).SerializeToString()
    server.register("orders", files, "order.proto", text=MONEY)
    return parse_registry_options({"address": server.address, "subject": "orders", "retry.timeout": "0"})


def complete_set() -> bytes:
    files = {"order.proto": order()}
    assert not add_built_in(files)
    return serialized(files)


@pytest.mark.parametrize("form", ["text", "descriptor"])
@pytest.mark.parametrize("described_by", ["registry", "descriptor set"])
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_what_registries_have_built_in_needs_no_reference(
    server: SchemaRegistryServer, form: str, described_by: str, mode: str
) -> None:
    options = registered(server, form)
    own = complete_set() if described_by == "descriptor set" else None
    descriptors, message, _ = _locate(options, "Order", None, own, None)
    kind = message_factory.GetMessageClass(Schema(descriptors).find(message))
    row = kind(price={"currency_code": "EUR", "units": 5}, tax={"value": b"\1", "scale": 2})
    parsed = parse_protobuf_options({"wire.format": "confluent", "mode": mode}, "from_protobuf")
    call = DecodeCall(descriptors, message, parsed, None, Engine.AUTO, options)
    [seen] = call(pa.array([frame_prefix(1, (0,)) + row.SerializeToString()])).to_pylist()
    assert seen["price"] == {"currency_code": "EUR", "units": 5, "nanos": None}
    assert seen["tax"]["value"] == b"\1"


@pytest.mark.parametrize("name", SHIPPED)
def test_each_file_that_is_built_in_can_be_imported(name: str) -> None:
    files = {"main.proto": FileDescriptorProto(name="main.proto", syntax="proto3", dependency=[name])}
    assert not add_built_in(files)
    assert Schema(serialized(files)).pool.FindFileByName(name)


@pytest.mark.skipif(
    not Path(confluent_kafka.__file__).with_name("schema_registry").joinpath("confluent/type").is_dir(),
    reason="this confluent-kafka has no confluent/type/decimal.proto",
)
def test_the_files_are_those_that_are_published() -> None:
    assert FileDescriptorSet.FromString(built_in_set()) == FileDescriptorSet.FromString(published())


@pytest.mark.parametrize("form", ["text", "descriptor"])
@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_an_import_that_nobody_has_ends_driver_and_worker_by_name(
    server: SchemaRegistryServer, form: str, mode: str
) -> None:
    __import__("google.rpc.status_pb2")  # that this process has it must not help
    file = FileDescriptorProto(name="order.proto", syntax="proto3", dependency=["google/rpc/status.proto"])
    file.message_type.add(name="Order")
    files = b"" if form == "text" else FileDescriptorSet(file=[file]).SerializeToString()
    server.register("orders", files, "order.proto", text=UNKNOWN)
    options = parse_registry_options({"address": server.address, "subject": "orders", "retry.timeout": "0"})
    expected = r"^\[SCHEMA_IMPORT_MISSING\].*google/rpc/status\.proto.*reference" if files else "SCHEMA_UNUSABLE"
    with pytest.raises(ConnectorError, match=expected):
        _locate(options, None, None, None, None)
    parsed = parse_protobuf_options({"wire.format": "confluent", "mode": mode}, "from_protobuf")
    call = DecodeCall(complete_set(), "shop.Order", parsed, None, Engine.AUTO, options)
    if files or mode == "FAILFAST":
        with pytest.raises(ConnectorError, match=expected):
            call(pa.array([frame_prefix(1, (0,))]))


def test_what_a_process_has_imported_changes_nothing(server: SchemaRegistryServer) -> None:
    """A process that has imported Money and one that has not read the same schema."""
    options = registered(server, "descriptor")
    program = (
        "import sys; {} from connectors.protobuf.confluent.registry import protobuf_registry; "
        "from connectors.registry.options import parse_registry_options; "
        "found = protobuf_registry(parse_registry_options({{'address': sys.argv[1]}})).latest('orders'); "
        "print(found.files.hex())"
    )
    seen = [
        subprocess.run(
            [sys.executable, "-c", program.format(imports), options.address],
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for imports in ("", "import google.type.money_pb2;")
    ]
    assert seen[0] == seen[1]
