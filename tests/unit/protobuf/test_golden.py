"""The golden corpus: each answer says where its truth comes from, and all codecs give it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.protobuf_cases import CASES, Case
from tests.golden.protobuf_record import CORPUS, differences, ours
from tests.support.protobuf_rig import Rig

ANSWERS: dict[str, dict[str, Any]] = {each["name"]: each for each in json.loads(CORPUS.read_text())}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_answer_is_the_recorded_one(case: Case, rig: Rig) -> None:
    assert ours(case, rig) == {key: value for key, value in ANSWERS[case.name].items() if key not in {"name", "source"}}


def test_every_answer_says_where_its_truth_comes_from() -> None:
    assert list(ANSWERS) == [case.name for case in CASES]
    assert {each["source"].partition(":")[0] for each in ANSWERS.values()} == {"jvm 3.4.1", "ours on purpose", "read"}
    assert [name for name, each in ANSWERS.items() if each["source"].startswith("ours")] == [
        case.name for case in CASES if case.differs
    ]
    # What an old Spark can be asked, it was asked.
    assert [name for name, each in ANSWERS.items() if each["source"] == "read"] == [
        case.name for case in CASES if not case.jvm
    ]


def test_a_difference_is_found() -> None:
    mine = {"schema": "struct<a:int>", "rows": [{"a": 1}, {"error": "MALFORMED"}]}
    assert differences(mine, {"schema": "struct<a:int>", "rows": [{"a": 1}, {"error": "other"}]}) == []
    assert len(differences(mine, {"schema": "struct<a:bigint>", "rows": [{"a": 2}, {"a": 3}]})) == 3
