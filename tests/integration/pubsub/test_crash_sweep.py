"""Every failpoint once: SIGKILL there loses nothing, doubles nothing, and replays are equal bit for bit."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.pubsub import PubSubServer
from tests.support.external_rig import ExternalRig
from tests.support.pubsub_rig import PubSubRig
from tests.support.pubsub_sweep import READER_POINTS, REPAIR_POINTS, Crash, all_crashes, points_in_code, sweep
from tests.support.spark_protocol.driver import TaskWorkers
from tests.support.spool_writing import object_store_options

pytestmark = pytest.mark.guarantee

OBJECT_STORE_SAMPLE = (
    ("fetcher", "store.before_put"),
    ("fetcher", "store.after_publish"),
    ("reader", "lease.after_put"),
    ("reader", "fence.after_claim"),
    ("reader", "store.after_close"),
    ("reader", "ledger.after_put"),
)
"""What the suite has time for; ``./dev chaos pubsub --only object_sweep`` crashes at every failpoint."""

ELSEWHERE = {
    "fetch.before_nack",
    "fetch.after_nack",
    *(f"seek.{step}" for step in ("before_intent", "after_intent", "after_move", "after_record", "after_forget")),
    "publish.before_request",
    "publish.after_last_request",
}
"""Those with tests of their own: a fetcher that gives back, seeks, and tasks of the sink."""


EXTERNAL_SAMPLE = (
    ("fetcher", "fetch.before_publish"),
    ("fetcher", "fetch.after_publish_before_ack"),
    ("reader", "ledger.before_admit"),
    ("reader", "ledger.after_put"),
)
"""Likewise; ``./dev chaos pubsub --only external_sweep`` crashes at every failpoint."""


def run(tmp_path: Path, crashes: list[Crash], *, objects: bool = False, external: bool = False) -> None:
    workers = TaskWorkers(1)
    try:
        with PubSubServer() as server, ExitStack() as stack:
            spool = object_store_options(stack.enter_context(ObjectStoreServer())) if objects else None
            rig = (ExternalRig if external else PubSubRig)(server, server.endpoint, tmp_path, workers, spool)
            if isinstance(rig, ExternalRig):
                stack.enter_context(rig)
            missed = sweep(rig, crashes)
    finally:
        workers.close()
    assert missed == []


def test_the_sweep_knows_every_failpoint_of_the_code() -> None:
    swept = {crash.point for objects in (False, True) for crash in all_crashes(objects=objects)}
    assert points_in_code() == swept | set(REPAIR_POINTS) | ELSEWHERE


def test_a_fetcher_killed_at_any_failpoint_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run(tmp_path, [crash for crash in all_crashes() if crash.role == "fetcher"])


def test_a_reader_killed_at_any_failpoint_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run(tmp_path, [Crash("reader", point) for point in READER_POINTS])


@pytest.mark.long
def test_a_spool_on_an_object_store_survives_the_same(tmp_path: Path) -> None:
    run(tmp_path, [Crash(role, point) for role, point in OBJECT_STORE_SAMPLE], objects=True)


def test_fetchers_outside_of_the_query_lose_and_double_nothing_whoever_dies(tmp_path: Path) -> None:
    run(tmp_path, [Crash(role, point) for role, point in EXTERNAL_SAMPLE], external=True)
