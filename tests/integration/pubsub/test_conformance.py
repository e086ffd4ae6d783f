"""The embedded Pub/Sub server and the official emulator behave the same, wherever the emulator is right.

Where it is not, the embedded server follows the service, and tests/unit/testing/pubsub/test_server.py holds it: the
emulator ignores flow control and filters, takes messages over 10 MB, attributes beyond the limits and ack deadlines
below 10 s, and gives at most 100 messages a Pull. test_client.py has DetachSubscription, which the emulator lacks.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from tests.support.pubsub_calls import PubSubCalls, message_ids

SERVERS = ("embedded_pubsub", "pubsub_emulator")
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
DEADLINE = 10
"""Seconds: the shortest that the service has."""


@pytest.fixture(params=SERVERS)
def calls(request: pytest.FixtureRequest) -> Iterator[PubSubCalls]:
    with PubSubCalls(request.getfixturevalue(request.param)) as open_calls:
        yield open_calls


@dataclass
class Names:
    """Full names that no other test uses."""

    project: str = field(default_factory=lambda: f"projects/p{uuid.uuid4().hex[:12]}")

    @property
    def topic(self) -> str:
        return f"{self.project}/topics/orders"

    @property
    def subscription(self) -> str:
        return f"{self.project}/subscriptions/orders"

    @property
    def other(self) -> str:
        return f"{self.project}/subscriptions/other"


@pytest.fixture
def names() -> Names:
    return Names()


class TestMessages:
    def test_message_arrives_as_it_was_published(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription, enable_message_ordering=True)
        payload = bytes(range(256)) * 4
        attributes = {"key": "value", "empty": "", "snow": "\N{SNOWMAN}"}
        before = time.time()
        (message_id,) = calls.publish_messages(
            names.topic, [{"data": payload, "attributes": attributes, "ordering_key": "customer-1"}]
        )
        (received,) = calls.pull(names.subscription)
        message = received.message
        assert (message.data, dict(message.attributes), message.ordering_key) == (payload, attributes, "customer-1")
        assert message.message_id == message_id
        assert before - 1 < message.publish_time.ToNanoseconds() / 1e9 < time.time() + 1
        assert received.delivery_attempt == 0

    def test_message_may_have_attributes_alone(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish_messages(names.topic, [{"attributes": {"a": "b"}}])
        (received,) = calls.pull(names.subscription)
        assert (received.message.data, dict(received.message.attributes)) == (b"", {"a": "b"})

    def test_ids_the_client_sets_are_replaced(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        message = {"data": b"x", "message_id": "mine", "publish_time": {"seconds": 1}}
        (message_id,) = calls.publish_messages(names.topic, [message])
        (received,) = calls.pull(names.subscription)
        assert received.message.message_id == message_id != "mine"
        assert received.message.publish_time.seconds > 1

    def test_each_subscription_gets_all_messages(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription, names.other)
        ids = calls.publish(names.topic, *(b"%d" % number for number in range(20)))
        assert len(set(ids)) == 20
        for subscription in (names.subscription, names.other):
            assert sorted(message_ids(calls.pull(subscription, 20))) == sorted(ids)

    def test_1000_messages_in_one_request(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        ids = calls.publish(names.topic, *(b"%d" % number for number in range(1000)))
        with calls.stream(names.subscription) as stream:
            assert sorted(message_ids(stream.wait_for(1000))) == sorted(ids)

    @pytest.mark.parametrize(
        "messages", [[], [{"data": b"x"}] * 1001, [{}], [{"ordering_key": "alone"}]], ids=["0", "1001", "empty", "key"]
    )
    def test_publish_is_refused(self, calls: PubSubCalls, names: Names, messages: list[dict[str, Any]]) -> None:
        calls.create(names.topic)
        assert calls.refusal("Publisher/Publish", topic=names.topic, messages=messages) is INVALID

    def test_message_of_nearly_10_mb(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish(names.topic, bytes(9_999_800))
        assert len(calls.pull(names.subscription)[0].message.data) == 9_999_800


class TestAcks:
    def test_acked_message_never_comes_again(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish(names.topic, b"acked", b"given back")
        received = {each.message.data: each for each in calls.pull(names.subscription, 2)}
        calls.ack(names.subscription, [received[b"acked"]])
        # An ack id is good for any number of acks.
        calls.ack(names.subscription, [received[b"acked"]])
        calls.modify_deadline(names.subscription, received.values(), 0)
        assert [each.message.data for each in calls.pull(names.subscription)] == [b"given back"]
        assert calls.pull_what_is_there(names.subscription) == []

    def test_message_given_back_comes_at_once_with_a_new_ack_id(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription, ack_deadline_seconds=600)
        calls.publish(names.topic, b"x")
        (first,) = calls.pull(names.subscription)
        assert calls.pull_what_is_there(names.subscription) == []
        calls.modify_deadline(names.subscription, [first], 0)
        (again,) = calls.pull(names.subscription)
        assert again.message == first.message
        assert again.ack_id != first.ack_id

    def test_ack_of_an_earlier_delivery_is_taken_and_does_nothing(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish(names.topic, b"x")
        first = calls.pull(names.subscription)
        calls.modify_deadline(names.subscription, first, 0)
        second = calls.pull(names.subscription)
        calls.ack(names.subscription, first)
        calls.modify_deadline(names.subscription, first, 0)
        assert calls.pull_what_is_there(names.subscription) == []
        calls.modify_deadline(names.subscription, second, 0)
        assert len(calls.pull(names.subscription)) == 1

    @pytest.mark.parametrize("ack_ids", [["bogus"], []], ids=["bogus", "none"])
    @pytest.mark.parametrize("method", ["Acknowledge", "ModifyAckDeadline"])
    def test_what_is_no_ack_id_is_refused(
        self, calls: PubSubCalls, names: Names, method: str, ack_ids: list[str]
    ) -> None:
        calls.create(names.topic, names.subscription)
        assert calls.refusal(f"Subscriber/{method}", subscription=names.subscription, ack_ids=ack_ids) is INVALID

    def test_negative_deadline_is_refused(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish(names.topic, b"x")
        with pytest.raises(grpc.RpcError) as refused:
            calls.modify_deadline(names.subscription, calls.pull(names.subscription), -1)
        assert refused.value.code() is INVALID

    def test_pull_of_no_messages_is_refused(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        assert calls.refusal("Subscriber/Pull", subscription=names.subscription, max_messages=0) is INVALID

    def test_pull_gives_no_more_than_was_asked_for(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish(names.topic, *[b"x"] * 10)
        assert len(calls.pull_once(names.subscription, 3)) <= 3


class TestStreamingPull:
    def test_delivers_and_takes_acks_and_nacks(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        with calls.stream(names.subscription) as stream:
            ids = calls.publish(names.topic, *(b"%d" % number for number in range(50)))
            received = stream.wait_for(50)
            assert sorted(stream.ids()) == sorted(ids)
            stream.ack(received[10:])
            stream.nack(received[:10])
            stream.wait_for(60)
            assert Counter(stream.ids()) == Counter(ids + message_ids(received[:10]))
            stream.ack(stream.messages[50:])
            ids += calls.publish(names.topic, b"last")
            stream.ack(stream.wait_for(61)[60:])
            assert stream.ids()[60] == ids[-1]

    def test_unary_ack_counts_for_what_a_stream_delivered(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish(names.topic, b"acked", b"given back")
        with calls.stream(names.subscription) as stream:
            received = {each.message.data: each for each in stream.wait_for(2)}
            calls.ack(names.subscription, [received[b"acked"]])
            calls.modify_deadline(names.subscription, received.values(), 0)
            assert stream.wait_for(3)[2].message.data == b"given back"

    def test_two_streams_share_the_messages(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        with calls.stream(names.subscription) as first, calls.stream(names.subscription) as second:
            ids = []
            for number in range(100):
                ids += calls.publish(names.topic, b"%d" % number)
            give_up_at = time.monotonic() + 60
            while len(first.messages) + len(second.messages) < 100:
                assert time.monotonic() < give_up_at
                time.sleep(0.01)
            assert sorted(first.ids() + second.ids()) == sorted(ids)

    def test_ends_when_the_client_closes_its_half(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        with calls.stream(names.subscription) as stream:
            stream.half_close()
            assert stream.wait_for_end() is grpc.StatusCode.OK

    def test_ends_when_the_subscription_is_deleted(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish(names.topic, b"x")
        with calls.stream(names.subscription) as stream:
            stream.wait_for(1)
            calls.call("Subscriber/DeleteSubscription", subscription=names.subscription)
            assert stream.wait_for_end() is NOT_FOUND

    @pytest.mark.parametrize(
        ("fields", "status"),
        [
            ({"subscription": ""}, INVALID),
            ({"deadline": 0}, INVALID),
            ({"deadline": 9}, INVALID),
            ({"deadline": 601}, INVALID),
            ({"subscription": "projects/p/subscriptions/absent"}, NOT_FOUND),
            ({"ack_ids": ["bogus"]}, INVALID),
            ({"modify_deadline_ack_ids": ["x"]}, INVALID),
        ],
        ids=str,
    )
    def test_first_request_that_is_refused(
        self, calls: PubSubCalls, names: Names, fields: dict[str, Any], status: grpc.StatusCode
    ) -> None:
        calls.create(names.topic, names.subscription)
        with calls.stream(**{"subscription": names.subscription, **fields}) as stream:
            assert stream.wait_for_end() is status

    @pytest.mark.parametrize(
        "fields",
        [{"subscription": "projects/p/subscriptions/again"}, {"ack_ids": ["bogus"]}, {"modify_deadline_seconds": [1]}],
        ids=str,
    )
    def test_later_request_that_is_refused(self, calls: PubSubCalls, names: Names, fields: dict[str, Any]) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish(names.topic, b"x")
        with calls.stream(names.subscription) as stream:
            stream.wait_for(1)
            stream.send(**fields)
            assert stream.wait_for_end() is INVALID


class TestAdministration:
    def test_settings_come_back(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic)
        made = calls.subscribe(
            names.subscription,
            names.topic,
            ack_deadline_seconds=33,
            message_retention_duration={"seconds": 1200},
            retain_acked_messages=True,
            enable_message_ordering=True,
            labels={"team": "a"},
        )
        assert (made.ack_deadline_seconds, made.message_retention_duration.seconds) == (33, 1200)
        assert (made.retain_acked_messages, made.enable_message_ordering) == (True, True)
        assert dict(made.labels) == {"team": "a"}
        assert (made.name, made.topic) == (names.subscription, names.topic)
        assert calls.call("Subscriber/GetSubscription", subscription=names.subscription) == made

    def test_defaults_are_10_s_and_7_days(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic)
        made = calls.subscribe(names.subscription, names.topic)
        assert (made.ack_deadline_seconds, made.message_retention_duration.seconds) == (10, 7 * 86_400)

    def test_what_is_absent_is_not_found(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic)
        absent = {"subscription": names.subscription}
        no_topic = {"topic": f"{names.project}/topics/absent"}
        for method, fields in [
            ("Publisher/GetTopic", no_topic),
            ("Publisher/DeleteTopic", no_topic),
            ("Publisher/Publish", {**no_topic, "messages": [{"data": b"x"}]}),
            ("Subscriber/CreateSubscription", {**no_topic, "name": names.subscription}),
            ("Subscriber/GetSubscription", absent),
            ("Subscriber/DeleteSubscription", absent),
            ("Subscriber/Pull", {**absent, "max_messages": 1}),
            ("Subscriber/Acknowledge", {**absent, "ack_ids": ["bogus"]}),
            ("Subscriber/ModifyAckDeadline", {**absent, "ack_ids": ["bogus"]}),
        ]:
            assert calls.refusal(method, **fields) is NOT_FOUND, method

    def test_what_is_there_already_is_said(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        already = grpc.StatusCode.ALREADY_EXISTS
        assert calls.refusal("Publisher/CreateTopic", name=names.topic) is already
        fields = {"name": names.subscription, "topic": names.topic}
        assert calls.refusal("Subscriber/CreateSubscription", **fields) is already

    @pytest.mark.parametrize("last", ["ab", "1orders", "googorders", "or ders", "orders/x", ""])
    def test_malformed_names_are_refused(self, calls: PubSubCalls, names: Names, last: str) -> None:
        calls.create(names.topic)
        assert calls.refusal("Publisher/CreateTopic", name=f"{names.project}/topics/{last}") is INVALID
        fields = {"name": f"{names.project}/subscriptions/{last}", "topic": names.topic}
        assert calls.refusal("Subscriber/CreateSubscription", **fields) is INVALID
        assert calls.refusal("Publisher/GetTopic", topic=last) is INVALID
        assert calls.refusal("Publisher/CreateTopic", name=names.subscription) is INVALID

    @pytest.mark.parametrize(
        "settings", [{"ack_deadline_seconds": 601}, {"message_retention_duration": {"seconds": 60}}]
    )
    def test_settings_outside_their_range_are_refused(
        self, calls: PubSubCalls, names: Names, settings: dict[str, Any]
    ) -> None:
        calls.create(names.topic)
        fields = {"name": names.subscription, "topic": names.topic, **settings}
        assert calls.refusal("Subscriber/CreateSubscription", **fields) is INVALID

    def test_subscription_of_a_deleted_topic_says_so_and_keeps_its_backlog(
        self, calls: PubSubCalls, names: Names
    ) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish(names.topic, b"x")
        calls.call("Publisher/DeleteTopic", topic=names.topic)
        assert calls.call("Subscriber/GetSubscription", subscription=names.subscription).topic == "_deleted-topic_"
        assert len(calls.pull(names.subscription)) == 1
        messages = [{"data": b"y"}]
        assert calls.refusal("Publisher/Publish", topic=names.topic, messages=messages) is NOT_FOUND

    def test_topic_made_anew_does_not_feed_the_old_subscription(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        calls.call("Publisher/DeleteTopic", topic=names.topic)
        calls.create(names.topic, names.other)
        calls.publish(names.topic, b"x")
        assert len(calls.pull(names.other)) == 1
        assert calls.pull_what_is_there(names.subscription) == []

    def test_subscription_made_anew_sees_only_what_is_published_later(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        calls.publish(names.topic, b"earlier")
        calls.call("Subscriber/DeleteSubscription", subscription=names.subscription)
        calls.subscribe(names.subscription, names.topic)
        calls.publish(names.topic, b"later")
        assert [each.message.data for each in calls.pull(names.subscription)] == [b"later"]
        assert calls.pull_what_is_there(names.subscription) == []

    def test_settings_can_be_changed(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription)
        changed = calls.update_subscription(names.subscription, ["ack_deadline_seconds"], ack_deadline_seconds=44)
        assert changed.ack_deadline_seconds == 44
        assert calls.call("Subscriber/GetSubscription", subscription=names.subscription) == changed
        for paths in ([], ["topic"], ["bogus"]):
            with pytest.raises(grpc.RpcError) as refused:
                calls.update_subscription(names.subscription, paths, topic=names.topic)
            assert refused.value.code() is INVALID

    def test_lists_are_by_project_and_in_pages(self, calls: PubSubCalls, names: Names) -> None:
        calls.create(names.topic, names.subscription, names.other)
        elsewhere = Names()
        calls.create(elsewhere.topic, elsewhere.subscription)
        topics = calls.call("Publisher/ListTopics", project=names.project).topics
        assert [topic.name for topic in topics] == [names.topic]
        attached = calls.call("Publisher/ListTopicSubscriptions", topic=names.topic).subscriptions
        assert sorted(attached) == sorted([names.subscription, names.other])
        found: list[str] = []
        token = ""
        for _ in range(2):
            page = calls.call("Subscriber/ListSubscriptions", project=names.project, page_size=1, page_token=token)
            found += [subscription.name for subscription in page.subscriptions]
            token = page.next_page_token
        assert sorted(found) == sorted([names.subscription, names.other])
        assert token == ""


@pytest.fixture
def no_server_by_environment(calls: PubSubCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's clients would go to the emulator that is named there, whatever channel they are given."""
    assert calls.endpoint  # The fixture of the emulator has read the variable by now.
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)


@pytest.mark.usefixtures("no_server_by_environment")
class TestGoogleClients:
    def test_high_level_subscriber_receives_and_acks(self, calls: PubSubCalls, names: Names) -> None:
        publisher_transport = PublisherGrpcTransport(channel=calls.channel, credentials=AnonymousCredentials())
        transport = SubscriberGrpcTransport(channel=calls.channel, credentials=AnonymousCredentials())
        calls.create(names.topic, names.subscription)
        publisher = pubsub_v1.PublisherClient(transport=publisher_transport)
        futures = [publisher.publish(names.topic, b"%d" % number, kind="test") for number in range(300)]
        ids = {future.result(20) for future in futures}
        received: Counter[str] = Counter()
        done = threading.Event()

        def receive(message: Any) -> None:
            received[message.message_id] += 1
            message.ack()
            if len(received) == len(ids):
                done.set()

        subscriber = pubsub_v1.SubscriberClient(transport=transport)
        pulling = subscriber.subscribe(names.subscription, receive, await_callbacks_on_shutdown=True)
        try:
            assert done.wait(20)
        finally:
            pulling.cancel()
            pulling.result(20)
        publisher.stop()
        assert received == Counter(ids)

    def test_synchronous_clients_administer_publish_pull_and_ack(self, calls: PubSubCalls, names: Names) -> None:
        publisher_transport = PublisherGrpcTransport(channel=calls.channel, credentials=AnonymousCredentials())
        transport = SubscriberGrpcTransport(channel=calls.channel, credentials=AnonymousCredentials())
        publisher = pubsub_v1.PublisherClient(transport=publisher_transport)
        subscriber = pubsub_v1.SubscriberClient(transport=transport)
        publisher.create_topic(name=names.topic)
        subscriber.create_subscription(name=names.subscription, topic=names.topic)
        publisher.publish(names.topic, b"x").result(20)
        answer = subscriber.pull(subscription=names.subscription, max_messages=10)
        assert [received.message.data for received in answer.received_messages] == [b"x"]
        ack_ids = [received.ack_id for received in answer.received_messages]
        subscriber.acknowledge(subscription=names.subscription, ack_ids=ack_ids)
        subscriber.delete_subscription(subscription=names.subscription)
        publisher.delete_topic(topic=names.topic)
        publisher.stop()


@dataclass
class Expiry:
    """What was seen on one server while deadlines of ten seconds passed."""

    first: Any
    again: Any
    seconds: float
    stream_messages: list[Any]
    stream_seconds: float
    extended: list[Any]
    """What came again although its deadline had been moved."""
    acked_late: list[Any]
    """What came again although it was acked after its deadline, before anyone pulled."""


def watch_expiry(endpoint: str) -> Expiry:
    """Four subscriptions side by side, so that it takes one deadline and a little more."""
    names = Names()
    streamed, extended, late = (f"{names.project}/subscriptions/{name}" for name in ("streamed", "extended", "late"))
    with PubSubCalls(endpoint) as calls:
        calls.create(names.topic, names.subscription, extended, late, ack_deadline_seconds=DEADLINE)
        calls.subscribe(streamed, names.topic, ack_deadline_seconds=600)
        calls.publish(names.topic, b"x")
        late_messages = calls.pull(late)
        calls.modify_deadline(extended, calls.pull(extended), 60)
        with calls.stream(streamed, deadline=DEADLINE) as stream:
            stream_started = time.monotonic()
            stream.wait_for(1)
            started = time.monotonic()
            (first,) = calls.pull(names.subscription)
            (again,) = calls.pull(names.subscription, timeout=6 * DEADLINE)
            seconds = time.monotonic() - started
            stream_messages = stream.wait_for(2)[:2]
            stream_seconds = time.monotonic() - stream_started
        calls.ack(late, late_messages)
        return Expiry(
            first,
            again,
            seconds,
            stream_messages,
            stream_seconds,
            calls.pull_what_is_there(extended),
            calls.pull_what_is_there(late),
        )


@pytest.fixture(scope="module")
def expiries(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Expiry]]]:
    """All servers that can be had are watched at the same time."""
    with ThreadPoolExecutor(len(SERVERS)) as executor:
        watched = {}
        for server in SERVERS:
            with contextlib.suppress(pytest.skip.Exception):
                watched[server] = executor.submit(watch_expiry, request.getfixturevalue(server))
        yield watched


class TestDeadlines:
    @pytest.mark.parametrize("server", SERVERS)
    def test_passing_brings_the_message_again_with_a_new_ack_id(
        self, server: str, expiries: dict[str, Future[Expiry]], request: pytest.FixtureRequest
    ) -> None:
        request.getfixturevalue(server)  # Skips where there is none.
        expiry = expiries[server].result(60)
        assert expiry.again.message == expiry.first.message
        assert expiry.again.ack_id != expiry.first.ack_id
        assert expiry.seconds >= DEADLINE - 1
        first, again = expiry.stream_messages
        assert again.message == first.message
        assert again.ack_id != first.ack_id
        assert expiry.stream_seconds >= DEADLINE - 1
        assert expiry.extended == []
        assert expiry.acked_late == []
