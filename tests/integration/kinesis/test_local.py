"""The Kinesis source on kinesis-local and on our own server: what it does there it does for reasons of the protocol.

Numbers are those of ``docs/explanation/kinesis.md``. kinesis-local trims and throttles nothing, so losses and pace are
shown on our own server only.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support.kinesis_calls import KinesisCalls, kinesis_client
from tests.support.kinesis_rig import FAST, PATIENCE, SOURCE
from tests.support.spark_protocol.driver import BatchRead, FolderSink, InProcessWorkers, StreamingQuery

pytestmark = pytest.mark.timeout(120)


class Rig:
    """A stream by boto3, and queries on it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.calls = KinesisCalls(kinesis_client(url))
        self.options = FAST | {"endpointUrl": url, "initialPosition": "trim_horizon", "streamName": self.calls.stream}
        self.folder = folder
        self.sink = FolderSink(folder / "sink")
        self.numbers = itertools.count()

    def put(self, count: int) -> list[bytes]:
        values = [b"value %d" % number for number in itertools.islice(self.numbers, count)]
        self.calls.put_many([(f"key-{number % 7}", value) for number, value in enumerate(values)])
        return values

    def query(self, **options: str) -> StreamingQuery:
        return StreamingQuery(
            SOURCE,
            self.options | options,
            checkpoint=self.folder / "checkpoint",
            sink=self.sink,
            workers=InProcessWorkers(),
        )

    def drain(self, query: StreamingQuery, values: list[bytes]) -> None:
        query.run_until(lambda _batches: self.sink.rows() >= len(values), PATIENCE)
        query.process_available(PATIENCE)
        assert sorted(self.sink.values("data")) == sorted(values)


@pytest.fixture(params=["embedded_kinesis", "kinesis_local"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    return Rig(request.getfixturevalue(request.param), tmp_path)


def test_02_04_records_are_read_once_and_alike(rig: Rig) -> None:
    rig.calls.create(2)
    values = rig.put(100)
    with rig.query() as query:
        rig.drain(query, values)
        values += rig.put(50)
        rig.drain(query, values)
    reads: list[list[Any]] = []
    for page in ("10000", "7"):
        with BatchRead(SOURCE, rig.options | {"maxRecordsPerFetch": page}, workers=InProcessWorkers()) as read:
            reads.append([table.to_pylist() for table in read.collect()])
    assert reads[0] == reads[1]
    assert sum(len(rows) for rows in reads[0]) == len(values)


@pytest.mark.guarantee
def test_07_12_splits_while_the_query_is_down_lose_nothing(rig: Rig) -> None:
    rig.calls.create(1)
    values = rig.put(20)
    with rig.query(maxRecordsPerTrigger="15") as query:
        query.run_batch(PATIENCE)
        query.stop()
        values += rig.put(20)
        rig.calls.split(rig.calls.open_ids()[0])
        values += rig.put(20)
        rig.calls.split(rig.calls.open_ids()[0])
        values += rig.put(20)
        query.start()
        rig.drain(query, values)


def test_06_latest_reads_what_comes_after_its_first_batch(rig: Rig) -> None:
    rig.calls.create(1)
    with rig.query(initialPosition="latest") as query:
        query.run_batch(PATIENCE)
        values = rig.put(20)
        rig.drain(query, values)
        query.idle(20)
