"""Options, engines, errors and plans of the calls, without Spark."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyspark
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.errors import AnalysisException
from pyspark.sql.pandas.types import to_arrow_type

from connectors.core.errors import OptionError
from connectors.protobuf import from_protobuf, to_protobuf
from connectors.protobuf.errors import CONDITIONS, ProtobufAnalysisError, analysis_error, data_error
from connectors.protobuf.functions import _needed_files
from connectors.protobuf.options import ProtobufOptions, parse_protobuf_options
from connectors.protobuf.schema.descriptors import Schema, class_descriptor_set, well_known_message
from connectors.protobuf.schema.plan import compile_plan, select_fields
from connectors.protobuf.upb.decoder import UpbDecoder
from connectors.protobuf.worker import DecodeCall, Engine, binary_column
from tests.support.protobuf_rig import Rig, compiled, descriptors


def test_error_texts_are_those_of_spark() -> None:
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-common-utils_*.jar")
    with ZipFile(jar) as archive:
        spark = json.loads(archive.read("error/error-conditions.json"))
    assert {code: ("\n".join(spark[code]["message"]), spark[code]["sqlState"]) for code in CONDITIONS} == CONDITIONS


def test_an_error_is_spark_s_analysis_exception_and_survives_pickle() -> None:
    error = analysis_error("PROTOBUF_MESSAGE_NOT_FOUND", messageName="M", where="here", action="Do that.")
    assert isinstance(error, AnalysisException)
    assert error.getCondition() == "PROTOBUF_MESSAGE_NOT_FOUND"
    assert error.getSqlState() == "42K0G"
    assert error.getMessageParameters() == {"messageName": "M"}
    text = "[PROTOBUF_MESSAGE_NOT_FOUND] Unable to locate Message M in Descriptor. SQLSTATE: 42K0G (here). Do that."
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text
    other = data_error("MALFORMED_PROTOBUF_MESSAGE", failFastMode="FAILFAST")
    assert str(pickle.loads(pickle.dumps(other))) == str(other)


def test_option_names_are_taken_in_any_case_and_unknown_ones_are_refused() -> None:
    parsed = parse_protobuf_options({"EMIT.Default.Values": "TRUE", "Recursive.Fields.Max.Depth": "3"}, "from_protobuf")
    assert parsed.emit_default_values
    assert parsed.recursive_fields_max_depth == 3
    assert parse_protobuf_options(None, "from_protobuf") == ProtobufOptions()
    with pytest.raises(OptionError, match=r"emit\.default\.values"):
        parse_protobuf_options({"emit.defaults": "true"}, "from_protobuf")
    with pytest.raises(OptionError, match=r"on\.error.*PERMISSIVE"):
        parse_protobuf_options({"on.error": "column"}, "from_protobuf")
    with pytest.raises(OptionError, match="OPTION_ILLEGAL"):
        parse_protobuf_options({"enums.as.ints": "yes"}, "from_protobuf")


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


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.binary(), pa.map_(pa.string(), pa.string()), pa.null()])
@pytest.mark.parametrize("engine", [Engine.PYTHON, Engine.AUTO])
def test_a_column_that_is_no_struct_is_an_error_that_says_so(engine: Engine, kind: pa.DataType) -> None:
    with pytest.raises(ProtobufAnalysisError, match=r"^\[UNABLE_TO_CONVERT_TO_PROTOBUF_MESSAGE_TYPE\]") as caught:
        Rig(engine).encode("Basic", [None], kind)
    assert "(the column is not a STRUCT). Put the columns of the message into one" in str(caught.value)


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


@pytest.mark.parametrize("function", [from_protobuf, to_protobuf])
def test_a_java_class_needs_spark_s_own_function(function: object) -> None:
    with pytest.raises(ProtobufAnalysisError, match=r"^\[CANNOT_LOAD_PROTOBUF_CLASS\] .*com\.example\.Event"):
        function("value", "com.example.Event")  # type: ignore[operator]
    with pytest.raises(ProtobufAnalysisError, match="messageName, or messageClass"):
        function("value")  # type: ignore[operator]


def test_engines_that_cannot_be_had_are_errors() -> None:
    data = descriptors("behaviours")
    with pytest.raises(ProtobufAnalysisError, match=r"PROTOBUF_ENGINE.*auto, python, fast, jvm"):
        from_protobuf("value", "Basic", binaryDescriptorSet=data, engine="rust")
    with pytest.raises(ProtobufAnalysisError, match="PROTOBUF_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE"):
        from_protobuf("value", "Basic", binaryDescriptorSet=data, engine="jvm")
    with pytest.raises(ProtobufAnalysisError, match=r"PROTOBUF_ENGINE.*fields"):
        from_protobuf("value", "Basic", binaryDescriptorSet=data, engine="jvm", fields=["id"])


def test_fields_keep_some_columns_in_the_order_given() -> None:
    rig = Rig(Engine.AUTO)
    plan = compile_plan(rig.schema.find("Basic"), rig.schema, rig.call("Basic").options)
    assert select_fields(plan, ["color", "id"]).spark_type.simpleString() == "struct<color:string,id:bigint>"
    with pytest.raises(ProtobufAnalysisError, match=r"PROTOBUF_FIELD_MISSING.*id, text, color"):
        select_fields(plan, ["name"])
    call = rig.call("Basic")
    some = DecodeCall(call.descriptors, call.message, call.options, ("color", "id"), call.engine)
    data = [rig.type("Basic")(id=1, text="t", color="BLUE").SerializeToString(), None]
    assert some(pa.array(data, pa.binary())).to_pylist() == [{"color": "BLUE", "id": 1}, None]


def test_a_column_that_is_not_binary_is_refused() -> None:
    with pytest.raises(ProtobufAnalysisError, match=r"^\[DATATYPE_MISMATCH\].*requires the BINARY type"):
        binary_column(pa.array(["text"]), "from_protobuf")
    assert binary_column(pa.chunked_array([pa.array([b"a"])]), "from_protobuf").to_pylist() == [b"a"]


@pytest.mark.parametrize("options", [{}, {"upcast.unsigned.ints": "true"}, {"unwrap.primitive.wrapper.types": "true"}])
@pytest.mark.parametrize("message", ["Scalars", "Lists", "Maps", "Times", "Unsigned", "Wrappers", "NestedEnums"])
def test_arrow_types_are_the_ones_that_spark_translates_to(message: str, options: dict[str, str]) -> None:
    rig = Rig(Engine.AUTO)
    plan = compile_plan(rig.schema.find(message), rig.schema, rig.call(message, options).options)
    assert plan.arrow_type == to_arrow_type(plan.spark_type, timezone="UTC")
    assert rig.raw(message, [b""], options).values.type == plan.arrow_type


def test_names_of_fields_that_are_methods_or_keywords() -> None:
    for engine in (Engine.PYTHON, Engine.FAST):
        rig = Rig(engine)
        data = bytes.fromhex("0a0161 1005 1a0162")
        row = {"Clear": "a", "class": 5, "SerializeToString": "b"}
        assert rig.row("Names", data) == row
        kind = pa.struct([(name, pa.int32() if name == "class" else pa.string()) for name in row])
        assert rig.encode("Names", [row], kind) == [data]


def test_a_raw_confluent_frame_gives_an_error_that_says_so() -> None:
    rig = Rig(Engine.AUTO)
    by_guid = b"\x01" + bytes(range(16)) + b"\x00"
    assert "Confluent" in rig.rows("Basic", [by_guid], {"mode": "PERMISSIVE", "on.error": "column"})[0]["error"]
    frame = b"\x00\x00\x00\x00\x07\x00" + rig.type("Basic")(id=1).SerializeToString()
    with pytest.raises(Exception, match="It starts with a Confluent frame") as caught:
        rig.rows("Basic", [frame])
    assert "pass schemaRegistry=..." in str(caught.value)
    [row] = rig.rows("Basic", [frame], {"mode": "PERMISSIVE", "on.error": "column"})
    assert "It starts with a Confluent frame" in row["error"]


def test_a_call_travels_as_a_pickle_of_bytes_and_options() -> None:
    rig = Rig(Engine.AUTO)
    call = rig.call("Basic")
    again = pickle.loads(pickle.dumps(call))
    assert again == call
    assert again(pa.array([b"\x08\x01"])).to_pylist()[0]["id"] == 1


def test_workers_load_no_pydantic() -> None:
    code = "import sys, connectors.protobuf.worker; print(sorted(set(sys.modules) & {'pydantic', 'typer', 'rich'}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_choice_of_an_engine_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(Engine.AUTO)
    assert not isinstance(rig.call("Basic").decoder, UpbDecoder)
    with (
        caplog.at_level(logging.INFO, "connectors.protobuf"),
        pytest.raises(Exception, match=r"active|SparkContext|JVM"),
    ):
        from_protobuf("value", "Basic", binaryDescriptorSet=rig.data)
    assert "from_protobuf of behaviours.Basic by the engine auto (fast for large batches)" in caplog.text


COMPANY = compiled(
    'syntax = "proto3"; import "money.proto"; import public "common.proto"; message Order { Money total = 1; }',
    money='syntax = "proto3"; import "currency.proto"; message Money { Currency currency = 1; int64 units = 2; }',
    currency='syntax = "proto3"; enum Currency { NONE = 0; EUR = 1; }',
    common='syntax = "proto3"; message Common { int32 id = 1; }',
)


def of_a_company(*, files: int) -> bytes:
    """The descriptor set above amid others that it does not need."""
    found = FileDescriptorSet()
    for number in range(files):
        found.file.add(name=f"other{number}.proto", syntax="proto3").message_type.add(name=f"Other{number}")
    found.MergeFromString(COMPANY)
    return found.SerializeToString()


def test_of_a_large_descriptor_set_the_files_that_the_message_needs_are_sent() -> None:
    data = of_a_company(files=50)
    sent = _needed_files(data, "Order", ProtobufOptions())
    names = {file.name for file in FileDescriptorSet.FromString(sent).file}
    assert names == {"main.proto", "money.proto", "currency.proto", "common.proto"}
    wire = pa.array([b"\x0a\x04\x08\x01\x10\x07"])
    calls = [DecodeCall(each, "Order", ProtobufOptions(), None, Engine.PYTHON) for each in (data, sent)]
    assert [call(wire).to_pylist() for call in calls] == [[{"total": {"currency": "EUR", "units": 7}}]] * 2


@pytest.mark.parametrize("options", [{"extensions": True}, {"convert_any_fields_to_json": True}])
def test_all_files_are_sent_where_any_of_them_may_be_needed(options: dict[str, bool]) -> None:
    data = of_a_company(files=5)
    assert _needed_files(data, "Order", replace(ProtobufOptions(), **options)) == data
