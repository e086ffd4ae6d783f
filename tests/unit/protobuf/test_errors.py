"""The classes, texts and SQL states of errors are those of Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyspark
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from pyspark.errors import AnalysisException

from connectors.core.errors import ConnectorError
from connectors.protobuf.errors import CONDITIONS, analysis_error, data_error
from connectors.protobuf.schema.descriptors import Schema
from connectors.protobuf.worker import Engine
from tests.support.hostile_answers import FORGED
from tests.support.protobuf_rig import Rig, compiled

NAME = FORGED.replace("\ud800", "")


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


@pytest.mark.parametrize("make", [analysis_error, data_error])
def test_what_a_descriptor_says_cannot_control_a_terminal_or_forge_a_line_of_a_log(
    make: Callable[..., ConnectorError],
) -> None:
    code = "PROTOBUF_DEPENDENCY_NOT_FOUND"
    error = make(code, dependencyName=FORGED, where=FORGED, action="Do that.")
    for shown in (error, pickle.loads(pickle.dumps(error))):
        for text in (str(shown), *(getattr(shown, "getMessageParameters", dict)() or {}).values()):
            assert "forged" in text
            assert all(each.isprintable() for each in text), ascii(text)


def test_the_name_of_a_file_in_a_descriptor_set_is_shown_clean() -> None:
    for text in (f"a{NAME}", NAME):
        one = FileDescriptorProto(name=text, syntax="proto3", dependency=[f"b{NAME}"])
        for data in (one.SerializeToString(), FileDescriptorSet(file=[one]).SerializeToString()):
            with pytest.raises(ConnectorError) as caught:
                Schema(data)
            assert str(caught.value).isprintable(), ascii(str(caught.value))


@pytest.mark.parametrize("name", ["main.proto", "other.proto", "shop", "proto3", "Basic", "number", "Number"])
def test_a_name_in_a_descriptor_set_that_is_no_utf_8_is_named(name: str) -> None:
    text = 'syntax = "proto3"; package shop; import "other.proto"; message Basic { string number = 1; } '
    whole = compiled(text + "enum Kind { Number = 0; }", other='syntax = "proto3";')
    assert name.encode() in whole
    data = whole.replace(name.encode(), name[:-1].encode() + b"\xff")
    with pytest.raises(ConnectorError, match="CANNOT_PARSE_PROTOBUF_DESCRIPTOR") as caught:
        rows(data)
    assert str(caught.value).isprintable()


def rows(data: bytes) -> list[object]:
    return Rig(Engine.PYTHON, data).rows("Basic", [b"\x0a\x01x"])


@pytest.mark.parametrize("old", [b"value", b"key"])
def test_an_entry_of_a_map_that_is_none_is_named(old: bytes) -> None:
    whole = compiled('syntax = "proto3"; message Basic { map<string, int32> m = 1; }')
    data = whole.replace(old, old[:-1] + b"x")
    with pytest.raises(
        ConnectorError, match=r"CANNOT_PARSE_PROTOBUF_DESCRIPTOR.*Basic.MEntry is not an entry of a map"
    ):
        rows(data)
    kind = pa.struct([("m", pa.map_(pa.string(), pa.int32()))])
    with pytest.raises(
        ConnectorError, match=r"CANNOT_PARSE_PROTOBUF_DESCRIPTOR.*Basic.MEntry is not an entry of a map"
    ):
        Rig(Engine.PYTHON, data).encode("Basic", [{"m": {"a": 1}}], kind)
