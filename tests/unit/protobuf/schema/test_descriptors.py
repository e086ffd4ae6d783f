"""Descriptor sets: read, refused with a reason, and searched as Spark searches them."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from connectors.protobuf import from_protobuf, to_protobuf
from connectors.protobuf.errors import ProtobufAnalysisError
from connectors.protobuf.schema.descriptors import Schema, class_descriptor_set, well_known_message
from connectors.protobuf.worker import Engine
from tests.support.protobuf_rig import Rig, compiled, descriptors


def test_a_message_is_found_by_its_short_or_full_name_at_top_level_only() -> None:
    schema = Schema(descriptors("behaviours"))
    assert schema.find("Basic").full_name == schema.find("behaviours.Basic").full_name == "behaviours.Basic"
    with pytest.raises(ProtobufAnalysisError, match=r"^\[PROTOBUF_MESSAGE_NOT_FOUND\].*Nested messages"):
        schema.find("Middle")
    first = 'syntax = "proto3"; package {}; message M {{ int32 a = 1; }}'
    two = Schema(compiled('syntax = "proto3"; import "other.proto"; message N { x.M m = 1; }', other=first.format("x")))
    assert two.find("M").full_name == "x.M"
    assert Schema(compiled(first.format("a"))).find("M").full_name == "a.M"


SOURCE = b'// Orders.\nsyntax = "proto3";\n\nmessage M {\n\tint32 a = 1; // z\xc3\xb3\n}\r\n'


@pytest.mark.parametrize(
    ("data", "reason", "action"),
    [
        (SOURCE, "text, as in a .proto file", "protoc --include_imports --descriptor_set_out=FILE"),
        (b"\xef\xbb\xbf" + SOURCE, "text, as in a .proto file", "protoc"),
        (b"", "empty", "protoc --include_imports"),
        (b"\n \n", "text", "protoc"),
        (b"\x10\x01", "holds no file", "protoc"),
        (timestamp_pb2.DESCRIPTOR.serialized_pb, "one FileDescriptorProto, google/protobuf/timestamp.proto", "protoc"),
        (bytes(range(256)), "Error parsing message", "protoc"),
    ],
    ids=["source", "bom", "empty", "blank", "nothing", "file", "garbage"],
)
@pytest.mark.parametrize("function", [from_protobuf, to_protobuf])
def test_what_is_no_descriptor_set_is_an_error_that_says_what_it_is(
    function: object, data: bytes, reason: str, action: str, tmp_path: Path
) -> None:
    path = tmp_path / "events.desc"
    path.write_bytes(data)
    for given in ({"binaryDescriptorSet": data}, {"descFilePath": str(path)}):
        with pytest.raises(ProtobufAnalysisError, match=r"^\[CANNOT_PARSE_PROTOBUF_DESCRIPTOR\]") as caught:
            function("value", "M", **given)  # type: ignore[operator]
        assert reason in str(caught.value)
        assert action in str(caught.value)


def test_two_versions_of_one_file_live_side_by_side() -> None:
    old = Rig(Engine.AUTO, compiled('syntax = "proto3"; message M { int32 a = 1; }'))
    new = Rig(Engine.AUTO, compiled('syntax = "proto3"; message M { string a = 1; }'))
    assert (old.ddl("M"), new.ddl("M")) == ("struct<a:int>", "struct<a:string>")
    assert old.row("M", b"\x08\x05") == {"a": 5}
    assert new.row("M", b"\x0a\x015") == {"a": "5"}


def test_a_generated_class_and_a_class_of_java_that_comes_with_protobuf() -> None:
    data = class_descriptor_set(timestamp_pb2.Timestamp.DESCRIPTOR)
    assert Rig(Engine.AUTO, data).ddl("google.protobuf.Timestamp") == "struct<seconds:bigint,nanos:int>"
    java = "org.sparkproject.spark_protobuf.protobuf.Timestamp"
    assert well_known_message(java) is timestamp_pb2.Timestamp.DESCRIPTOR
    assert well_known_message("com.google.protobuf.Nonsense") is None
    assert well_known_message("com.example.Timestamp") is None


@pytest.mark.parametrize("circle", [["a.proto"], ["a.proto", "b.proto"], ["a.proto", "b.proto", "c.proto"]])
def test_imports_in_a_circle_are_an_error_at_once(circle: list[str]) -> None:
    files = FileDescriptorSet()
    for place, name in enumerate(circle):
        files.file.add(name=name, dependency=[circle[(place + 1) % len(circle)]])
    with pytest.raises(ProtobufAnalysisError, match=r"^\[CANNOT_PARSE_PROTOBUF_DESCRIPTOR\].*circle"):
        Schema(files.SerializeToString())


def test_a_file_that_is_imported_on_several_ways_is_no_circle() -> None:
    files = FileDescriptorSet()
    for name, imports in {"a": "bcd", "b": "cd", "c": "d", "d": ""}.items():
        files.file.add(name=name, dependency=list(imports))
    assert Schema(files.SerializeToString()).pool.FindFileByName("a").dependencies
