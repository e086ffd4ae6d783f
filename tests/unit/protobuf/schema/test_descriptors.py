"""Descriptor sets: read, refused with a reason, and searched as Spark searches them."""

from __future__ import annotations

from pathlib import Path

import grpc_tools
import pyarrow as pa
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import Edition, FileDescriptorSet
from google.protobuf.runtime_version import MAJOR, MINOR

from connectors.protobuf import from_protobuf, to_protobuf
from connectors.protobuf.errors import ProtobufAnalysisError, ProtobufDataError
from connectors.protobuf.schema.descriptors import Schema, class_descriptor_set, well_known_message
from connectors.protobuf.worker import Engine
from tests.support.protobuf_rig import Rig, compiled, descriptors, filled


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


def test_an_edition_that_protobuf_does_not_know_is_an_error_that_says_what_to_install() -> None:
    files = FileDescriptorSet()
    files.file.add(name="later.proto", syntax="editions", edition=Edition.EDITION_MAX)
    with pytest.raises(ProtobufAnalysisError, match=r"DESCRIPTOR\].*later\.proto.*install protobuf 6\.32"):
        Schema(files.SerializeToString())


EDITIONS = ["2023", *(["2024"] if (MAJOR, MINOR) >= (6, 32) else [])]
"""What this protobuf knows."""
EDITION = """edition = "{edition}"; {imports} {file}
message M {{ string s = 1 {field}; repeated string l = 2 {field}; oneof o {{ string a = 3 {field}; int32 b = 4; }}
  message Inner {{ string s = 1 {field}; }} Inner inner = 5; map<string, string> m = 6; }}"""
NONE, VERIFY = "features.utf8_validation = NONE", "features.utf8_validation = VERIFY"
JAVA = 'import "google/protobuf/java_features.proto";'
JAVA_FEATURES = """syntax = "proto2"; package pb; import "google/protobuf/descriptor.proto";
extend google.protobuf.FeatureSet { optional JavaFeatures java = 1001; }
message JavaFeatures {
  enum Utf8Validation { UTF8_VALIDATION_UNKNOWN = 0; DEFAULT = 1; VERIFY = 2; }
  optional bool legacy_closed_enum = 1 [
    retention = RETENTION_RUNTIME, targets = TARGET_TYPE_FIELD, targets = TARGET_TYPE_FILE,
    feature_support = { edition_introduced: EDITION_2023 },
    edition_defaults = { edition: EDITION_LEGACY, value: "true" },
    edition_defaults = { edition: EDITION_PROTO3, value: "false" }];
  optional Utf8Validation utf8_validation = 2 [
    retention = RETENTION_RUNTIME, targets = TARGET_TYPE_FIELD, targets = TARGET_TYPE_FILE,
    feature_support = { edition_introduced: EDITION_2023 },
    edition_defaults = { edition: EDITION_LEGACY, value: "DEFAULT" }]; }"""
SHIPPED = Path(grpc_tools.__file__).with_name("_proto") / "google/protobuf/java_features.proto"
BROUGHT = {} if SHIPPED.exists() else {"google/protobuf/java_features": JAVA_FEATURES}
"""Older grpcio-tools come without this file, which users then have from elsewhere."""
JAVA_VERIFY, JAVA_DEFAULT = (f"features.(pb.java).utf8_validation = {value}" for value in ("VERIFY", "DEFAULT"))


@pytest.mark.parametrize(
    ("file", "field", "lenient"),
    [
        ("", "", False),
        (NONE, "", True),
        ("", NONE, True),
        (NONE, VERIFY, False),
        (VERIFY, NONE, True),
        (NONE, NONE, True),
        (NONE, JAVA_VERIFY, False),
        (NONE, JAVA_DEFAULT, True),
        (JAVA_VERIFY, NONE, False),
        (JAVA_VERIFY, f"{NONE}, {JAVA_DEFAULT}", True),
        (JAVA_DEFAULT, VERIFY, False),
    ],
)
@pytest.mark.parametrize("edition", EDITIONS)
def test_a_field_says_whether_its_text_may_be_other_than_utf_8(
    edition: str, file: str, field: str, lenient: bool, rig: Rig
) -> None:
    text = EDITION.format(
        edition=edition,
        imports=JAVA if "java" in file + field else "",
        file=f"option {file};" if file else "",
        field=f"[{field}]" if field else "",
    )
    rig = rig.of(class_descriptor_set(Schema(compiled(text, **BROUGHT)).find("M")))  # as the executors get it
    for data in ("0a02ff41", "1202ff41", "1a02ff41", "2a040a02ff41"):
        message = bytes.fromhex(data)
        if not lenient:
            with pytest.raises(ProtobufDataError, match="MALFORMED_PROTOBUF_MESSAGE"):
                rig.row("M", message)
            continue
        assert "\ufffdA" in str(rig.row("M", message))
    with pytest.raises(ProtobufDataError, match="MALFORMED_PROTOBUF_MESSAGE"):  # never in a map, as in Java
        rig.row("M", bytes.fromhex("32060a02ff411200"))
    kind = pa.struct([("s", pa.string()), ("l", pa.list_(pa.string()))])
    assert rig.encode("M", [{"s": "\u017c", "l": ["a", ""]}], kind) == [bytes.fromhex("0a02c5bc 120161 1200")]


ENUMS = """edition = "2023"; {imports} {file} enum Open {{ A = 0; B = 1; }}
enum Closed {{ option features.enum_type = CLOSED; X = 1; Y = 2; }}
message M {{ Open open = 1 {field}; repeated Open list = 2 {field}; Closed closed = 3; map<string, Open> m = 4 {field};
}}"""


@pytest.mark.parametrize(("file", "field"), [("", ""), ("true", ""), ("", "true"), ("true", "false")])
def test_an_enum_is_closed_for_a_field_that_says_so(file: str, field: str, rig: Rig) -> None:
    name = "features.(pb.java).legacy_closed_enum"
    text = ENUMS.format(
        imports=JAVA if file + field else "",
        file=f"option {name} = {file};" if file else "",
        field=f"[{name} = {field}]" if field else "",
    )
    rig = rig.of(class_descriptor_set(Schema(compiled(text, **BROUGHT)).find("M")))
    if (field or file) == "true":
        with pytest.raises(ProtobufDataError, match="MISMATCH"):
            rig.row("M", bytes.fromhex("0809"))
        with pytest.raises(ProtobufDataError, match="MISMATCH"):
            rig.row("M", bytes.fromhex("1009"))
    else:
        row = rig.row("M", bytes.fromhex("0809 1009 2205 0a0161 1009"))
        assert (row["open"], row["list"]) == ("UNKNOWN_ENUM_VALUE_Open_9", ["UNKNOWN_ENUM_VALUE_Open_9"])
        assert dict(row["m"]) == {"a": "UNKNOWN_ENUM_VALUE_Open_9"}
    with pytest.raises(ProtobufDataError, match="MISMATCH"):
        rig.row("M", bytes.fromhex("1809"))


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("at", ["file", "field"])
def test_presence_packing_and_groups_are_those_of_the_field(edition: str, at: str, rig: Rig) -> None:
    features = {
        "n": "features.field_presence = IMPLICIT",
        "r": "features.repeated_field_encoding = EXPANDED",
        "g": "features.message_encoding = DELIMITED",
    }
    file, field = ("".join(f"option {one};" for one in features.values()), dict.fromkeys(features, ""))
    if at == "field":
        file, field = "", {name: f"[{one}]" for name, one in features.items()}
    text = f"""edition = "{edition}"; {file} message M {{ int32 n = 1 {field["n"]}; repeated int32 r = 2 {field["r"]};
      M2 g = 3 {field["g"]}; repeated M2 l = 4 {field["g"]}; map<string, M2> m = 5; }} message M2 {{ int32 x = 1; }}"""
    rig = rig.of(compiled(text))
    kind = rig.type("M")
    message = filled(kind(), {"n": 0, "r": [1, 2], "g": {"x": 3}, "l": [{"x": 4}], "m": {"k": {"x": 5}}})
    assert message.SerializeToString() == bytes.fromhex("10011002 1b08031c 23080424 2a070a016b12020805")
    row = rig.row("M", message)
    assert row == {"n": None, "r": [1, 2], "g": {"x": 3}, "l": [{"x": 4}], "m": [("k", {"x": 5})]}
    rig.again("M", [message, kind(n=5)])


def test_a_field_that_its_features_require_must_be_there(rig: Rig) -> None:
    text = 'edition = "2023"; message M { int32 n = 1 [features.field_presence = LEGACY_REQUIRED]; int32 o = 2; }'
    rig = rig.of(compiled(text))
    assert rig.row("M", b"\x08\x05") == {"n": 5, "o": None}
    with pytest.raises(ProtobufDataError, match="missing required fields: n"):
        rig.row("M", b"\x10\x05")
