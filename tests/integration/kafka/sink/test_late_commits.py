"""A commit that reaches the broker once a later attempt has begun: a few trials of ``./dev chaos late_commits``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.rigs.late_commits import LatePlan, LateTrial, Worker
from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.support.kafka_proxy import LateRequests, Request, error_of
from tests.support.kafka_rig import STEADY, KafkaRig

pytestmark = pytest.mark.guarantee

REFUSED = {"INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"}


class Rig:
    """A broker behind a proxy, and a worker."""

    def __init__(self, proxy: LateRequests, broker: KafkaBroker, worker: Worker, folder: Path) -> None:
        self.proxy, self.kafka, self.worker = proxy, KafkaRig(broker, folder), worker

    def run(self, moment: str, *, kills_after: bool = False) -> dict[str, Any]:
        plan = LatePlan(Request.COMMIT, moment, "resent", Request.PRODUCE, kills_after, cuts=True, wait_seconds=0)
        return LateTrial(plan, self.kafka, self.proxy, self.worker, self.kafka.name("late")).run()


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if reason := find_broker().reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("late")
    with LateRequests() as proxy, KafkaBroker(settings=STEADY, proxy=proxy.endpoint) as broker, Worker() as worker:
        proxy.lead_to(broker.proxied_endpoint)
        yield Rig(proxy, broker, worker, folder)


def test_a_commit_that_arrives_within_a_later_attempt_commits_nothing_of_it(late: Rig) -> None:
    outcome = late.run("open", kills_after=True)
    assert outcome["faults"] == []
    assert outcome["disturbed"] == ["worker"]
    assert set(outcome["answers"]) <= REFUSED
    assert outcome["counts"]["late"] == 1
    assert outcome["counts"]["aborted"] > 0, "what the killed attempt sent is there, and not visible"


def test_a_commit_that_arrives_after_that_of_a_later_attempt_changes_nothing(late: Rig) -> None:
    outcome = late.run("committed")
    assert outcome["faults"] == []
    assert set(outcome["answers"]) <= REFUSED
    assert outcome["attempts"] == ["written"] * 5


def test_the_proxy_names_the_error_of_each_kind_of_response() -> None:
    fenced = (47).to_bytes(2, "big")
    correlation, throttled = b"\0\0\0\1", b"\0" * 4
    topic, compact_topic = b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0", b"\2\2t\2\0\0\0\0"
    responses = {
        (26, 1): throttled + fenced,
        (26, 3): b"\0" + throttled + fenced,
        (24, 0): throttled + topic + fenced,
        (28, 3): b"\0" + throttled + compact_topic + fenced,
        (0, 7): topic + fenced,
        (0, 10): b"\0" + compact_topic + fenced,
    }
    for (key, version), content in responses.items():
        assert error_of(key, version, correlation + content) == "INVALID_PRODUCER_EPOCH"
