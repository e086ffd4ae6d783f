"""What a checkpoint may hold, and what is refused: an altered offset never moves a query in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.core.errors import OffsetError
from connectors.kafka.offsets import Offsets, TopicPartition, end_offset, read_offset, resolved_start
from tests.support.alterations import alterations, json_text

A, B, NAMED = TopicPartition("a", 0), TopicPartition("a", 10), TopicPartition("initial", 3)
START = {A: 3, NAMED: 0}
END = {A: 5, B: 2**63 - 2, NAMED: 0}
OWN = end_offset(END, START)
SPARKS = {"a": {"0": 5, "10": 2**63 - 2}, "initial": {"3": 0}}
LONGEST = 2**63 - 1


def outcome(read: Any, offset: Any) -> Any:
    """What is read, or the code of the error."""
    try:
        return read(offset)
    except OffsetError as error:
        return error.code


def without_what_planning_checks(result: dict[TopicPartition, int], right: Offsets, done: str) -> Offsets:
    """Positions that another checkpoint can hold: `KafkaStream.partitions` compares them with what Kafka has."""
    if done == "_start = {}":  # a query that found no partitions began so
        return right
    of_own_topics = {each: at for each, at in result.items() if each.topic in {"a", "initial"}}
    return {each: right.get(each, at) if at == LONGEST else at for each, at in of_own_topics.items()}


@pytest.mark.parametrize("written", [OWN, SPARKS], ids=["own", "spark"])
@pytest.mark.parametrize("as_text", [False, True])
def test_an_altered_offset_is_the_same_positions_or_a_named_error(written: dict[str, Any], as_text: bool) -> None:
    tried = 0
    for done, altered in alterations(written):
        for read, right in ((read_offset, END), (resolved_start, START)):
            if read is resolved_start and written is SPARKS:
                continue
            tried += 1
            text = json_text(altered)
            result = outcome(read, text if as_text else json.loads(text))
            if isinstance(result, dict):
                result = without_what_planning_checks(result, right, done)
            codes = {"OFFSET_MALFORMED", "OFFSET_VERSION", "KAFKA_FIRST_BATCH_UNFINISHED"}
            assert result == right or result in codes, done
    assert tried > 80


@pytest.mark.parametrize(
    "topics",
    [
        {"a": {"0": -1}},
        {"a": {"0": -2}},
        {"a": {"0": -5}},
        {"a": {"0": True}},
        {"a": {"0": 3.9}},
        {"a": {"0": "1_0"}},
        {"a": {"0": "5"}},
        {"a": {"0": float("inf")}},
        {"a": {"0": 2**63}},
        {"a": {"0": 5, "00": 4}},
        {"a": {"+0": 5}},
        {"a": {"1_0": 5}},
        {"a": {"²": 5}},
        {"a": {str(2**31): 5}},
        {"a": {}},
        {"a": {"0": 5}, ":a": {"0": 4}},
        {"": {"0": 5}},
    ],
    ids=str,
)
def test_what_no_source_writes_is_malformed(topics: dict[str, Any]) -> None:
    for offset in ({**topics, "v": 1}, topics):
        with pytest.raises(OffsetError, match="OFFSET_MALFORMED"):
            read_offset(offset)
    with pytest.raises(OffsetError, match="OFFSET_MALFORMED"):
        resolved_start({"a": {"0": 9}, "_start": topics, "v": 1})


def test_an_offset_without_topics_is_one() -> None:
    assert read_offset({"v": 1}) == {}
    assert read_offset(end_offset({})) == {}
    assert resolved_start(end_offset({A: 5}, {})) == {}


def test_a_key_that_comes_twice_in_the_text_is_malformed() -> None:
    for text in ('{"a":{"0":5,"0":4},"v":1}', '{"a":{"0":5},"a":{"0":5},"v":1}', "[" * 100_000):
        with pytest.raises(OffsetError, match="OFFSET_MALFORMED"):
            read_offset(text)


def test_an_offset_nested_without_end_is_malformed() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = {"0": deep}
    with pytest.raises(OffsetError, match="OFFSET_MALFORMED"):
        read_offset({"a": deep, "v": 1})
    while isinstance(deep, dict):  # else its end would recurse
        deep = deep["0"]
