"""How much of what is there a batch takes: pure functions over offsets, with the arithmetic of Spark's own source."""

from __future__ import annotations

import math
from collections.abc import Mapping

from connectors.kafka.offsets import Offsets, TopicPartition

__all__ = ["delays_batch", "new_offsets", "rate_limited"]


def _sizes(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], new: Mapping[TopicPartition, int]
) -> Offsets:
    """How many offsets each partition has, where it has any.

    Args:
        start: where the batch begins.
        end: the latest offsets.
        new: where partitions begin that are not in ``start``.
    """
    found: Offsets = {}
    for each, until in end.items():
        begin = start.get(each, new.get(each))
        if begin is not None and until > begin:
            found[each] = until - begin
    return found


def new_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], new: Mapping[TopicPartition, int]
) -> int:
    """How many offsets there are in all; arguments as of `rate_limited`."""
    return sum(_sizes(start, end, new).values())


def rate_limited(
    limit: int,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    new: Mapping[TopicPartition, int],
) -> Offsets:
    """Where a batch ends that takes about ``limit`` offsets, shared in proportion to what each partition has.

    A share below one is rounded up, so that no partition starves, and any other down: a batch may be larger than the
    limit by up to one offset for each partition.

    Args:
        limit: offsets in all.
        start: where the batch begins.
        end: the latest offsets.
        new: where partitions begin that are not in ``start``.
    """
    sizes = _sizes(start, end, new)
    total = sum(sizes.values())
    if total <= 0:
        return dict(end)
    found: Offsets = {}
    for each, until in end.items():
        if each not in sizes:
            found[each] = until
            continue
        begin = start.get(each, new.get(each, 0))
        share = limit * (sizes[each] / total)
        found[each] = min(until, begin + (math.ceil(share) if share < 1 else math.floor(share)))
    return found


def delays_batch(minimum: int, delay_seconds: float, available: int, now: float, last_batch: float | None) -> bool:
    """Whether a batch waits for more.

    Args:
        minimum: offsets that must be new.
        delay_seconds: the longest wait since the last batch.
        available: offsets that are new.
        now: seconds of any clock.
        last_batch: when the last batch was made, by the same clock; None before the first, which never waits.
    """
    return last_batch is not None and now - last_batch < delay_seconds and available < minimum
