"""How far a stream is behind its shards, from the offsets in Spark's progress reports.

Sequence numbers have gaps, so they say whether records lie ahead and not how many. The times of arrival say how far a
shard is behind: what ``MillisBehindLatest`` is in the answers of the service.
"""

from __future__ import annotations

from typing import Any, Final

from connectors.core.datasource import PartitionLag, as_object
from connectors.core.errors import OffsetError
from connectors.kinesis.offsets import NEW, ShardState, Streams, StreamState, read_offset
from connectors.kinesis.shards import is_behind

__all__ = ["source_lag"]


_NOTHING: Final = StreamState(0)


def source_lag(end: Any, latest: Any) -> dict[str, PartitionLag] | None:
    """How far each shard is behind, by ``stream/shard``; None if the offsets are not of Kinesis.

    Records are 0 for a shard of which nothing is left, and None where something is; shards read to their end are left
    out. Milliseconds are between the last record that was read, or the last look that found nothing more, and the
    newest.

    Args:
        end: the end offset that a progress report gives for a source.
        latest: the latest offset that it gives.
    """
    reached, newest = _streams(end), _streams(latest)
    if reached is None:
        return None
    return {
        f"{arn.rpartition('/')[2]}/{shard}": lag
        for arn, stream in sorted(reached.items())
        for shard, lag in _of_stream(stream, (newest or {}).get(arn, _NOTHING)).items()
    }


def _of_stream(reached: StreamState, newest: StreamState) -> dict[str, PartitionLag]:
    known = [state.known_ms for state in reached.shards.values() if not state.ended and state.known_ms is not None]
    # A shard of which nothing was read waits for its parents, which are no further than the furthest behind.
    oldest_ms = min(known, default=None)
    newest_ms = max((state.arrival_ms for state in newest.shards.values() if state.arrival_ms is not None), default=0)
    found = {}
    for shard in sorted(reached.shards.keys() | newest.shards.keys()):
        state, seen = reached.shards.get(shard, NEW), newest.shards.get(shard)
        if state.ended or (seen is None and shard not in reached.shards):
            continue
        if seen is None or not _lies_ahead(state, seen):
            found[shard] = PartitionLag(0, 0)
            continue
        begin_ms = oldest_ms if state.known_ms is None else state.known_ms
        # Of a shard that was closed the time of its newest record is not kept; its children have newer ones.
        end_ms = newest_ms if seen.arrival_ms is None else seen.arrival_ms
        found[shard] = PartitionLag(None, 0 if begin_ms is None else max(0, end_ms - begin_ms))
    return found


def _lies_ahead(state: ShardState, seen: ShardState) -> bool:
    """Whether something was seen behind what was read."""
    return seen.ended or (seen.position.number > 0 and is_behind(state.position, seen.position.number))


def _streams(offset: Any) -> Streams | None:
    """The states that an offset holds; None if it is not of Kinesis."""
    try:
        return read_offset(as_object(offset) or {"v": None})
    except OffsetError:
        return None
