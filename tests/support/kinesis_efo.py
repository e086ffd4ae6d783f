"""A stream of Kinesis with a query on it by subscriptions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectors.spool.segments.segment import SegmentReader
from connectors.spool.store import open_store
from tests.support.kinesis_rig import PATIENCE, KinesisRig
from tests.support.spark_protocol.driver import (
    StreamingQuery,
)

_PROBED_SECONDS = 0.6
"""A shard without a subscription is looked at within this time."""
_LOOK_SECONDS = 0.05
"""What passes at most between two triggers of a query that runs undisturbed."""


@dataclass
class Efo:
    """A stream, and a query on it by subscriptions."""

    rig: KinesisRig
    spool: Path

    def options(self, **options: str) -> dict[str, str]:
        named = {"consumerMode": "efo", "consumerName": f"of-{self.rig.stream}", "spoolLocation": str(self.spool)}
        return named | options

    def query(self, **options: Any) -> StreamingQuery:
        return self.rig.query(**self.options(**options))

    def until_live(self, query: StreamingQuery, count: int = 1) -> None:
        """Run a query until it has as many subscriptions, and then has nothing to poll."""
        server = self.rig.server
        query.run_until(lambda _batches: len(server.subscriptions(self.rig.stream)) >= count, PATIENCE)
        calls, alone, looked = -1, 0.0, time.monotonic()

        def is_left_alone(_batches: object) -> bool:
            nonlocal calls, alone, looked
            before, calls = calls, server.call_counts(self.rig.stream).get("GetRecords", 0)
            passed, looked = time.monotonic() - looked, time.monotonic()
            # A process that stalls asks for nothing either, and this look had to wait for it.
            alone = alone + min(passed, _LOOK_SECONDS) if calls == before else 0.0
            return alone >= _PROBED_SECONDS

        query.run_until(is_left_alone, PATIENCE)

    def polls(self, work: Callable[[], object]) -> int:
        """How many calls of GetRecords there are while something is done."""
        return self.rig.calls("GetRecords", work)

    def segments(self) -> list[Path]:
        return sorted(self.spool.glob("inbox/*/*.arrow"), key=lambda path: path.stat().st_mtime_ns)

    def spooled_rows(self) -> int:
        """How many rows the segments have."""
        store = open_store(str(self.spool), "look")
        names = (path.relative_to(self.spool).as_posix() for path in self.segments())
        return sum(SegmentReader(store, name).info.rows for name in names)
