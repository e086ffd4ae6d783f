"""What released versions left on disk, in the middle of their work, is read by this one, and the query goes on."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from connectors.core.offsets import ordered
from connectors.kafka.offsets import read_offset as read_kafka_offset
from connectors.kafka.sink.commit_markers import Finished, Marker
from connectors.kinesis.offsets import read_offset as read_kinesis_offset
from connectors.spool.admin.repair import adopt
from connectors.spool.admin.survey import inspect
from connectors.spool.admin.verify import verify
from connectors.spool.segments.segment import SegmentReader
from connectors.spool.store import open_store
from connectors.testing.pubsub import PubSubServer
from tests.golden.states_record import STATES
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import TaskWorkers

pytestmark = pytest.mark.guarantee

VERSIONS = sorted(path.name for path in STATES.iterdir())


def unpack(version: str, state: str, folder: Path) -> dict[str, Any]:
    """Put a state into a folder; what was known of it when it was recorded."""
    with tarfile.open(STATES / version / f"{state}.tar.gz") as archive:
        archive.extractall(folder, filter=lambda entry, _: entry)  # with the modes that it was recorded with
    facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return facts


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unfinished_batch_of_an_older_version_is_replayed_bit_for_bit_and_the_query_goes_on(
    server: PubSubServer, tmp_path: Path, workers: TaskWorkers, version: str
) -> None:
    facts = unpack(version, "pubsub", tmp_path)
    rig = PubSubRig(server, server.endpoint, tmp_path, workers)
    adopt(str(rig.spool))
    assert verify(str(rig.spool)).sound
    assert list((rig.spool / "ids").iterdir())
    rig.published = list(facts["published"])
    assert rig.sink.rows() == facts["in_sink"] < len(rig.published)
    with rig.query(facts["options"]) as query:
        replayed = query.run_batch()  # the driver compares its rows with the digest of the first attempt
        assert replayed.replayed
        rig.publish(10)
        rig.run_until_all(query)
    rig.assert_each_once()
    assert verify(str(rig.spool)).sound


@pytest.mark.parametrize("version", VERSIONS)
def test_a_quarantined_segment_of_an_older_version_stays_a_gap_that_shows(
    server: PubSubServer, tmp_path: Path, workers: TaskWorkers, version: str
) -> None:
    facts = unpack(version, "pubsub-quarantined", tmp_path)
    rig = PubSubRig(server, server.endpoint, tmp_path, workers)
    adopt(str(rig.spool))
    assert verify(str(rig.spool)).sound
    [[first, end]] = facts["lost"]
    [gap] = inspect(str(rig.spool)).lost
    assert (gap["first"], gap["end"]) == (first, end)
    rig.published = list(facts["published"])
    with rig.query() as query:
        rig.publish(10)
        rig.run_until_all(query)
    rig.assert_each_once()


@pytest.mark.parametrize("version", VERSIONS)
def test_segments_and_offsets_of_fan_out_of_an_older_version_are_read(tmp_path: Path, version: str) -> None:
    facts = unpack(version, "kinesis-fan-out", tmp_path)
    for text in facts["offsets"]:
        read_kinesis_offset(json.loads(text))
        assert json.dumps(ordered(json.loads(text))) == text
    store = open_store(str(tmp_path / "spool"), "look")
    names = [path.relative_to(tmp_path / "spool").as_posix() for path in (tmp_path / "spool").glob("inbox/*/*.arrow")]
    assert sum(SegmentReader(store, name).info.rows for name in names) > 0


KAFKA_OFFSETS = (
    '{"orders": {"0": 12, "1": 0}, "v": 1}',
    '{":v": {"1": 3}, "_start": {"orders": {"0": 3}}, "orders": {"0": 12}, "v": 1}',
)


@pytest.mark.parametrize("text", KAFKA_OFFSETS)
def test_offsets_of_kafka_that_a_checkpoint_holds_are_read(text: str) -> None:
    read_kafka_offset(json.loads(text))
    assert json.dumps(ordered(json.loads(text))) == text


def test_commit_markers_that_groups_hold_are_read() -> None:
    text = '{"v":1,"rows":7,"digest":"00ff","width":4,"run":"r1"}'
    marker = Marker.read(13, text, "group")
    assert marker == Marker(12, 7, "00ff", 4, "r1")
    assert marker.metadata() == text
    text = '{"v":1,"run":"q1","batch":12,"partitions":4}'
    assert Finished.read(8, text) == Finished(8, "q1", 12, 4)
    assert Finished.read(8, text).metadata() == text
