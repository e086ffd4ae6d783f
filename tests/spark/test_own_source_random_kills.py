"""SIGKILL at random moments, through Spark, of the example that reads SQS: nothing lost, nothing doubled.

The victims are those that only Spark has; `tests/integration/sqs/test_kills.py` kills source process and fetcher, each
at least once, beside a driver that crashes.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.support.sink import attempts, examine, rows_in_sink, sink_rows
from tests.chaos.support.spark import SparkJobs
from tests.support.sqs_rig import EXAMPLES, KEYS, TestQueue, moto_server

PORTION = 50  # is sent before each kill
PATIENCE = 180.0


@pytest.mark.guarantee
def test_processes_killed_at_random_moments_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    choose, folder = random.Random(seed), tmp_path / "trial"
    folder.mkdir()
    victims = choose.sample(("jvm", "worker"), 2)
    left: dict[int, str] = {}
    errors: list[str] = []
    with moto_server() as endpoint, SparkJobs(tmp_path / "spark") as jobs:
        queue = TestQueue(endpoint, "orders")
        plan = {
            "folder": str(folder),
            "format": "sqs",
            "source": "sqs_source:SqsDataSource",
            "options": queue.options(folder, maxRecordsPerTrigger="20", partitionBytes="20"),
            "sink_pause": 0.05,
        }
        jobs.current.run(plan)
        for number, victim in enumerate(victims):
            queue.send(PORTION)
            rows = number * PORTION + choose.randrange(PORTION)
            jobs.current.wait_for(f"{rows} rows", lambda rows=rows: rows_in_sink(folder) >= rows, PATIENCE)
            errors += jobs.current.query_errors()
            left |= jobs.strike(victim, choose, PATIENCE)
            if victim == "jvm":
                jobs.current.run(plan)
        jobs.current.wait_for("every row", lambda: rows_in_sink(folder) >= len(queue.ids), PATIENCE)
        jobs.current.wait_for("every message to be deleted", lambda: queue.left() == 0, PATIENCE)
        jobs.current.stop_query()
        errors += jobs.current.query_errors()
    published = {identity: {"body": str(number)} for number, identity in enumerate(queue.ids)}
    findings = examine(sink_rows(folder), attempts(folder), published, key="messageId", position="offset")
    ours = [error for error in errors if "connectors.core.errors" in error]
    assert (findings.faults, left, ours) == ({}, {}, []), victims
