"""SIGKILL at random moments of an exactly-once query: each record once. A few of the kills of ``./dev chaos kafka``."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pytest

from connectors.testing.kafka.broker import KafkaBroker, find_broker
from tests.chaos.rigs.kafka_kills import KillPlan, KillTrial
from tests.chaos.support.spark import SparkJobs
from tests.support.kafka_rig import KafkaRig


@pytest.mark.long
def test_an_exactly_once_query_killed_at_random_writes_each_record_once(tmp_path: Path) -> None:
    if reason := find_broker().reason:
        pytest.skip(reason)
    seed = int(os.environ.get("CHAOS_SEED") or secrets.randbits(32))
    sys.stdout.write(f"CHAOS_SEED={seed}\n")
    with KafkaBroker() as broker, SparkJobs(tmp_path / "jobs") as jobs:
        plan = KillPlan.make(seed, kills=3, records=2000)
        outcome = KillTrial(plan, tmp_path / "trial", KafkaRig(broker, tmp_path), jobs).run()
    assert outcome["faults"] == [], outcome
