"""How far a stream is behind its topics, from Spark's progress events.

    behind = offsets_behind(query.lastProgress)[0]      # {"orders": {0: 12, 1: 0}}
    summary = summarize(behind)                         # min, max and average, as Spark's own source reports them

A source in Python cannot report metrics of its own; it reports its latest offsets, and the rest follows from these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors.core.datasource import as_object
from connectors.core.errors import OffsetError
from connectors.kafka.offsets import Offsets, read_offset, record_times

__all__ = ["LagSummary", "offsets_behind", "source_lag", "summarize"]


@dataclass(frozen=True, slots=True)
class LagSummary:
    """Offsets behind the latest, over all partitions; named as in the metrics of Spark's own source."""

    minOffsetsBehindLatest: int  # noqa: N815 - Spark's names
    maxOffsetsBehindLatest: int  # noqa: N815
    avgOffsetsBehindLatest: float  # noqa: N815


def offsets_behind(progress: Any) -> list[dict[str, dict[int, int]]]:
    """Return the offsets that each source of a query has not read yet, by topic and partition.

    ``progress`` is a ``StreamingQueryProgress``, as ``query.lastProgress`` has it, or its JSON as a text or object. A
    source that is not of Kafka, or has reported nothing yet, has none.
    """
    value: Any = progress if isinstance(progress, str | Mapping) else progress.json
    content = json.loads(value) if isinstance(value, str) else value
    return [_behind(source.get("endOffset"), source.get("latestOffset")) for source in content["sources"]]


def _behind(end: Any, latest: Any) -> dict[str, dict[int, int]]:
    reached, newest = _positions(end), _positions(latest)
    behind: dict[str, dict[int, int]] = {}
    for partition, offset in sorted(newest.items()):
        if partition in reached:
            behind.setdefault(partition.topic, {})[partition.partition] = max(0, offset - reached[partition])
    return behind


def _positions(offset: Any) -> Offsets:
    """Return the positions of an offset, which events hold as an object or as text; none if it is not of Kafka."""
    try:
        return read_offset(offset if isinstance(offset, str | Mapping) else {})
    except OffsetError:
        return {}


def source_lag(end: Any, latest: Any) -> dict[str, tuple[int, int, int | None]] | None:
    """Return the lag by partition; None for offsets not of Kafka.

    That is the next offset to read, the one after the newest, and the timestamp of the first unread record, in
    milliseconds since 1970; None where it is not known.
    """
    reached, newest, times = _positions(end), _positions(latest), record_times(as_object(latest))
    return {
        str(partition): (offset, max(offset, newest.get(partition, offset)), times.get(partition))
        for partition, offset in sorted(reached.items())
    } or None


def summarize(behind: Mapping[str, Mapping[int, int]]) -> LagSummary | None:
    """Return the smallest, largest and average lag of a source's partitions; None if it has none."""
    values = [lag for partitions in behind.values() for lag in partitions.values()]
    return LagSummary(min(values), max(values), sum(values) / len(values)) if values else None
