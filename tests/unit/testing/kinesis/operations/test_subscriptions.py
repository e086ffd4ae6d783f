"""SubscribeToShard of the Kinesis server, over HTTP/1.1 by boto3 and over HTTP/2 by h2; loopback only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError
from urllib3.exceptions import ProtocolError

from connectors.testing.kinesis import KinesisServer
from tests.support.kinesis_calls import KinesisCalls, error_kind, kinesis_client

SHARD = "shardId-000000000000"
TRIM = {"Type": "TRIM_HORIZON"}


@pytest.fixture(scope="module")
def shared() -> Iterator[KinesisServer]:
    with KinesisServer() as running:
        yield running


@pytest.fixture(scope="module")
def client(shared: KinesisServer) -> Any:
    return kinesis_client(shared.url)


@pytest.fixture
def server(shared: KinesisServer) -> Iterator[KinesisServer]:
    yield shared
    shared.clear_faults()
    shared.set_transition(0)


@dataclass
class Consumer(KinesisCalls):
    """A registered consumer of a stream of one shard."""

    arn: str = ""
    streams: list[Any] = field(default_factory=list)

    def register(self, name: str = "consumer") -> str:
        arn = self.summary()["StreamARN"]
        self.arn = self.client.register_stream_consumer(StreamARN=arn, ConsumerName=name)["Consumer"]["ConsumerARN"]
        return self.arn

    def subscribe(self, shard: str = SHARD, **start: Any) -> Any:
        answer = self.client.subscribe_to_shard(ConsumerARN=self.arn, ShardId=shard, StartingPosition=start or TRIM)
        self.streams.append(answer["EventStream"])
        return (event["SubscribeToShardEvent"] for event in answer["EventStream"])


@pytest.fixture
def consumer(client: Any, server: KinesisServer) -> Iterator[Consumer]:
    made = Consumer(client)
    made.create()
    made.register()
    server.set_takeover(0)
    yield made
    with contextlib.suppress(ValueError):  # a test may have deleted the stream
        server.end_subscriptions(made.stream, kind=None)
    for stream in made.streams:
        stream.close()


def data_of(event: dict[str, Any]) -> list[bytes]:
    return [record["Data"] for record in event["Records"]]


def refused(kind: str, call: Any, **arguments: Any) -> None:
    with pytest.raises(ClientError) as raised:
        call(**arguments)
    assert error_kind(raised.value) == kind


class TestConsumers:
    def test_consumer_is_not_active_at_once(self, consumer: Consumer, server: KinesisServer) -> None:
        server.set_transition(10)
        consumer.register("slow")
        refused("ResourceInUseException", consumer.subscribe)
        server.jump(11)
        assert data_of(next(consumer.subscribe())) == []


class TestEvents:
    def test_records_are_pushed_as_they_arrive(self, consumer: Consumer, server: KinesisServer) -> None:
        server.put(consumer.stream, [("key", b"0"), ("key", b"1")])
        events = consumer.subscribe()
        first = next(events)
        assert data_of(first) == [b"0", b"1"]
        assert first["MillisBehindLatest"] == 0
        consumer.put(b"2")
        second = next(events)
        assert data_of(second) == [b"2"]
        assert (second["Records"][0]["PartitionKey"], "ChildShards" in second) == ("key", False)
        assert int(second["ContinuationSequenceNumber"]) >= int(second["Records"][0]["SequenceNumber"])
        (found,) = server.subscriptions(consumer.stream)
        assert (found.consumer, found.shard, found.events) == (consumer.arn, SHARD, 2)

    def test_idle_subscription_sends_progress(self, consumer: Consumer, server: KinesisServer) -> None:
        server.set_heartbeat(0.01)
        events = consumer.subscribe()
        numbers = [int(next(events)["ContinuationSequenceNumber"]) for _ in range(3)]
        assert numbers == sorted(numbers)
        put = consumer.put(b"late")[0]
        assert int(put["SequenceNumber"]) > numbers[-1]
        resumed = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": str(numbers[-1])}
        assert data_of(next(consumer.subscribe(**resumed))) == [b"late"]

    def test_continuation_loses_and_repeats_nothing(self, consumer: Consumer, server: KinesisServer) -> None:
        server.fill(consumer.stream, 5000, 1000)
        start: dict[str, Any] = TRIM
        found: list[bytes] = []
        while len(found) < 5000:
            event = next(consumer.subscribe(**start))
            assert event["Records"]
            found += data_of(event)
            start = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": event["ContinuationSequenceNumber"]}
        assert [int(each.strip(b".")) for each in found] == list(range(5000))

    def test_closed_shard_ends_with_its_children(self, consumer: Consumer, server: KinesisServer) -> None:
        consumer.put(b"0")
        events = consumer.subscribe()
        assert data_of(next(events)) == [b"0"]
        consumer.put(b"1")
        children = server.split(consumer.stream, SHARD)
        rest = list(events)
        assert [data for event in rest for data in data_of(event)] == [b"1"]
        last = rest[-1]
        assert [child["ShardId"] for child in last["ChildShards"]] == children
        assert all(child["ParentShards"] == [SHARD] for child in last["ChildShards"])
        assert "ContinuationSequenceNumber" not in last
        assert server.subscriptions(consumer.stream) == []


class TestEnds:
    def test_subscription_expires(self, consumer: Consumer, server: KinesisServer) -> None:
        events = consumer.subscribe()
        next(events)
        server.jump(299)
        next(events)
        server.jump(2)
        assert data_of(next(events, {"Records": []})) == []
        assert list(events) == []
        assert server.subscriptions(consumer.stream) == []

    def test_second_subscription_is_refused_and_after_five_seconds_takes_over(
        self, consumer: Consumer, server: KinesisServer
    ) -> None:
        server.set_takeover(5)
        older = consumer.subscribe()
        next(older)
        refused("ResourceInUseException", consumer.subscribe)
        server.jump(6)
        younger = consumer.subscribe()
        next(younger)
        with pytest.raises(EventStreamError) as raised:
            list(older)
        assert error_kind(raised.value) == "ResourceInUseException"
        consumer.put(b"later")
        assert data_of(next(younger)) == [b"later"]

    def test_knob_ends_by_error_or_by_cut(self, consumer: Consumer, server: KinesisServer) -> None:
        events = consumer.subscribe()
        next(events)
        assert server.end_subscriptions(consumer.stream, kind="InternalFailureException") == 1
        with pytest.raises(EventStreamError, match="made to fail"):
            next(events)
        events = consumer.subscribe()
        next(events)
        assert server.end_subscriptions(consumer.stream, SHARD, kind=None) == 1
        with pytest.raises(ProtocolError):
            next(events)
        assert server.end_subscriptions(consumer.stream) == 0

    def test_silent_subscription_sends_nothing_until_it_is_allowed_to(
        self, consumer: Consumer, server: KinesisServer
    ) -> None:
        events = consumer.subscribe()
        next(events)
        server.silence_subscriptions()
        consumer.put(b"unseen")
        server.jump(60)
        assert [found.events for found in server.subscriptions(consumer.stream)] == [1]
        server.silence_subscriptions(on=False)
        server.jump(6)
        assert data_of(next(events)) == [b"unseen"]

    def test_opening_fails_on_demand(self, consumer: Consumer, server: KinesisServer) -> None:
        server.fail("SubscribeToShard", "LimitExceededException")
        refused("LimitExceededException", consumer.subscribe)
        refused("ResourceNotFoundException", consumer.subscribe, shard="shardId-000000000009")
        assert server.subscriptions(consumer.stream) == []
