"""A stream over a spool that was written by hand: what Spark asks, without Spark, without a service."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from connectors.core.errors import ConnectorError
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.options import SpoolOptions
from connectors.spool.segments.segment import read_slices
from connectors.spool.stream.admission import StartedFetching, StartFetching, StreamSettings
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.micro_batch import SpoolStream
from tests.support.spool_writing import SOURCES


class NoFetchers:
    """Fetchers of a subscription that has nothing to deliver: healthy, and silent."""

    def allow(self, free_bytes: int) -> None:
        pass

    def status(self) -> Sequence[FetcherStatus]:
        return [FetcherStatus(index=0, healthy=True)]

    def terminal_error(self) -> ConnectorError | None:
        return None

    def stop(self) -> None:
        pass


def start_nothing(_ledger: Ledger, _wake: Callable[[], None]) -> StartedFetching:
    return NoFetchers(), 86_400.0


@contextlib.contextmanager
def open_stream(root: Path, start_fetching: StartFetching = start_nothing, **changes: Any) -> Iterator[SpoolStream]:
    """A stream as the source process of a query holds it."""
    values: dict[str, Any] = {
        "spool_folder": root,
        "partition_bytes": 1 << 20,
        "max_partitions": 4,
        "max_spool_bytes": 1 << 30,
        "max_fetch_period": 0.0,
        "start_timeout": 0.0,
        "available_now_quiet": 0.0,
        "available_now_max_wait": 0.0,
        **changes,
    }
    own = {name: values.pop(name) for name in ("connector", "sources", "by_message_id") if name in values}
    if (access := values.pop("access", None)) is not None:
        names = ("endpoint", "region", "key_id", "secret", "session_token")
        values |= {f"spool_{name}": getattr(access, name) for name in names}
    compaction = values.pop("compaction", CompactionSettings())
    given = {"connector": "pubsub", "sources": SOURCES, **own}
    settings = StreamSettings(SpoolOptions(**values), compaction=compaction, **given)
    stream = SpoolStream(settings, start_fetching)
    try:
        yield stream
    finally:
        stream.stop()


def rows_of(root: Path, parts: Sequence) -> list[tuple[int, str]]:
    """(position, id) of the rows that the tasks of a batch read."""
    return [
        (kept.position + index, text)
        for slices in parts
        for kept in read_slices(str(root), slices)
        for index, text in enumerate(kept.rows["id"].to_pylist())
    ]
