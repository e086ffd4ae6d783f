"""A driver with one query, as Spark's listener tells of it: ``python -m tests.chaos.rigs.alert_driver PORT LIFE``.

Everything behind the listener is the product's: observer, lags, metrics over HTTP.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from connectors.observe.lag import SpoolMeasurement
from connectors.observe.prometheus import Exporter
from connectors.observe.spool_probe import SpoolWatch, SpoolWatches
from connectors.observe.watch import Observer

__all__ = ["LIVES"]

_STEP_SECONDS = 0.5
_AGE_MS = 60_000


class _FullSpool(SpoolWatch):
    """A spool with 3 GB of old messages, of which half are duplicates."""

    def __init__(self) -> None:
        self.path = "s3://spools/orders"
        self._began = time.monotonic()

    def look(self) -> SpoolMeasurement:
        """Return what a ledger would say."""
        delivered = 1_000 + int(100 * (time.monotonic() - self._began))
        return SpoolMeasurement("s1", (), delivered, delivered // 2, delivered, 0, 3_000_000_000, 2 * _AGE_MS)


def _kafka(unread: int, written_ms: int) -> dict[str, Any]:
    latest: dict[str, Any] = {"orders": {"0": 10 + unread}, "v": 1}
    if unread:
        latest["/times"] = {"orders": {"0": written_ms}}
    return {"numInputRows": 10, "endOffset": json.dumps({"orders": {"0": 10}, "v": 1}), "latestOffset": latest}


def _spooled() -> dict[str, Any]:
    offset = {"epoch": "e", "spool": "s1", "v": 1}
    return {"numInputRows": 3, "endOffset": {**offset, "position": 4}, "latestOffset": {**offset, "position": 9}}


Event = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class _Query:
    name: str

    def started(self) -> Event:
        return "started", {"query": self.name, "run": "r", "name": self.name}

    def idle(self) -> Event:
        return "idle", {"query": self.name, "run": "r"}

    def ended(self, exception: str | None) -> Event:
        return "terminated", {"query": self.name, "run": "r", "exception": exception}

    def batch(self, number: int, source: dict[str, Any], milliseconds: int = 100) -> Event:
        progress = {"id": self.name, "runId": "r", "name": self.name, "batchId": number, "sources": [source]}
        return "progress", progress | {"durationMs": {"triggerExecution": milliseconds}}


def _idle(query: _Query) -> Iterator[Event]:
    while True:
        yield query.idle()


def _stuck(query: _Query) -> Iterator[Event]:
    yield query.batch(0, _kafka(0, 0))


def _stopped(query: _Query) -> Iterator[Event]:
    yield query.batch(0, _kafka(0, 0))
    yield query.ended(None)


def _failed(query: _Query) -> Iterator[Event]:
    yield query.batch(0, _kafka(0, 0))
    yield query.ended("it broke")


def _behind(query: _Query) -> Iterator[Event]:
    written_ms = time.time_ns() // 1_000_000 - _AGE_MS
    for number in count():
        yield query.batch(number, _kafka(13_600, written_ms))


def _slow(query: _Query) -> Iterator[Event]:
    for number in count():
        yield query.batch(number, _kafka(0, 0), milliseconds=5_000)


def _spool(query: _Query) -> Iterator[Event]:
    for number in count():
        yield query.batch(number, _spooled())


LIVES: dict[str, Callable[[_Query], Iterator[Event]]] = {
    "idle": _idle,
    "stuck": _stuck,
    "stopped": _stopped,
    "failed": _failed,
    "behind": _behind,
    "slow": _slow,
    "spool": _spool,
    "killed": _idle,
}


def main(port: int, life: str) -> None:
    """Live until it is killed."""
    query = _Query(life)
    spools = SpoolWatches([_FullSpool()])
    with Observer(spools, exporter=Exporter(port), refresh_seconds=_STEP_SECONDS) as observer:
        put = observer._listener._put
        put(query.started())
        for event in LIVES[life](query):
            put(event)
            time.sleep(_STEP_SECONDS)
        while True:
            time.sleep(_STEP_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
