"""SubscribeToShard of the Kinesis server, over HTTP/1.1 by boto3 and over HTTP/2 by h2; loopback only."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from botocore.exceptions import ClientError, EventStreamError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded
from urllib3.exceptions import ProtocolError

from connectors.testing.kinesis import KinesisServer
from tests.servers.certificates import make_certificates
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
    def test_consumer_is_registered_described_listed_and_deregistered(self, consumer: Consumer) -> None:
        arn = consumer.summary()["StreamARN"]
        described = consumer.client.describe_stream_consumer(ConsumerARN=consumer.arn)["ConsumerDescription"]
        assert (described["ConsumerStatus"], described["StreamARN"]) == ("ACTIVE", arn)
        assert consumer.summary()["ConsumerCount"] == 1
        refused(
            "ResourceInUseException",
            consumer.client.register_stream_consumer,
            StreamARN=arn,
            ConsumerName="consumer",
        )
        first = consumer.arn
        consumer.register("another")
        page = consumer.client.list_stream_consumers(StreamARN=arn, MaxResults=1)
        assert [each["ConsumerName"] for each in page["Consumers"]] == ["another"]
        rest = consumer.client.list_stream_consumers(StreamARN=arn, NextToken=page["NextToken"])
        assert [each["ConsumerARN"] for each in rest["Consumers"]] == [first]
        consumer.client.deregister_stream_consumer(StreamARN=arn, ConsumerName="consumer")
        refused("ResourceNotFoundException", consumer.client.describe_stream_consumer, ConsumerARN=first)
        assert consumer.register() != first

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

    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ("AT_SEQUENCE_NUMBER", [b"1", b"2"]),
            ("AFTER_SEQUENCE_NUMBER", [b"2"]),
            ("LATEST", []),
            ("AT_TIMESTAMP", None),
        ],
    )
    def test_every_start_is_kept(self, consumer: Consumer, kind: str, expected: list[bytes] | None) -> None:
        numbers = [put["SequenceNumber"] for put in consumer.put(b"0", b"1", b"2")]
        start: dict[str, Any] = {"Type": kind}
        start |= {"SequenceNumber": numbers[1]} if kind.endswith("NUMBER") else {}
        start |= {"Timestamp": 0} if kind == "AT_TIMESTAMP" else {}
        found = data_of(next(consumer.subscribe(**start)))
        assert found == ([b"0", b"1", b"2"] if expected is None else expected)

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

    @pytest.mark.parametrize("end", ["stream", "consumer"])
    def test_deleting_ends_subscriptions(self, consumer: Consumer, server: KinesisServer, end: str) -> None:
        events = consumer.subscribe()
        next(events)
        if end == "stream":
            server.delete_stream(consumer.stream)
        else:
            consumer.client.deregister_stream_consumer(ConsumerARN=consumer.arn)
        with pytest.raises(EventStreamError) as raised:
            list(events)
        assert error_kind(raised.value) == "ResourceNotFoundException"

    def test_client_that_goes_away_ends_its_subscription(self, consumer: Consumer, server: KinesisServer) -> None:
        next(consumer.subscribe())
        consumer.streams[0]._raw_stream._connection.sock.shutdown(socket.SHUT_RDWR)
        gone = threading.Event()
        while server.subscriptions(consumer.stream):
            assert not gone.wait(0.01)

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


class Http2:
    """A connection of HTTP/2 with many requests; `events` reads one of them."""

    def __init__(self, endpoint: str, trust: ssl.SSLContext | None = None) -> None:
        host, _, port = endpoint.partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        if trust is not None:
            self.socket = trust.wrap_socket(self.socket, server_hostname=host)
            assert self.socket.selected_alpn_protocol() == "h2"
        self.connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.connection.initiate_connection()
        self.statuses: dict[int, str] = {}
        self.bodies: dict[int, EventStreamBuffer] = {}
        self.ended: set[int] = set()
        self.acknowledges = True

    def request(self, operation: str, arguments: dict[str, Any]) -> int:
        stream_id = self.connection.get_next_available_stream_id()
        headers = [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "x")]
        headers += [("x-amz-target", f"Kinesis_20131202.{operation}"), ("content-type", "application/x-amz-json-1.1")]
        headers += [("authorization", "AWS4-HMAC-SHA256 Credential=A/x")]
        self.connection.send_headers(stream_id, headers)
        self.connection.send_data(stream_id, json.dumps(arguments).encode(), end_stream=True)
        self.bodies[stream_id] = EventStreamBuffer()
        return stream_id

    def receive(self) -> None:
        self.socket.sendall(self.connection.data_to_send())
        data = self.socket.recv(65536)
        assert data
        for event in self.connection.receive_data(data):
            match event:
                case ResponseReceived():
                    self.statuses[event.stream_id] = dict(event.headers)[":status"]
                case DataReceived():
                    self.bodies[event.stream_id].add_data(event.data)
                    if self.acknowledges:
                        self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case StreamEnded():
                    self.ended.add(event.stream_id)
        self.socket.sendall(self.connection.data_to_send())

    def events(self, stream_id: int) -> Iterator[dict[str, Any]]:
        while True:
            for message in self.bodies[stream_id]:
                if message.headers[":event-type"] == "SubscribeToShardEvent":
                    yield json.loads(message.payload)
            if stream_id in self.ended:
                return
            self.receive()


@pytest.fixture
def http2(server: KinesisServer) -> Iterator[Http2]:
    connection = Http2(server.endpoint)
    yield connection
    connection.socket.close()


class TestHttp2:
    def subscribe(self, http2: Http2, consumer: Consumer, shard: str = SHARD) -> int:
        arguments = {"ConsumerARN": consumer.arn, "ShardId": shard, "StartingPosition": TRIM}
        return http2.request("SubscribeToShard", arguments)

    def test_many_subscriptions_share_a_connection(
        self, consumer: Consumer, server: KinesisServer, http2: Http2
    ) -> None:
        server.split(consumer.stream, SHARD)
        low, high = server.shards(consumer.stream, only_open=True)
        streams = {shard: self.subscribe(http2, consumer, shard) for shard in (SHARD, low, high)}
        (end,) = http2.events(streams[SHARD])
        assert [child["ShardId"] for child in end["ChildShards"]] == [low, high]
        events = {shard: http2.events(streams[shard]) for shard in (low, high)}
        for shard in (low, high):
            assert next(events[shard])["Records"] == []
        ((shard, number),) = server.put(consumer.stream, [("key", b"data")])
        record = next(events[shard])["Records"][0]
        assert (record["SequenceNumber"], record["PartitionKey"]) == (str(number), "key")
        assert set(http2.statuses.values()) == {"200"}

    def test_tls_chooses_the_version_of_http(self, tmp_path: Path) -> None:
        folder = make_certificates(tmp_path / "certificates")
        trust = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        trust.set_alpn_protocols(["h2"])
        with KinesisServer(certificates=folder) as secure:
            secure.create_stream("orders")
            connection = Http2(secure.tls_url.removeprefix("https://"), trust)
            stream_id = connection.request("ListShards", {"StreamName": "orders"})
            while stream_id not in connection.ended:
                connection.receive()
            connection.socket.close()
            assert connection.statuses == {stream_id: "200"}
            client = kinesis_client(secure.tls_url, verify=str(folder / "ca.pem"))
            assert client.list_streams()["StreamNames"] == ["orders"]
            assert secure.calls("ListShards")
