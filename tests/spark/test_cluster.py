"""A query on a standalone cluster loses an executor, and reads each record once. A share of ``./dev chaos cluster``."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.rigs.cluster_faults import ClusterRig


@pytest.mark.long
def test_a_query_on_a_cluster_whose_executor_is_killed_reads_each_record_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or secrets.randbits(32))
    sys.stdout.write(f"CHAOS_SEED={seed}\n")
    with ExitStack() as stack:
        outcome = ClusterRig(stack).run(tmp_path / "trial", seed, "pubsub_on_executors", "executor", messages=1000)
    assert outcome["faults"] == [], outcome
