"""Batch reads of Kinesis, on our own server; numbered as in ``docs/explanation/kinesis.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import DataLossError
from connectors.kinesis.datasource import read_settings
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.source.batch import plan_batch
from connectors.kinesis.source.reader import read_range
from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.support.kinesis_rig import KinesisRig

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServerProcess]:
    made = start_server_process()
    yield made
    made.close()


@pytest.fixture
def kinesis(server: KinesisServerProcess, tmp_path: Path) -> Iterator[KinesisRig]:
    yield KinesisRig(server, tmp_path)
    server.clear_faults()


@pytest.fixture
def two(server: KinesisServerProcess, tmp_path: Path) -> Iterator[KinesisRig]:
    """A stream of two shards."""
    yield KinesisRig(server, tmp_path, shards=2)
    server.clear_faults()


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_19_a_batch_read_whose_end_was_trimmed_fails(kinesis: KinesisRig, newer: bool, closed: bool) -> None:
    kinesis.put(3)
    kinesis.server.jump(60)
    middle = round(kinesis.server.now() * 1000)
    kinesis.server.jump(60)
    kinesis.put(1)
    (shard,) = kinesis.server.shards(kinesis.stream)
    options = parse_read_options(kinesis.options(endingPosition=f"at_timestamp {middle}"), {}, streaming=False)
    (part,) = plan_batch(options)
    assert sum(page.num_rows for page in read_range(part, read_settings(options, 1.0))) == 3
    kinesis.server.trim(kinesis.stream, shard, 4)
    kinesis.put(2 * newer)
    if closed:
        kinesis.server.split(kinesis.stream, shard)
    with pytest.raises(DataLossError, match=r"KINESIS_DATA_LOSS\.END_MISSING"):
        list(read_range(part, read_settings(options, 1.0)))


# Batch reads


def test_a_batch_read_ends_at_its_end_option(kinesis: KinesisRig) -> None:
    values = kinesis.put(4)
    kinesis.server.jump(100)
    middle = round(kinesis.server.now() * 1000)
    kinesis.server.jump(100)
    values += kinesis.put(4)
    stored = kinesis.server.records(kinesis.stream)
    (shard,) = kinesis.server.shards(kinesis.stream)

    def data(**options: str) -> list[bytes]:
        return [row["data"] for row in kinesis.read(**options)]

    assert data() == values
    assert data(endingPosition=f"at_timestamp {middle}") == values[:4]
    assert data(initialPosition=f"at_timestamp {middle}") == values[4:]
    assert data(endingPosition=json.dumps({shard: str(stored[5].sequence_number)})) == values[:6]
    assert data(initialPosition=f"at_timestamp {middle}", endingPosition=f"at_timestamp {middle}") == []
    kinesis.server.jump(100)  # the service tells its time in whole seconds, and `latest` takes no record too few
    assert (
        data(initialPosition="latest") == data(initialPosition="latest", endingPosition=f"at_timestamp {middle}") == []
    )


def test_a_batch_read_whose_end_lies_ahead_ends_at_the_newest_record(kinesis: KinesisRig) -> None:
    values = kinesis.put(4)
    newest = kinesis.server.records(kinesis.stream)[-1].sequence_number
    (shard,) = kinesis.server.shards(kinesis.stream)
    soon = round(kinesis.server.now() * 1000) + HOUR_MS
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        end = {shard: {"iteratorType": kind, "iteratorPosition": str(newest + 10**6)}}
        assert [row["data"] for row in kinesis.read(endingPosition=json.dumps(end))] == values
    assert [row["data"] for row in kinesis.read(endingPosition=f"at_timestamp {soon}")] == values
    kinesis.server.jump(5)  # the latest is that of a second ago
    assert kinesis.read(endingPosition=f"at_timestamp {soon}", initialPosition="latest") == []


def test_a_batch_read_takes_all_shards_of_a_stream_that_was_split(two: KinesisRig) -> None:
    values = two.put(10)
    two.server.split(two.stream, two.server.shards(two.stream)[1])
    values += two.put(20)
    assert sorted(row["data"] for row in two.read()) == sorted(values)
