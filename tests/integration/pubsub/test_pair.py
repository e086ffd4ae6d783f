"""Behaviour 30: the sink and the source as a pair, exactly once through tasks that are killed and run again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_rig import TOPIC, PubSubRig
from tests.support.pubsub_task import TaskPlan, run_process, run_task
from tests.support.spark_protocol.driver import TaskWorkers


@pytest.fixture
def rig(tmp_path: Path, workers: TaskWorkers) -> Iterator[PubSubRig]:
    with PubSubServer(seed=30) as server:
        yield PubSubRig(server, server.endpoint, tmp_path, workers, ordering=True)


@pytest.mark.guarantee
def test_30_rows_of_killed_tasks_are_read_once_and_in_order(rig: PubSubRig) -> None:
    options = {"endpoint": rig.endpoint, "topicId": TOPIC, "maxOutstandingBytes": "1"}
    with rig.query({"dedupAttribute": "spark_uid"}) as query:
        for batch in range(2):
            for partition, point in enumerate(("publish.before_request=kill:3", "publish.after_last_request=kill")):
                rows = [(f"{batch}-{partition}-{number}", f"{partition}.{number % 3}") for number in range(1500)]
                plan = TaskPlan(options, "query", batch, partition, rows)
                assert run_process(plan, point) == "killed"
                # Spark runs the task again; and then, as after a crash of the driver, the whole batch.
                assert run_task(plan) == run_task(plan) == "1500"
        query.run_until(lambda _: rig.sink.rows() >= 6000)
        rig.wait_for(lambda: rig.stats().delivered >= rig.server.counters()["publish"])
        query.idle(3)
    assert rig.server.counters()["publish"] > 12_000
    payloads = [payload.decode() for payload in rig.sink.values("payload")]
    expected = [f"{batch}-{part}-{number}" for batch in range(2) for part in range(2) for number in range(1500)]
    assert sorted(payloads) == sorted(expected)
    found: dict[str, list[str]] = {}
    for key, payload in zip(rig.sink.values("orderingKey"), payloads, strict=True):
        found.setdefault(key, []).append(payload)
    for partition in range(2):
        for key in range(3):
            wanted = [f"{batch}-{partition}-{number}" for batch in range(2) for number in range(key, 1500, 3)]
            assert found[f"{partition}.{key}"] == wanted


def test_30_a_writer_whose_checkpoint_was_restored_from_a_backup_loses_no_row(rig: PubSubRig) -> None:
    # After the restore a batch of the same number holds other rows: the last one again, and what has come since.
    options = {"endpoint": rig.endpoint, "topicId": TOPIC}
    for first, last in ((0, 60), (40, 100)):
        rows: list[tuple[str, str | None]] = [(str(number), None) for number in range(first, last)]
        assert run_task(TaskPlan(options, "query", 1, 0, rows)) == "60"
    with rig.query({"dedupAttribute": "spark_uid"}) as query:
        query.run_until(lambda _: rig.sink.rows() >= 120)
        query.idle(1)
    payloads = [int(payload) for payload in rig.sink.values("payload")]
    assert sorted(payloads) == sorted([*range(60), *range(40, 100)])


def test_30_without_dedup_copies_are_rows(rig: PubSubRig) -> None:
    plan = TaskPlan({"endpoint": rig.endpoint, "topicId": TOPIC}, "query", 0, 0, [(str(n), None) for n in range(50)])
    assert run_task(plan) == run_task(plan) == "50"
    with rig.query() as query:
        query.run_until(lambda _: rig.sink.rows() >= 100)
        query.idle(3)
    assert rig.sink.rows() == 100
