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

from connectors.core.errors import OffsetError
from connectors.kafka.offsets import read_offset

__all__ = ["LagSummary", "offsets_behind", "source_lag", "summarize"]


@dataclass(frozen=True, slots=True)
class LagSummary:
    """Offsets behind the latest, over all partitions; named as in the metrics of Spark's own source."""

    minOffsetsBehindLatest: int  # noqa: N815 - Spark's names
    maxOffsetsBehindLatest: int  # noqa: N815
    avgOffsetsBehindLatest: float  # noqa: N815


def offsets_behind(progress: Any) -> list[dict[str, dict[int, int]]]:
    """The offsets that each source of a query has not read yet, by topic and partition.

    Args:
        progress: a ``StreamingQueryProgress``, what ``query.lastProgress`` gives, or its JSON as a text or an object.

    Returns:
        One for each source, in their order; empty for one that is not of Kafka or has reported nothing yet.
    """
    value: Any = progress if isinstance(progress, str | Mapping) else progress.json
    content = json.loads(value) if isinstance(value, str) else value
    return [_behind(each.get("endOffset"), each.get("latestOffset")) for each in content["sources"]]


def source_lag(end: Any, latest: Any) -> dict[str, tuple[int, int]] | None:
    """The next offset to read, and the one behind the newest, by partition; None if the offsets are not of Kafka.

    Args:
        end: the end offset that a progress report gives for a source.
        latest: the latest offset that it gives.
    """
    try:
        reached = read_offset(_plain(end))
    except OffsetError:
        return None
    if not reached:
        return None
    try:
        newest = read_offset(_plain(latest))
    except OffsetError:
        newest = {}
    return {str(where): (offset, max(offset, newest.get(where, offset))) for where, offset in sorted(reached.items())}


def _behind(end: Any, latest: Any) -> dict[str, dict[int, int]]:
    try:
        reached, newest = read_offset(_plain(end)), read_offset(_plain(latest))
    except OffsetError:
        return {}
    found: dict[str, dict[int, int]] = {}
    for where, offset in sorted(newest.items()):
        if where in reached:
            found.setdefault(where.topic, {})[where.partition] = max(0, offset - reached[where])
    return found


def _plain(offset: Any) -> Mapping[str, Any]:
    """An offset as an object; events hold it as an object or as text."""
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:  # classic sessions give the text "None" for a source that reports nothing
        value = None
    return value if isinstance(value, Mapping) else {"v": None}


def summarize(behind: Mapping[str, Mapping[int, int]]) -> LagSummary | None:
    """The smallest, largest and average lag of a source's partitions; None if it has none."""
    values = [lag for partitions in behind.values() for lag in partitions.values()]
    if not values:
        return None
    return LagSummary(min(values), max(values), sum(values) / len(values))
