"""The classes, texts and SQL states of errors are those of Spark."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from zipfile import ZipFile

import pyspark
from pyspark.errors import AnalysisException

from connectors.protobuf.errors import CONDITIONS, analysis_error, data_error


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
