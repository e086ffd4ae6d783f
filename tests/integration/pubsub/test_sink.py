"""The Pub/Sub sink against a server: what arrives, in which order, through errors and killed tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from connectors.core.errors import ConnectorError
from connectors.pubsub.datasource import PubSubDataSource
from connectors.pubsub.sink import writer as publish
from connectors.pubsub.sink.writer import close_clients
from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_calls import PubSubCalls
from tests.support.pubsub_task import SCHEMA, TaskPlan, run_process, run_task


@pytest.fixture(scope="module")
def server() -> Iterator[PubSubServer]:
    with PubSubServer(seed=8) as running:
        yield running
    close_clients()


class Rig:
    """A topic with a subscription that sees what is published."""

    def __init__(self, server: PubSubServer) -> None:
        name = f"orders-{uuid4().hex[:8]}"
        self.server = server
        self.topic, self.subscription = f"projects/shop/topics/{name}", f"projects/shop/subscriptions/{name}"
        server.create_subscription(self.subscription, self.topic, ordering=True)

    def plan(self, rows: list[tuple[str, str | None]], **options: str) -> TaskPlan:
        base = {"endpoint": self.server.endpoint, "topicId": self.topic, "retryTimeout": "20s"}
        return TaskPlan(base | options, "query", 4, 2, rows)

    def published(self) -> list[Any]:
        count = self.server.backlog(self.subscription)
        with PubSubCalls(self.server.endpoint) as calls:
            return [received.message for received in calls.pull(self.subscription, count)] if count else []


@pytest.fixture
def rig(server: PubSubServer) -> Iterator[Rig]:
    server.clear_faults()
    yield Rig(server)
    server.clear_faults()


def keyless(count: int) -> list[tuple[str, str | None]]:
    return [(str(number), None) for number in range(count)]


def keyed(count: int, keys: int = 3) -> list[tuple[str, str | None]]:
    return [(str(number), f"key-{number % keys}") for number in range(count)]


def test_every_row_is_published_with_its_name(rig: Rig) -> None:
    assert run_task(rig.plan(keyless(2500))) == "2500"
    found = {message.attributes["spark_uid"].rpartition("/")[0]: message.data for message in rig.published()}
    assert found == {f"query/4/2/{number}": str(number).encode() for number in range(2500)}


def test_queries_that_take_turns_in_a_worker_keep_their_connections(rig: Rig) -> None:
    close_clients()
    by_name = rig.server.endpoint.replace("127.0.0.1", "localhost")
    plans = [rig.plan(keyless(2)), rig.plan(keyless(2), endpoint=by_name)]
    kept = []
    for _ in range(3):
        assert [run_task(plan) for plan in plans] == ["2", "2"]
        kept.append({key: client for key, (client, _) in publish._clients._idle.items()})
    assert len(kept[0]) == 2
    assert kept[1:] == kept[:1] * 2
    rig.server.fail("Publish", "PERMISSION_DENIED")
    assert run_task(plans[0]) != "2"
    assert [client for client in kept[0].values() if client.closed] == [next(iter(kept[0].values()))]


def test_a_key_keeps_its_order_through_lost_calls_and_lost_answers(rig: Rig) -> None:
    rig.server.fail("Publish", times=3)
    rig.server.fail("Publish", "DEADLINE_EXCEEDED", times=3, after_effect=True)
    rig.server.fail("Publish", "INTERNAL", times=2)
    assert run_task(rig.plan(keyed(300))) == "300"
    published = rig.published()
    assert len(published) > 300
    for key in range(3):
        of_key = [int(message.data) for message in published if message.ordering_key == f"key-{key}"]
        assert list(dict.fromkeys(of_key)) == list(range(key, 300, 3))


def test_a_request_that_is_refused_once_arrives_in_parts(rig: Rig) -> None:
    rig.server.fail("Publish", "INVALID_ARGUMENT", times=1)
    assert run_task(rig.plan(keyed(100, keys=1))) == "100"
    assert [int(message.data) for message in rig.published()] == list(range(100))


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("PERMISSION_DENIED", "PUBSUB_PERMISSION_DENIED"),
        ("UNAUTHENTICATED", "PUBSUB_UNAUTHENTICATED"),
        ("FAILED_PRECONDITION", "PUBSUB_CALL_FAILED"),
        ("NOT_FOUND", "PUBSUB_TOPIC_NOT_FOUND"),
    ],
)
def test_an_error_that_no_retry_mends_has_its_code(rig: Rig, status: str, code: str) -> None:
    rig.server.fail("Publish", status, times=1)
    assert run_task(rig.plan(keyless(10))) == code
    assert rig.published() == []


def test_a_topic_that_is_not_there_is_named(rig: Rig) -> None:
    plan = rig.plan(keyless(1), topicId="projects/shop/topics/absent")
    assert run_task(plan) == "PUBSUB_TOPIC_NOT_FOUND"


def test_a_service_that_stays_away_ends_the_task(rig: Rig) -> None:
    rig.server.fail("Publish", times=None)
    assert run_task(rig.plan(keyless(1), retryTimeout="1s")) == "PUBSUB_UNAVAILABLE"


def test_overwrite_is_refused(rig: Rig) -> None:
    with pytest.raises(ConnectorError, match="PUBSUB_SAVE_MODE"):
        PubSubDataSource({"topicId": rig.topic}).writer(SCHEMA, overwrite=True)


@pytest.mark.guarantee
@pytest.mark.parametrize("failpoint", ["publish.before_request=kill:3", "publish.after_last_request=kill"])
def test_a_killed_task_that_runs_again_publishes_under_the_same_names(rig: Rig, failpoint: str) -> None:
    # Small flow control, so that something is published before the kill.
    plan = rig.plan(keyed(3000), maxOutstandingBytes="1")
    assert run_process(plan, failpoint) == "killed"
    before = rig.server.backlog(rig.subscription)
    assert before > 0
    assert run_process(plan) == "3000"
    found = Counter((message.attributes["spark_uid"], bytes(message.data)) for message in rig.published())
    places = [(name.rpartition("/")[0], data) for name, data in found]
    assert sorted(places) == sorted((f"query/4/2/{number}", str(number).encode()) for number in range(3000))
    assert found.total() == 3000 + before
