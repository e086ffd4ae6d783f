"""Lag from progress events."""

from __future__ import annotations

import json
from typing import Any

from connectors.kafka.lag import LagSummary, offsets_behind, summarize


def event(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"sources": list(sources)}


def test_29_lag_by_partition_and_in_sum() -> None:
    source = {"endOffset": {"t": {"0": 1, "1": 2}, "v": 1}, "latestOffset": {"t": {"0": 3, "1": 6}, "v": 1}}
    (behind,) = offsets_behind(event(source))
    assert behind == {"t": {0: 2, 1: 4}}
    assert summarize(behind) == LagSummary(2, 4, 3.0)
    assert offsets_behind(json.dumps(event(source))) == [behind]


def test_offsets_as_text_new_partitions_and_an_end_beyond_the_latest() -> None:
    source = {"endOffset": '{"t": {"0": 9}, "v": 1}', "latestOffset": '{"t": {"0": 7, "1": 5}, "v": 1}'}
    assert offsets_behind(event(source)) == [{"t": {0: 0}}]


def test_a_source_that_is_not_of_kafka_or_has_no_offsets_has_no_lag() -> None:
    sources = [{"endOffset": {"position": 5, "v": 1}, "latestOffset": None}, {"endOffset": None}, {}]
    assert offsets_behind(event(*sources)) == [{}, {}, {}]
    assert summarize({}) is None
