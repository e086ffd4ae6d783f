"""Changes of limits between restarts that the service has no part in; see docs/explanation/option-changes.md."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from connectors.core.errors import SpoolFullError
from connectors.core.offsets import SENTINEL
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.micro_batch import SpoolStream
from tests.support.spool_streams import open_stream, rows_of
from tests.support.spool_writing import HandSpool

NO_LIMIT = (1 << 63) - 1


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    made = HandSpool(tmp_path / "spool")
    made.open()
    for number in range(4):
        made.write([str(16_000_000_000_000_000 + 5 * number + row) for row in range(5)])
    return made


def ask_for(stream: SpoolStream, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stream.latest_offset(SENTINEL, NO_LIMIT)
        time.sleep(0.01)


def test_a_smaller_limit_of_ids_stops_the_query_and_a_larger_one_lets_it_go_on_where_it_was(spool: HandSpool) -> None:
    with open_stream(spool.root, starting_position="earliest") as stream:
        start = stream.latest_offset(SENTINEL, 7)
    small = CompactionSettings(recent_ids=1, max_id_bytes=100)
    with (
        open_stream(spool.root, compaction=small) as stream,
        pytest.raises(SpoolFullError, match=r"SPOOL_ID_INDEX_FULL"),
    ):
        ask_for(stream, 30)
    with open_stream(spool.root, compaction=CompactionSettings(recent_ids=1, max_id_bytes=160)) as stream:
        end = stream.latest_offset(start, NO_LIMIT)
        assert [position for position, _ in rows_of(spool.root, stream.partitions(start, end))] == list(range(7, 20))


def test_a_limit_that_changes_cuts_the_next_batch_and_never_one_that_was_begun(spool: HandSpool) -> None:
    with open_stream(spool.root, starting_position="earliest", max_bytes_per_trigger=60) as stream:
        begun = stream.latest_offset(SENTINEL, NO_LIMIT)
        first = rows_of(spool.root, stream.partitions(SENTINEL, begun))
        assert len(first) == 6
    with open_stream(spool.root, starting_position="latest", max_bytes_per_trigger=20) as stream:
        assert rows_of(spool.root, stream.partitions(SENTINEL, begun)) == first
        assert stream.latest_offset(begun, NO_LIMIT)["position"] == 8
    with open_stream(spool.root, starting_position="latest") as stream:
        assert rows_of(spool.root, stream.partitions(SENTINEL, begun)) == first
        assert stream.latest_offset(begun, 3)["position"] == 9
        assert stream.latest_offset(begun, NO_LIMIT)["position"] == 20


def test_an_unfinished_batch_keeps_its_partitions_over_any_number_of_changes(spool: HandSpool) -> None:
    with open_stream(spool.root, starting_position="earliest", partition_bytes=40, max_partitions=3) as stream:
        begun = stream.latest_offset(SENTINEL, 12)
        planned = stream.partitions(SENTINEL, begun)
        assert len(planned) == 3
    for layout in ((1, 100), (1 << 30, 1), (40, 2)):
        with open_stream(spool.root, partition_bytes=layout[0], max_partitions=layout[1]) as stream:
            assert stream.partitions(SENTINEL, begun) == planned
    spool.write([str(number) for number in range(10)])
    with open_stream(spool.root, partition_bytes=40, max_partitions=2) as stream:
        end = stream.latest_offset(begun, NO_LIMIT)
        assert end["position"] == 30
        assert len(stream.partitions(begun, end)) == 2
        assert stream.partitions(SENTINEL, begun) == planned
