"""Publishing and removing in the demo, while calls fail: no key loses its order, and what is repeated is counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from connectors.cli.demo.count import make_messages
from connectors.cli.demo.kinesis import Kinesis
from connectors.cli.demo.plan import KEYS, DemoPlan, ServiceName, Target
from connectors.cli.demo.pubsub import PubSub
from connectors.testing.kinesis import KinesisServer
from connectors.testing.pubsub import PubSubServer

MESSAGES = make_messages(400, KEYS)
OPTIONS = {"awsAccessKey": "any", "awsSecretKey": "any"}


@pytest.fixture
def server() -> Iterator[KinesisServer]:
    with KinesisServer() as running:
        yield running


@pytest.fixture
def kinesis(server: KinesisServer, tmp_path: Path) -> Kinesis:
    target = Target(endpoint=server.url, account="us-east-1", options=OPTIONS)
    return Kinesis(DemoPlan(tmp_path, ServiceName.KINESIS, target))


def turns(server: KinesisServer, service: Kinesis) -> dict[str, list[str]]:
    """The records of each key in the order of their numbers."""
    by_key: dict[str, list[str]] = defaultdict(list)
    for record in server.records(service.name):
        by_key[record.partition_key].append(record.data.decode())
    return by_key


def expected(service: Kinesis) -> dict[str, list[str]]:
    by_key: dict[str, list[str]] = defaultdict(list)
    for message in MESSAGES:
        by_key[message.key].append(message.encode(service.plan.run).decode())
    return by_key


def test_refused_and_throttled_records_are_put_again_once_and_in_order(server: KinesisServer, kinesis: Kinesis) -> None:
    with ExitStack() as stack:
        kinesis.open(stack)
        server.throttle("PutRecords", 2)
        server.fail_entries("InternalFailure", 30, every=7, stream=kinesis.name)
        kinesis.publish(MESSAGES)
        assert turns(server, kinesis) == expected(kinesis)
    assert kinesis.repeated == {}


def test_records_whose_request_was_not_answered_are_noted_as_repeated(server: KinesisServer, kinesis: Kinesis) -> None:
    with ExitStack() as stack:
        kinesis.open(stack)
        server.cut("PutRecords", 1, after_effect=True)
        kinesis.publish(MESSAGES)
        copies = Counter(record.data for record in server.records(kinesis.name))
    assert sum(count - 1 for count in copies.values()) == KEYS
    assert kinesis.repeated == dict.fromkeys(range(KEYS), 1)


def test_the_stream_is_removed_after_a_failed_call_and_one_that_is_gone_is_no_fault(
    server: KinesisServer, kinesis: Kinesis
) -> None:
    with ExitStack() as stack:
        kinesis.open(stack)
        server.fail("DeleteStream", "LimitExceededException", 1)
    assert (kinesis.left_behind, server.call_counts()["DeleteStream"]) == ([], 2)
    with ExitStack() as stack:
        kinesis.open(stack)
        server.delete_stream(kinesis.name)
    assert kinesis.left_behind == []


def test_a_consumer_of_a_stream_that_was_given_is_deregistered_and_the_stream_stays(
    server: KinesisServer, tmp_path: Path
) -> None:
    server.create_stream("orders", 1)
    target = Target(endpoint=server.url, account="us-east-1", existing=("orders",), options=OPTIONS)
    service = Kinesis(DemoPlan(tmp_path, ServiceName.KINESIS, target))
    with ExitStack() as stack:
        service.open(stack)
        service.disturb(0.9)
    assert server.shards("orders", only_open=True) == server.shards("orders")
    assert {"CreateStream", "DeleteStream"} & server.call_counts().keys() == set()
    assert server.call_counts()["DeregisterStreamConsumer"] == 1
    assert service.left_behind == []


def test_messages_whose_request_was_not_answered_are_noted_as_repeated(tmp_path: Path) -> None:
    with PubSubServer() as server:
        service = PubSub(DemoPlan(tmp_path, target=Target(endpoint=server.endpoint)))
        with ExitStack() as stack:
            service.open(stack)
            server.fail("Publish", times=1, after_effect=True)
            service.publish(MESSAGES)
            assert (
                server.backlog(f"projects/demo/subscriptions/{service.name}") == len(MESSAGES) + len(MESSAGES) // KEYS
            )
        assert service.left_behind == []
    assert sum(service.repeated.values()) == len(MESSAGES) // KEYS
