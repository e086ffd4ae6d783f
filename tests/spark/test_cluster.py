"""A query on a standalone cluster loses an executor, and reads each record once. A share of ``./dev chaos cluster``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.rigs.cluster_faults import ClusterRig
from tests.servers.kafka_broker import find_broker

pytestmark = pytest.mark.guarantee


def test_an_exactly_once_query_on_a_cluster_outlives_its_executor(tmp_path: Path, seed: int) -> None:
    if reason := find_broker().reason:
        pytest.skip(reason)
    _run(tmp_path, seed, "kafka_to_kafka", messages=600)


@pytest.mark.long
def test_a_query_on_a_cluster_whose_executor_is_killed_reads_each_record_once(tmp_path: Path, seed: int) -> None:
    _run(tmp_path, seed, "pubsub_on_executors", messages=1000)


def _run(folder: Path, seed: int, flow: str, messages: int) -> None:
    with ExitStack() as stack:
        outcome = ClusterRig(stack).run(folder / "trial", seed, flow, "executor", messages)
    assert outcome["faults"] == [], outcome
    assert outcome["counts"]["kills"] == 1, outcome
