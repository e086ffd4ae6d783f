"""SIGKILL at random moments of an exactly-once query: each record once. A few of the kills of ``./dev chaos kafka``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.rigs.kafka_kills import KillPlan, KillTrial
from tests.chaos.support.spark import SparkJobs
from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.support.kafka_rig import KafkaRig

pytestmark = pytest.mark.guarantee


@pytest.mark.long
def test_an_exactly_once_query_killed_at_random_writes_each_record_once(tmp_path: Path, seed: int) -> None:
    if reason := find_broker().reason:
        pytest.skip(reason)
    with KafkaBroker() as broker, SparkJobs(tmp_path / "jobs") as jobs:
        plan = KillPlan.make(seed, kills=3, records=2000)
        outcome = KillTrial(plan, tmp_path / "trial", KafkaRig(broker, tmp_path), jobs).run()
    assert outcome["faults"] == [], outcome
