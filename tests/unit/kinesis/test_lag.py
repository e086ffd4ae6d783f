"""Lag by shard, from the offsets in progress reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.core.datasource import PartitionLag
from connectors.kinesis.lag import source_lag
from connectors.kinesis.offsets import END, TRIM, ShardState, StreamState, after, at_time, end_offset

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"


def offset(**shards: ShardState) -> dict[str, Any]:
    return end_offset({ARN: StreamState(1, shards)})


def lag(end: Any, latest: Any) -> dict[str, PartitionLag]:
    """The lag by shard, as of progress reports that hold text."""
    found = source_lag(json.dumps(end), json.dumps(latest))
    assert found is not None
    return {name.removeprefix("orders/"): each for name, each in found.items()}


def test_a_shard_that_is_read_to_its_newest_record_has_no_lag() -> None:
    state = ShardState(after(7), 1000)
    assert lag(offset(a=state), offset(a=state)) == {"a": PartitionLag(0, 0)}
    assert lag(offset(a=ShardState(after(7), 1000, 9000)), offset(a=state)) == {"a": PartitionLag(0, 0)}


def test_a_shard_is_behind_by_the_time_between_its_last_and_its_newest_record() -> None:
    newest = offset(a=ShardState(after(100), 5000))
    assert lag(offset(a=ShardState(after(99), 1000)), newest) == {"a": PartitionLag(None, 4000)}
    assert lag(offset(a=ShardState(after(99), 1000, 4000)), newest) == {"a": PartitionLag(None, 1000)}
    assert lag(offset(a=ShardState(at_time(2000))), newest) == {"a": PartitionLag(None, 3000)}
    assert lag(offset(a=ShardState(at_time(2000))), offset(a=ShardState())) == {"a": PartitionLag(0, 0)}


def test_shards_of_a_split_are_behind_as_far_as_the_shard_that_is_read() -> None:
    reached = offset(parent=ShardState(after(9), 1000), other=ShardState(after(9), 3000))
    newest = offset(parent=ShardState(END), other=ShardState(after(9), 3000), child=ShardState(after(90), 6000))
    assert lag(reached, newest) == {
        "child": PartitionLag(None, 5000),
        "other": PartitionLag(0, 0),
        "parent": PartitionLag(None, 5000),
    }
    assert lag(offset(parent=ShardState(END), child=ShardState(after(90), 6000)), newest)["child"].milliseconds == 0


def test_nothing_is_known_of_the_start_and_the_newest() -> None:
    assert lag(offset(a=ShardState(TRIM)), offset(a=ShardState(after(3), 5000))) == {"a": PartitionLag(None, 0)}
    assert source_lag(offset(a=ShardState(after(3), 5000)), None) == {"orders/a": PartitionLag(0, 0)}


@pytest.mark.parametrize("other", [{"orders": {"0": 3}, "v": 1}, {"position": 5, "v": 1}, "None", None, 17])
def test_offsets_of_another_source_are_left_to_others(other: Any) -> None:
    assert source_lag(other, other) is None
