"""What `from_avro` gives, against the recorded answers of Spark's own: types, unions, resolution, garbage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.options import parse_avro_options
from connectors.avro.schema.parser import parse_schema
from connectors.avro.schema.types import spark_type
from tests.support.avro_cases import CASES, DIFFERENT, Case, plain
from tests.support.avro_rig import decoders

ANSWERS = json.loads((Path(__file__).parents[2] / "golden/avro/spark.json").read_text(encoding="utf-8"))["answers"]


@pytest.mark.parametrize("kind", ["rows", "columns"])
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_the_answers_are_those_of_spark(case: Case, kind: str) -> None:
    name, writer, reader, messages, options = case
    options = {"mode": "PERMISSIVE", **options}
    expected = parse_schema(json.dumps(writer if reader is None else reader), "test")
    assert spark_type(expected, parse_avro_options(options, "test")).simpleString() == ANSWERS[name]["type"]
    decoded = decoders(writer, reader, options)[kind].decode(pa.array(messages, pa.binary()))
    decoded.values.validate()
    answers = plain(ANSWERS[name]["values"])
    values = [_value(row, answer) for row, answer in zip(decoded.values, answers, strict=True)]
    assert (values == answers) == (name not in DIFFERENT)


def _value(row: pa.Scalar, answer: Any) -> Any:
    """Return a value as JSON. Of texts that are no UTF-8, Spark's answer has replacement characters."""
    try:
        return plain(row.as_py())
    except UnicodeDecodeError:
        assert "\ufffd" in str(answer)
        return answer


def test_each_case_has_an_answer_and_each_difference_a_case() -> None:
    names = [case[0] for case in CASES]
    assert sorted(ANSWERS) == sorted(names)
    assert len(set(names)) == len(names)
    assert DIFFERENT.keys() <= set(names)
