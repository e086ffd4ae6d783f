"""How far a query is behind each shard, by the offsets in Spark's progress reports.

Sequence numbers have gaps, so they cannot count records. Times of arrival give the delay, as ``MillisBehindLatest``
does.
"""

from __future__ import annotations

from typing import Any

from connectors.core.datasource import PartitionLag, as_object
from connectors.core.errors import OffsetError
from connectors.kinesis.offsets import NEW, Streams, StreamState, read_offset
from connectors.kinesis.shards import is_after


def source_lag(end: Any, latest: Any) -> dict[str, PartitionLag] | None:
    """Return how far each shard is behind, by ``stream/shard``; None if the offsets are not of Kinesis.

    Records are 0 for a shard of which nothing is left, and None where something is; shards read to their end are left
    out. Milliseconds are between the last record read, or the last poll that found nothing more, and the newest.
    """
    reached, newest = _streams(end), _streams(latest)
    if reached is None:
        return None
    return {
        f"{arn.rpartition('/')[2]}/{shard}": lag
        for arn, stream in sorted(reached.items())
        for shard, lag in _of_stream(stream, (newest or {}).get(arn, StreamState(0))).items()
    }


def _of_stream(reached: StreamState, newest: StreamState) -> dict[str, PartitionLag]:
    complete = [one.complete_ms for one in reached.shards.values() if not one.ended and one.complete_ms is not None]
    # A shard of which nothing was read waits for its parents, which are no further than the furthest behind.
    oldest_ms = min(complete, default=None)
    newest_ms = max((state.arrival_ms for state in newest.shards.values() if state.arrival_ms is not None), default=0)
    lags = {}
    for shard in sorted(reached.shards.keys() | newest.shards.keys()):
        state, seen = reached.shards.get(shard, NEW), newest.shards.get(shard)
        if state.ended:
            continue
        if seen is None or not (seen.ended or is_after(state.position, seen.position.number or None)):
            lags[shard] = PartitionLag(0, 0)
            continue
        begin_ms = oldest_ms if state.complete_ms is None else state.complete_ms
        # Of a shard that was closed the offset does not have the time of the newest record; its children have newer.
        end_ms = newest_ms if seen.arrival_ms is None else seen.arrival_ms
        lags[shard] = PartitionLag(None, 0 if begin_ms is None else max(0, end_ms - begin_ms))
    return lags


def _streams(offset: Any) -> Streams | None:
    try:
        return read_offset(as_object(offset) or {"v": None})
    except OffsetError:
        return None
