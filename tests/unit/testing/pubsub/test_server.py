"""Each knob of the Pub/Sub server does what it says; loopback only."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest

from connectors.testing.pubsub import EventKind, PubSubControl, PubSubServer, start_server_process
from connectors.testing.pubsub.faults.knobs import PubSubKnobs
from tests.support.pubsub_calls import PubSubCalls, message_ids

TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/orders"
OTHER = "projects/p/subscriptions/other"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    with PubSubServer(seed=7) as running:
        # Server time moves by jumps in these tests: the real time they take is nothing beside ten minutes.
        running.create_subscription(SUBSCRIPTION, TOPIC, ack_deadline_seconds=600)
        yield running


@pytest.fixture
def calls(server: PubSubServer) -> Iterator[PubSubCalls]:
    with PubSubCalls(server.endpoint) as open_calls:
        yield open_calls


def payloads(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def kinds(server: PubSubKnobs) -> list[str]:
    return [event.kind for event in server.events()]


class TestClock:
    def test_jump_passes_the_deadline_at_once(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.publish(TOPIC, [b"x"])
        first = calls.pull(SUBSCRIPTION)[0]
        server.jump(500)
        assert calls.pull_what_is_there(SUBSCRIPTION) == []
        server.jump(101)
        assert server.counters()["expire"] == 1
        again = calls.pull_what_is_there(SUBSCRIPTION)[0]
        assert again.message == first.message
        assert again.ack_id != first.ack_id

    def test_messages_leave_after_the_retention(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.create_subscription(OTHER, TOPIC, retention_seconds=600, ack_deadline_seconds=600)
        held, *_ = server.publish(TOPIC, [b"held", b"waiting"])
        assert message_ids(calls.pull(OTHER)) == [held]
        server.jump(300)
        (young,) = server.publish(TOPIC, [b"young"])
        server.jump(301)
        assert server.backlog_ids(OTHER) == [young]
        assert server.outstanding(OTHER) == 0
        assert message_ids(calls.pull_what_is_there(OTHER)) == [young]
        assert server.backlog(SUBSCRIPTION) == 3
        server.jump(601)
        assert server.backlog(OTHER) == 0


class TestFlowControl:
    def test_stream_holds_at_most_max_outstanding_messages(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.publish(TOPIC, payloads(20))
        with calls.stream(SUBSCRIPTION, max_outstanding_messages=5) as stream:
            first = stream.wait_for(5)
            assert server.outstanding(SUBSCRIPTION) == 5
            stream.ack(first[:2])
            stream.wait_for(7)
            stream.nack(first[2:3])
            stream.wait_for(8)
            calls.ack(SUBSCRIPTION, first[3:4])
            stream.wait_for(9)
            assert server.outstanding(SUBSCRIPTION) == 5
            assert server.streams()[0]["held_messages"] == 5
            assert server.counters()["deliver"] == 9

    def test_stream_gets_no_more_once_it_holds_max_outstanding_bytes(
        self, server: PubSubServer, calls: PubSubCalls
    ) -> None:
        server.publish(TOPIC, [bytes(1000)] * 10)
        with calls.stream(SUBSCRIPTION, max_outstanding_bytes=2500) as stream:
            first = stream.wait_for(3)
            assert server.outstanding(SUBSCRIPTION) == 3
            stream.ack(first[:1])
            stream.wait_for(4)
            assert server.outstanding(SUBSCRIPTION) == 3
            server.jump(61)
            stream.wait_for(7)
            assert server.outstanding(SUBSCRIPTION) == 3


class TestStreams:
    def test_deadline_of_the_stream_counts_and_can_be_changed(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.publish(TOPIC, [b"x"])
        with calls.stream(SUBSCRIPTION, deadline=100) as stream:
            stream.wait_for(1)
            server.jump(50)
            assert server.outstanding(SUBSCRIPTION) == 1
            received = stream.messages[0]
            stream.send(
                stream_ack_deadline_seconds=300, modify_deadline_ack_ids=[received.ack_id], modify_deadline_seconds=[1]
            )
            server.wait_for_events("modack")
            server.jump(2)
            stream.wait_for(2)
            server.jump(200)
            assert server.counters()["expire"] == 1
            server.jump(101)
            stream.wait_for(3)

    def test_moved_deadline_counts_from_its_request_on(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.publish(TOPIC, [b"x"])
        with calls.stream(SUBSCRIPTION, deadline=600) as stream:
            received = stream.wait_for(1)
            server.jump(500)
            calls.modify_deadline(SUBSCRIPTION, received, 600)
            server.jump(500)
            assert server.counters()["expire"] == 0
            server.jump(101)
            stream.wait_for(2)
            calls.modify_deadline(SUBSCRIPTION, stream.messages[1:], 3)
            server.jump(4)
            stream.wait_for(3)


class TestAckFaults:
    def test_next_acks_are_lost(self, server: PubSubServer, calls: PubSubCalls) -> None:
        ids = server.publish(TOPIC, payloads(5))
        received = calls.pull(SUBSCRIPTION, 5)
        server.lose_acks(count=2)
        calls.ack(SUBSCRIPTION, received)
        assert server.acked_ids(SUBSCRIPTION) == ids[2:]
        assert server.backlog_ids(SUBSCRIPTION) == ids[:2]
        server.jump(601)
        again = calls.pull(SUBSCRIPTION, 2)
        assert message_ids(again) == ids[:2]
        calls.ack(SUBSCRIPTION, again)
        assert server.backlog(SUBSCRIPTION) == 0

    def test_ack_that_takes_effect_after_the_redelivery_does_nothing(
        self, server: PubSubServer, calls: PubSubCalls
    ) -> None:
        server.publish(TOPIC, [b"x"])
        server.delay_acks(1000)
        calls.ack(SUBSCRIPTION, calls.pull(SUBSCRIPTION))
        server.jump(601)
        calls.pull(SUBSCRIPTION)
        server.delay_acks(0)
        server.jump(400)
        assert server.counters()["ack-stale"] == 1
        assert server.backlog(SUBSCRIPTION) == 1

    @pytest.mark.parametrize(("policy", "left"), [("honour", 0), ("ignore", 1)])
    def test_late_ack_before_the_redelivery(
        self, server: PubSubServer, calls: PubSubCalls, policy: str, left: int
    ) -> None:
        server.publish(TOPIC, [b"x"])
        received = calls.pull(SUBSCRIPTION)
        server.late_acks(policy)
        server.jump(601)
        calls.ack(SUBSCRIPTION, received)
        assert server.backlog(SUBSCRIPTION) == left
        assert len(calls.pull_what_is_there(SUBSCRIPTION)) == left

    def test_acknowledge_fails_so_many_times_and_says_which_messages(
        self, server: PubSubServer, calls: PubSubCalls
    ) -> None:
        ids = server.publish(TOPIC, payloads(2))
        received = calls.pull(SUBSCRIPTION, 2)
        server.fail("Acknowledge", times=3)
        ack_ids = [each.ack_id for each in received]
        for _ in range(3):
            assert calls.refusal("Subscriber/Acknowledge", subscription=SUBSCRIPTION, ack_ids=ack_ids) is UNAVAILABLE
        assert server.backlog(SUBSCRIPTION) == 2
        assert [event.message_id for event in server.events(kinds=["ack-refused"])] == ids * 3
        calls.ack(SUBSCRIPTION, received)
        assert server.backlog(SUBSCRIPTION) == 0


class TestCallFaults:
    def test_burst_hits_every_method(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.fail("*", "RESOURCE_EXHAUSTED", times=2, message="too fast")
        with pytest.raises(grpc.RpcError, match="too fast"):
            calls.publish(TOPIC, b"x")
        assert calls.refusal("Publisher/GetTopic", topic=TOPIC) is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls.publish(TOPIC, b"x")
        details = [event.detail for event in server.events(kinds=["rpc-error"])]
        assert details == ["Publish RESOURCE_EXHAUSTED", "GetTopic RESOURCE_EXHAUSTED"]
        assert server.backlog(SUBSCRIPTION) == 1

    def test_answer_is_lost_after_the_effect(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.fail("Publish", after_effect=True)
        assert calls.refusal("Publisher/Publish", topic=TOPIC, messages=[{"data": b"x"}]) is UNAVAILABLE
        assert server.backlog(SUBSCRIPTION) == 1
        server.fail("Acknowledge", after_effect=True)
        ack_ids = [calls.pull(SUBSCRIPTION)[0].ack_id]
        assert calls.refusal("Subscriber/Acknowledge", subscription=SUBSCRIPTION, ack_ids=ack_ids) is UNAVAILABLE
        assert server.backlog(SUBSCRIPTION) == 0


class TestRedelivery:
    def test_acked_messages_come_again_and_are_to_be_acked_again(
        self, server: PubSubServer, calls: PubSubCalls
    ) -> None:
        ids = server.publish(TOPIC, payloads(4))
        calls.ack(SUBSCRIPTION, calls.pull(SUBSCRIPTION, 4))
        assert server.redeliver(SUBSCRIPTION, ids[1:3]) == ids[1:3]
        again = calls.pull(SUBSCRIPTION, 2)
        assert message_ids(again) == ids[1:3]
        assert server.backlog_ids(SUBSCRIPTION) == ids[1:3]
        server.jump(601)
        again = calls.pull(SUBSCRIPTION, 2)
        calls.ack(SUBSCRIPTION, again)
        assert server.backlog(SUBSCRIPTION) == 0
        assert Counter(server.acked_ids(SUBSCRIPTION)) == Counter(ids + ids[1:3])

    def test_to_another_stream_while_one_is_open(self, server: PubSubServer, calls: PubSubCalls) -> None:
        with calls.stream(SUBSCRIPTION) as first:
            server.wait_for_streams(1)
            ids = server.publish(TOPIC, payloads(10))
            first.ack(first.wait_for(10))
            server.wait_for_backlog(SUBSCRIPTION)
            with calls.stream(SUBSCRIPTION) as second:
                server.wait_for_streams(2)
                server.redeliver(SUBSCRIPTION, to_other_stream=True)
                second.wait_for(10)
                assert sorted(second.ids()) == sorted(ids)
                assert len(first.messages) == 10
                second.ack(second.messages)
                server.wait_for_backlog(SUBSCRIPTION)
            server.wait_for_streams(1)
            server.redeliver(SUBSCRIPTION, ids[:1], to_other_stream=True)
            first.wait_for(11)

    def test_rule_brings_each_acked_message_back_as_often_as_it_says(
        self, server: PubSubServer, calls: PubSubCalls
    ) -> None:
        server.redeliver_acked(1.0, delay=60, times=2)
        ids = server.publish(TOPIC, payloads(3))
        for round_number in range(3):
            received = calls.pull(SUBSCRIPTION, 3)
            assert sorted(message_ids(received)) == sorted(ids)
            calls.ack(SUBSCRIPTION, received)
            assert calls.pull_what_is_there(SUBSCRIPTION) == []
            server.jump(61)
            assert server.counters()["redeliver"] == min(2, round_number + 1) * 3
        assert server.backlog(SUBSCRIPTION) == 0

    def test_leases_expire_before_their_deadline(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.publish(TOPIC, payloads(3))
        first = calls.pull(SUBSCRIPTION, 3)
        assert server.expire_leases(SUBSCRIPTION) == 3
        assert sorted(message_ids(calls.pull(SUBSCRIPTION, 3))) == sorted(message_ids(first))


class TestDuplicates:
    def test_in_the_same_response_with_ack_ids_of_their_own(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.duplicate(1.0)
        ids = server.publish(TOPIC, payloads(10))
        with calls.stream(SUBSCRIPTION) as stream:
            received = stream.wait_for(20)
            assert Counter(message_ids(received)) == Counter(ids * 2)
            assert len({each.ack_id for each in received}) == 20
            assert server.outstanding(SUBSCRIPTION) == 20
            assert server.backlog(SUBSCRIPTION) == 10
            # The ack of one copy is the ack of the message.
            stream.ack(received[::2])
            server.wait_for_backlog(SUBSCRIPTION)
            assert server.outstanding(SUBSCRIPTION) == 0

    def test_given_back_copy_comes_again_only_when_no_other_is_under_way(
        self, server: PubSubServer, calls: PubSubCalls
    ) -> None:
        server.duplicate(1.0)
        server.publish(TOPIC, [b"x"])
        first, second = calls.pull(SUBSCRIPTION, 2)
        server.clear_faults()
        calls.modify_deadline(SUBSCRIPTION, [first], 0)
        assert calls.pull_what_is_there(SUBSCRIPTION) == []
        calls.modify_deadline(SUBSCRIPTION, [second], 0)
        assert len(calls.pull_what_is_there(SUBSCRIPTION)) == 1


class TestStreamFaults:
    def test_all_streams_are_cut(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.create_subscription(OTHER, TOPIC)
        with calls.stream(SUBSCRIPTION) as first, calls.stream(SUBSCRIPTION) as second, calls.stream(OTHER) as other:
            server.wait_for_streams(3)
            assert server.close_streams(SUBSCRIPTION) == 2
            assert first.wait_for_end() is second.wait_for_end() is UNAVAILABLE
            assert other.status is None
            assert server.close_streams(code="INTERNAL") == 1
            assert other.wait_for_end() is grpc.StatusCode.INTERNAL

    def test_each_stream_lives_so_long(self, server: PubSubServer, calls: PubSubCalls) -> None:
        with calls.stream(SUBSCRIPTION) as first:
            server.wait_for_streams(1)
            server.close_streams_every(500)
            server.jump(300)
            with calls.stream(SUBSCRIPTION) as second:
                server.wait_for_streams(2)
                server.jump(250)
                assert first.wait_for_end() is UNAVAILABLE
                assert second.status is None
                server.jump(300)
                assert second.wait_for_end() is UNAVAILABLE
        server.close_streams_every(0)
        with calls.stream(SUBSCRIPTION) as third:
            server.wait_for_streams(1)
            server.jump(1000)
            server.publish(TOPIC, [b"x"])
            third.wait_for(1)

    def test_nothing_is_delivered_during_a_pause(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.create_subscription(OTHER, TOPIC)
        with calls.stream(SUBSCRIPTION) as stream, calls.stream(OTHER) as other:
            server.pause_deliveries(SUBSCRIPTION)
            server.publish(TOPIC, [b"x"])
            other.wait_for(1)
            assert stream.messages == []
            assert calls.pull_what_is_there(SUBSCRIPTION) == []
            server.resume_deliveries(SUBSCRIPTION)
            stream.wait_for(1)


class TestEvents:
    def test_ack_is_stamped_after_what_its_client_did_before(self, server: PubSubServer, calls: PubSubCalls) -> None:
        server.publish(TOPIC, [b"x"])
        received = calls.pull(SUBSCRIPTION)
        written = time.monotonic_ns()
        calls.ack(SUBSCRIPTION, received)
        answered = time.monotonic_ns()
        (ack,) = server.events(kinds=[EventKind.ACK])
        assert written < ack.monotonic_ns < answered


class TestProcess:
    def test_knobs_work_from_another_process(self) -> None:
        with start_server_process(seed=3, speed=2) as server, PubSubCalls(server.endpoint) as calls:
            server.create_subscription(SUBSCRIPTION, TOPIC)
            ids = server.publish(TOPIC, [b"\x00\xff", b"y"], {"a": "b"}, "key")
            received = calls.pull(SUBSCRIPTION, 2)
            assert received[0].message.data == b"\x00\xff"
            assert dict(received[0].message.attributes) == {"a": "b"}
            assert received[0].message.ordering_key == "key"
            server.lose_acks(count=1)
            calls.ack(SUBSCRIPTION, received)
            assert server.acked_ids(SUBSCRIPTION) == ids[1:]
            server.jump(60)
            assert server.outstanding_ids(SUBSCRIPTION) == []
            assert server.now() > time.time() + 59
            assert kinds(server) == ["publish"] * 2 + ["deliver"] * 2 + ["ack", "ack-lost", "expire"]
            with pytest.raises(ValueError, match="must be one of"):
                server.fail("Nonsense")
            with PubSubControl(server.endpoint) as second:
                assert second.backlog(SUBSCRIPTION) == 1
        assert not server.process.is_running()
