"""How a limit is shared among the shards of a batch: pure functions."""

from __future__ import annotations

from connectors.kinesis.offsets import (
    END,
    NEW,
    ShardState,
    after,
)
from connectors.kinesis.source.micro_batch import Share, is_within, shares


def read_to(number: int, arrival_ms: int | None = None, clean_ms: int | None = None) -> ShardState:
    return ShardState(after(number), arrival_ms, clean_ms)


ENDED = ShardState(END)


# Limits


def test_a_limit_is_shared_and_shards_furthest_behind_come_first() -> None:
    states = {"a": read_to(1, 300), "b": read_to(1, 100), "c": read_to(1, 200)}
    assert shares(states, 7, None) == dict.fromkeys("abc", Share(2, None))
    assert list(shares(states, 2, 1000)) == ["b", "c"]
    assert shares(states, 2, 1000)["b"] == Share(1, 500)


def test_what_a_shard_can_take_in_a_time_needs_no_counting() -> None:
    share = Share(5000, 10 << 20)
    assert share.span_ms == 5000
    assert is_within(read_to(1, 1000), read_to(2, 5000), share)
    assert not is_within(read_to(1, 1000), read_to(2, 5001), share)
    assert not is_within(read_to(1, 1000), ENDED, share)
    assert not is_within(NEW, read_to(2, 5000), share)
