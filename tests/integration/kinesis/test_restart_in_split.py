"""A query that is killed in each of its batches while a shard is split and the children are merged.

The parent is half read at the first kills, its children at the later ones. By the protocol driver, on our own server.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.support.kinesis_efo import Efo
from tests.support.kinesis_rig import PATIENCE, KinesisRig
from tests.support.spark_protocol.driver import DriverCrashedError, Step

pytestmark = pytest.mark.guarantee


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServerProcess]:
    made = start_server_process()
    yield made
    made.close()


@pytest.fixture
def efo(server: KinesisServerProcess, tmp_path: Path) -> Efo:
    server.set_takeover(0)
    return Efo(KinesisRig(server, tmp_path), tmp_path / "spool")


@pytest.mark.parametrize("mode", ["polling", "efo"])
@pytest.mark.parametrize("step", ["offsets_logged", "tasks_done", "batch_committed"])
def test_a_query_killed_in_each_batch_of_a_split_and_a_merge_reads_each_record_once(
    efo: Efo, mode: str, step: Step
) -> None:
    rig, server = efo.rig, efo.rig.server
    options: dict[str, Any] = (efo.options() if mode == "efo" else {}) | {"maxRecordsPerTrigger": "8"}
    values = rig.put(20)
    kills = list[int]()
    with rig.query(**options) as query:
        for batch in count():
            if batch == 1:  # the parent is half read
                (parent,) = server.shards(rig.stream)
                children = server.split(rig.stream, parent)
                values.extend(rig.put(24))
            if batch == 5:  # the children are
                server.merge(rig.stream, *children)
                values.extend(rig.put(12))
            query.crash_at(step, batch)
            try:
                query.run_until(lambda _batches: rig.sink.rows() >= len(values), PATIENCE)
            except DriverCrashedError:
                kills.append(batch)
                query.restart()
            else:
                break
    rig.all_once(values)
    batches: dict[str, set[int]] = {}
    for row in rig.rows():
        batches.setdefault(row["shardId"], set()).add(row["batch"])
    assert len(batches) == 4
    partly_read = [shard for shard, own in batches.items() if len(own & set(kills)) > 1]
    assert parent in partly_read, "or this test shows nothing"
    assert set(children) & set(partly_read), "or this test shows nothing"
