"""What a query is still going to read is never freed, wherever it began and whatever was committed before (rule R6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connectors.core.offsets import SENTINEL
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.micro_batch import SpoolStream
from connectors.spool.stream.slices import offset_at
from tests.support.spool_streams import open_stream, rows_of
from tests.support.spool_writing import HandSpool
from tests.support.waiting import wait_for

SEGMENT, BATCH, SEGMENTS = 5, 20, 40
HEAD = SEGMENT * SEGMENTS


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    """All rows are there still, and an earlier query has committed all of them."""
    spool = HandSpool(tmp_path / "spool")
    ledger = spool.open()
    for number in range(SEGMENTS):
        spool.write([str(1000 + SEGMENT * number + row) for row in range(SEGMENT)])
    ledger.admit()
    for position in (HEAD - 2 * BATCH, HEAD - BATCH, HEAD):
        ledger.commit(position)
    return spool


@contextmanager
def a_life(spool: HandSpool, checkpoint: Mapping[str, Any]) -> Iterator[SpoolStream]:
    """A start of a query that frees each segment by itself as soon as it may."""
    first = "earliest" if checkpoint == SENTINEL else "committed"
    compaction = CompactionSettings(free_segments=1)
    with open_stream(spool.root, starting_position=first, start_timeout=20.0, compaction=compaction) as stream:
        yield stream


def oldest(stream: SpoolStream) -> int:
    return stream._ledger.state.oldest


def let_compaction_work(spool: HandSpool, stream: SpoolStream, fetcher: str) -> None:
    """Two rounds, so that one of them has begun after the call."""
    wait_for(lambda: stream._background.compaction)
    for text in ("a", "b"):
        before = stream._ledger.state.ordinal
        spool.write([f"{fetcher}-{text}"], fetcher=fetcher)
        wait_for(lambda before=before: stream._ledger.state.ordinal > before)


def read_up_to(
    spool: HandSpool, stream: SpoolStream, start: Mapping[str, Any], end: int, looked: Callable[[int], None]
) -> Mapping[str, Any]:
    """Batches as Spark makes them, each planned and read again before the next one; the offset after them."""
    before = None
    while True:
        until = stream.latest_offset(start, BATCH)
        rows = rows_of(spool.root, stream.partitions(start, until))
        assert [position for position, _ in rows] == list(range(until["position"] - BATCH, until["position"]))
        if before is not None:
            stream.commit(before)
        looked(until["position"] - BATCH)
        assert rows_of(spool.root, stream.partitions(start, until)) == rows
        before = start = until
        if until["position"] >= end:
            return until


@pytest.mark.parametrize("checkpoint", ["earliest", "older"])
def test_a_query_below_what_was_committed_reads_all_and_frees_what_it_has_read(
    spool: HandSpool, checkpoint: str
) -> None:
    assert spool.ledger is not None
    start = SENTINEL if checkpoint == "earliest" else offset_at(spool.ledger.state, 0)
    with a_life(spool, start) as stream:

        def looked(first: int) -> None:
            """The batch and the two before it are kept, all below is freed."""
            kept_from = max(first - 2 * BATCH, 0)
            wait_for(lambda: oldest(stream) >= kept_from)
            assert oldest(stream) == kept_from

        read_up_to(spool, stream, start, HEAD, looked)


@pytest.mark.parametrize("call", ["nothing", "partitions", "latest_offset"])
def test_a_start_frees_nothing_before_spark_has_said_where_the_query_is(spool: HandSpool, call: str) -> None:
    """The batch that was not done at the last stop is planned again first, and no end is asked for before."""
    assert spool.ledger is not None
    state = spool.ledger.state
    start, end = offset_at(state, 2 * BATCH), offset_at(state, 3 * BATCH)
    with a_life(spool, start) as stream:
        let_compaction_work(spool, stream, "f1")
        assert oldest(stream) == 0
        if call == "partitions":
            assert len(rows_of(spool.root, stream.partitions(start, end))) == BATCH
        elif call == "latest_offset":
            assert stream.latest_offset(start, BATCH) == end
        let_compaction_work(spool, stream, "f2")
        assert oldest(stream) == (0 if call == "nothing" else 2 * BATCH)
        assert len(rows_of(spool.root, stream.partitions(start, end))) == BATCH


def test_lives_of_one_batch_each_free_what_the_lives_before_have_read(spool: HandSpool) -> None:
    """As Trigger.Once makes them: no life sees two starts, so it goes by the commits of all of them."""
    assert spool.ledger is not None
    start: Mapping[str, Any] = offset_at(spool.ledger.state, HEAD)
    for number in range(4):
        spool.write([f"new-{number}-{row}" for row in range(BATCH)], fetcher=f"f{number}")
        with a_life(spool, start) as stream:
            until = stream.latest_offset(start, BATCH)
            if number:
                stream.commit(start)
            assert len(rows_of(spool.root, stream.partitions(start, until))) == BATCH
            kept_from = start["position"] - 2 * BATCH
            wait_for(lambda stream=stream, kept_from=kept_from: oldest(stream) >= kept_from)
            assert oldest(stream) == kept_from
        start = until
