"""Ordering, exactly-once delivery, filters, dead letters, seek and snapshots of the Pub/Sub server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import timestamp_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from connectors.testing.pubsub import PubSubServer
from connectors.testing.pubsub.model.filter import parse_filter
from tests.support.pubsub_calls import PubSubCalls

TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/orders"
DEAD = "projects/p/topics/dead"
SNAPSHOT = "projects/p/snapshots/before"


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    with PubSubServer(seed=7) as running:
        yield running


@pytest.fixture
def calls(server: PubSubServer) -> Iterator[PubSubCalls]:
    with PubSubCalls(server.endpoint) as open_calls:
        yield open_calls


def create(server: PubSubServer, **settings: Any) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC, ack_deadline_seconds=600, **settings)


def publish(server: PubSubServer, count: int, key: str = "", first: int = 0) -> list[str]:
    return server.publish(TOPIC, [str(number).encode() for number in range(first, first + count)], ordering_key=key)


def data(received: list[Any]) -> list[int]:
    return [int(each.message.data) for each in received]


class TestOrdering:
    def test_a_key_goes_to_one_client_at_a_time_and_in_order(self, server: PubSubServer, calls: PubSubCalls) -> None:
        create(server, ordering=True)
        publish(server, 3, "a")
        first = calls.pull_once(SUBSCRIPTION, 2)
        assert data(first) == [0, 1]
        assert calls.pull_what_is_there(SUBSCRIPTION) == []
        publish(server, 1, "b", 10)
        assert data(calls.pull_what_is_there(SUBSCRIPTION)) == [10]
        calls.ack(SUBSCRIPTION, first)
        assert data(calls.pull_what_is_there(SUBSCRIPTION)) == [2]

    def test_a_stream_gets_later_ones_before_it_acks(self, server: PubSubServer, calls: PubSubCalls) -> None:
        create(server, ordering=True)
        with calls.stream(SUBSCRIPTION, client_id="one") as one, calls.stream(SUBSCRIPTION, client_id="two") as two:
            server.wait_for_streams(2)
            for number in range(20):
                publish(server, 1, "a", number)
            server.wait_until(lambda: len(one.messages) + len(two.messages) == 20)
            assert sorted(map(len, (one.messages, two.messages))) == [0, 20]
            assert data(one.messages or two.messages) == list(range(20))

    @pytest.mark.parametrize("how", ["nack", "expiry"])
    def test_with_one_message_all_later_ones_of_its_key_come_again_acked_ones_too(
        self, server: PubSubServer, calls: PubSubCalls, how: str
    ) -> None:
        create(server, ordering=True)
        publish(server, 5, "a")
        publish(server, 1, "b", 10)
        received = calls.pull(SUBSCRIPTION, 6)
        of_a = [each for each in received if each.message.ordering_key == "a"]
        calls.ack(SUBSCRIPTION, [of_a[0], of_a[3], received[-1]])
        assert server.backlog(SUBSCRIPTION) == 3
        if how == "nack":
            calls.modify_deadline(SUBSCRIPTION, of_a[1:2], 0)
        else:
            calls.modify_deadline(SUBSCRIPTION, of_a[1:2], 10)
            server.jump(11)
        assert server.backlog(SUBSCRIPTION) == 4
        # Their ack ids are of deliveries that are over.
        calls.ack(SUBSCRIPTION, of_a[2:])
        again = calls.pull_what_is_there(SUBSCRIPTION)
        assert data(again) == [1, 2, 3, 4]
        calls.ack(SUBSCRIPTION, again)
        assert server.backlog(SUBSCRIPTION) == 0


def reasons(refused: grpc.RpcError) -> dict[str, str]:
    status = rpc_status.from_call(refused)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return dict(info.metadata)


class TestExactlyOnce:
    def test_only_the_newest_ack_id_counts_and_the_others_are_named(
        self, server: PubSubServer, calls: PubSubCalls
    ) -> None:
        create(server, exactly_once=True)
        publish(server, 2)
        old = calls.pull(SUBSCRIPTION, 2)
        server.jump(601)
        new = calls.pull(SUBSCRIPTION, 2)
        with pytest.raises(grpc.RpcError) as refused:
            calls.ack(SUBSCRIPTION, [*old, new[0]])
        permanent = "PERMANENT_FAILURE_INVALID_ACK_ID"
        assert reasons(refused.value) == {each.ack_id: permanent for each in old}
        assert server.backlog(SUBSCRIPTION) == 1
        with pytest.raises(grpc.RpcError) as refused:
            calls.modify_deadline(SUBSCRIPTION, [old[1], new[1]], 600)
        assert reasons(refused.value) == {old[1].ack_id: permanent}
        calls.ack(SUBSCRIPTION, [new[1]])
        assert server.backlog(SUBSCRIPTION) == 0

    @pytest.mark.parametrize("how", ["transient", "permanent"])
    def test_acks_can_be_refused(self, server: PubSubServer, calls: PubSubCalls, how: Any) -> None:
        create(server, exactly_once=True)
        publish(server, 3)
        received = calls.pull(SUBSCRIPTION, 3)
        server.refuse_acks(how, count=2)
        with pytest.raises(grpc.RpcError) as refused:
            calls.ack(SUBSCRIPTION, received)
        assert [reason.split("_")[0] for reason in reasons(refused.value).values()] == [how.upper()] * 2
        assert server.backlog(SUBSCRIPTION) == 2
        calls.ack(SUBSCRIPTION, received[:2])
        assert server.backlog(SUBSCRIPTION) == 0

    def test_a_stream_is_reported_and_takes_no_acks(self, server: PubSubServer, calls: PubSubCalls) -> None:
        create(server, exactly_once=True)
        publish(server, 1)
        with calls.stream(SUBSCRIPTION) as stream:
            received = stream.wait_for(1)
            assert stream.responses[0].subscription_properties.exactly_once_delivery_enabled
            stream.ack(received)
            assert stream.wait_for_end() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("attributes:region AND NOT attributes:kind", ["us", "quoted"]),
        ('attributes.region = "eu"', ["eu"]),
        ('attributes.region != "eu"', ["us", "none", "quoted"]),
        ('hasPrefix(attributes.region, "e")', ["eu"]),
        ('(attributes.region = "eu" OR attributes.region = "us") AND attributes.kind = "x"', ["eu"]),
        ('attributes."region" = "a \\"b\\""', ["quoted"]),
        ("", ["eu", "us", "none", "quoted"]),
    ],
)
def test_a_filter_takes_what_it_says(text: str, matching: list[str]) -> None:
    messages = {
        "eu": {"region": "eu", "kind": "x"},
        "us": {"region": "us"},
        "none": {},
        "quoted": {"region": 'a "b"'},
    }
    wanted = parse_filter(text)
    assert [name for name, attributes in messages.items() if wanted(attributes)] == matching


def test_what_a_filter_leaves_out_never_gets_into_the_subscription(server: PubSubServer, calls: PubSubCalls) -> None:
    create(server, filter="attributes:wanted")
    server.publish(TOPIC, [b"1"], {"wanted": "yes"})
    server.publish(TOPIC, [b"2"], {"other": "yes"})
    assert server.backlog(SUBSCRIPTION) == 1
    assert data(calls.pull(SUBSCRIPTION)) == [1]


class TestDeadLetters:
    def test_attempts_are_counted_and_the_last_one_is_forwarded(self, server: PubSubServer, calls: PubSubCalls) -> None:
        create(server, dead_letter_topic=DEAD)
        server.create_subscription("projects/p/subscriptions/dead", DEAD)
        server.publish(TOPIC, [b"7"], {"kind": "order"})
        for attempt in range(1, 6):
            [received] = calls.pull(SUBSCRIPTION)
            assert received.delivery_attempt == attempt
            calls.modify_deadline(SUBSCRIPTION, [received], 0)
        assert server.backlog(SUBSCRIPTION) == 0
        [dead] = calls.pull("projects/p/subscriptions/dead")
        assert dead.message.data == b"7"
        assert dead.message.message_id != received.message.message_id
        assert dead.delivery_attempt == 0
        attributes = dict(dead.message.attributes)
        assert attributes["kind"] == "order"
        assert attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"
        assert attributes["CloudPubSubDeadLetterSourceSubscription"] == "orders"
        assert attributes["CloudPubSubDeadLetterSourceSubscriptionProject"] == "p"
        assert server.counters()["dead-letter"] == 1


def seek_to(calls: PubSubCalls, seconds: float) -> None:
    moment = timestamp_pb2.Timestamp()
    moment.FromNanoseconds(int(seconds * 1e9))
    calls.call("Subscriber/Seek", subscription=SUBSCRIPTION, time=moment)


class TestSeek:
    def test_to_a_time_brings_back_what_was_acked_since_and_acks_what_is_older(
        self, server: PubSubServer, calls: PubSubCalls
    ) -> None:
        create(server, retain_acked=True)
        publish(server, 2)
        server.jump(10)
        middle = server.now()
        server.jump(10)
        publish(server, 2, first=2)
        held = calls.pull(SUBSCRIPTION, 4)
        calls.ack(SUBSCRIPTION, held[2:])
        seek_to(calls, middle)
        again = calls.pull(SUBSCRIPTION, 2)
        assert data(again) == [2, 3]
        assert [each.message.message_id for each in again] == [each.message.message_id for each in held[2:]]
        assert calls.pull_what_is_there(SUBSCRIPTION) == []
        calls.ack(SUBSCRIPTION, held)
        assert server.backlog(SUBSCRIPTION) == 2
        calls.ack(SUBSCRIPTION, again)
        assert server.backlog(SUBSCRIPTION) == 0

    def test_to_a_snapshot_brings_back_what_was_unacked_then_and_came_since(
        self, server: PubSubServer, calls: PubSubCalls
    ) -> None:
        create(server)
        publish(server, 3)
        calls.ack(SUBSCRIPTION, calls.pull(SUBSCRIPTION, 3)[:1])
        made = calls.call("Subscriber/CreateSnapshot", name=SNAPSHOT, subscription=SUBSCRIPTION)
        assert (made.name, made.topic) == (SNAPSHOT, TOPIC)
        publish(server, 2, first=3)
        server.jump(601)
        calls.ack(SUBSCRIPTION, calls.pull(SUBSCRIPTION, 4))
        calls.call("Subscriber/Seek", subscription=SUBSCRIPTION, snapshot=SNAPSHOT)
        assert sorted(data(calls.pull(SUBSCRIPTION, 4))) == [1, 2, 3, 4]
