"""A query that runs on and on takes no more memory, files or descriptors than it did soon after its start."""

from __future__ import annotations

from pathlib import Path

from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_growth import BASE_BATCH, Footprint, footprints, grown
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import InProcessWorkers


def test_memory_and_files_after_1000_batches_are_within_a_tenth_of_those_after_400(tmp_path: Path) -> None:
    with PubSubServer(event_limit=0, keep_acked_messages=100) as server:
        rig = PubSubRig(server, server.endpoint, tmp_path, InProcessWorkers())
        early, late = footprints(rig, [BASE_BATCH, 1000])
    assert grown(late, early) == []


def test_growth_by_more_than_a_tenth_is_seen_and_named() -> None:
    base = Footprint(400, 1000, 1000, 100, 50)
    assert grown(Footprint(2000, 1100, 1100, 110, 55), base) == []
    assert grown(Footprint(2000, 1000, 1000, 111, 50), base) == ["files: 100 at batch 400, 111 at batch 2000"]
    assert len(grown(Footprint(2000, 1101, 1101, 111, 56), base)) == 4
