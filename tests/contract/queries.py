"""How the contract tests make queries and readers of a harness."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tests.contract.harness import SourceHarness
from tests.support.spark_protocol.driver import (
    FolderSink,
    InProcessWorkers,
    ReaderProcess,
    Source,
    StreamingQuery,
    is_running,
)
from tests.support.waiting import POLL_SECONDS


def sink_of(harness: SourceHarness) -> FolderSink:
    """The sink of the harness's query."""
    return FolderSink(harness.folder.parent / "sink")


def query_of(
    harness: SourceHarness,
    workers: InProcessWorkers,
    options: Mapping[str, str] | None = None,
    *,
    name: str = "",
    **settings: Any,
) -> StreamingQuery:
    """A query over the harness's source, on the checkpoint and the sink that all queries of one test share.

    With a name of the source, the offset log of the checkpoint has version 2.
    """
    return StreamingQuery(
        Source(harness.source, harness.options() if options is None else options, name=name),
        checkpoint=harness.folder.parent / "checkpoint",
        workers=workers,
        **({"sink": sink_of(harness), "poll_interval": POLL_SECONDS} | settings),
    )


def limit_of(reader: ReaderProcess) -> str:
    """The reader's own limit, as Spark passes it back."""
    return json.dumps(reader.default_read_limit())


def latest(reader: ReaderProcess, start: str) -> str:
    """The latest offset under the reader's own limit."""
    return reader.latest_offset(start, limit_of(reader))


def read_until(query: StreamingQuery, keys: Iterable[Any], harness: SourceHarness) -> list[Any]:
    """Run batches until all these keys have come; returns every key that came, in order."""
    missing = set(keys)
    found: list[Any] = []

    def complete(batches: list[Any]) -> bool:
        nonlocal seen
        for batch in batches[seen:]:
            found.extend(batch.values(harness.key))
        seen = len(batches)
        return missing.issubset(found)

    seen = 0
    query.run_until(complete, harness.patience)
    return found


def all_gone(pids: Iterable[int], seconds: float) -> bool:
    """Whether all of these processes end within so many seconds."""
    deadline = time.monotonic() + seconds
    left = set(pids)
    while left and time.monotonic() < deadline:
        left = {pid for pid in left if is_running(pid)}
        time.sleep(0.02)
    return not left
