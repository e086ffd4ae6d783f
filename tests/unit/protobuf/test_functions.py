"""`from_protobuf` and `to_protobuf` as they are called: engines, classes, columns, and what is sent to workers."""

from __future__ import annotations

import logging
from dataclasses import replace

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from connectors.protobuf import from_protobuf, to_protobuf
from connectors.protobuf.errors import ProtobufAnalysisError
from connectors.protobuf.functions import _needed_files
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.plan import compile_plan, select_fields
from connectors.protobuf.upb.decoder import UpbDecoder
from connectors.protobuf.worker import DecodeCall, Engine
from tests.support.protobuf_rig import Rig, compiled, descriptors


@pytest.mark.parametrize("function", [from_protobuf, to_protobuf])
def test_a_java_class_needs_spark_s_own_function(function: object) -> None:
    with pytest.raises(ProtobufAnalysisError, match=r"^\[CANNOT_LOAD_PROTOBUF_CLASS\] .*com\.example\.Event"):
        function("value", "com.example.Event")  # type: ignore[operator]
    with pytest.raises(ProtobufAnalysisError, match="messageName or messageClass"):
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


def test_the_choice_of_an_engine_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(Engine.AUTO)
    assert not isinstance(rig.call("Basic").decoder, UpbDecoder)
    with (
        caplog.at_level(logging.INFO, "connectors.protobuf"),
        pytest.raises(Exception, match=r"active|SparkContext|JVM|Pandas"),
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
