"""Offsets and positions of the Kinesis source, as text and as numbers: pure functions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core.errors import OffsetError
from connectors.core.offsets import SENTINEL, ordered
from connectors.kinesis.offsets import (
    END,
    NEW,
    TRIM,
    Position,
    ShardState,
    StreamState,
    after,
    at,
    at_time,
    end_offset,
    read_offset,
    resolved_start,
)
from connectors.kinesis.shards import (
    is_after,
)

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"


def state(**shards: ShardState) -> StreamState:
    return StreamState(1, shards)


def read_to(number: int, arrival_ms: int | None = None, clean_ms: int | None = None) -> ShardState:
    return ShardState(after(number), arrival_ms, clean_ms)


ENDED = ShardState(END)

# Offsets


def test_01_numbers_are_compared_as_integers() -> None:
    assert is_after(after(99), 100)
    assert not is_after(after(100), 99)
    assert is_after(at(100), 100)
    assert not is_after(after(10**40), 10**40)


def test_an_offset_says_the_same_after_a_round_trip_and_holds_no_other_numbers() -> None:
    streams = {
        ARN: state(
            a=read_to(10**55, 5, 6),
            b=ENDED,
            c=ShardState(at_time(7)),
            d=NEW,
            e=ShardState(at(3)),
            f=ShardState(TRIM, None, 8),
        )
    }
    text = json.dumps(ordered(end_offset(streams, {ARN: state(a=NEW)})))
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert read_offset(text) == streams
    assert resolved_start(text) == {ARN: state(a=NEW)}


@pytest.mark.parametrize(
    "offset",
    [
        {"v": 1},
        {"v": 1, "streams": {ARN: {"shards": {}}}},
        {"v": 1, "streams": {ARN: {"created": "1", "shards": {}}}},
        {"v": 1, "streams": {ARN: {"created": 1, "shards": {"a": {"p": "AFTER"}}}}},
        {"v": 1, "streams": {ARN: {"created": 1, "shards": {"a": {"p": "AFTER:x"}}}}},
        {"v": 1, "streams": {ARN: {"created": 1, "shards": {"a": {"p": "LATEST"}}}}},
        {"v": 1, "streams": {ARN: {"created": 1, "shards": {"a": {"p": "TRIM", "more": 1}}}}},
        {"v": 2, "streams": {}},
        dict(SENTINEL),
        {"orders": {"0": 1}},
        "no json",
    ],
)
def test_an_offset_of_another_source_or_version_is_refused(offset: object) -> None:
    with pytest.raises(OffsetError):
        read_offset(offset)  # type: ignore[arg-type]


@given(st.integers(0, 10**56))
def test_a_position_is_read_as_it_was_written(number: int) -> None:
    for position in (after(number), at(number), at_time(number % 253_402_300_800_000), TRIM, END):
        assert Position.parse(str(position)) == position


@pytest.mark.parametrize("number", [-1, True, 3.9, "1", 10**15, None])
@pytest.mark.parametrize("key", ["ts", "clean", "created"])
def test_a_time_that_is_none_of_the_service_is_refused(key: str, number: object) -> None:
    shard = {"p": "AFTER:7", "ts": 1, "clean": 2}
    stream = {"created": 1, "shards": {"a": shard}}
    (stream if key == "created" else shard)[key] = number  # type: ignore[index]
    with pytest.raises(OffsetError, match="OFFSET_MALFORMED"):
        read_offset({"v": 1, "streams": {ARN: stream}})
