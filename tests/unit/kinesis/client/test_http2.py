"""How SubscribeToShard travels: messages of the event stream, requests that botocore signs, answers by HTTP/2."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core.errors import CredentialsError, ServiceUnavailableError
from connectors.core.retry import wait_out
from connectors.kinesis.client.client import Event, KinesisClient, MessageBuffer, SignedRequest, parse_event, parse_page
from connectors.kinesis.client.http2 import Http2Client, Response
from connectors.kinesis.offsets import TRIM, Position, after, at, at_time
from connectors.kinesis.options.client import KinesisClientOptions, client_options
from connectors.kinesis.options.source import parse_read_options
from connectors.testing.kinesis import KinesisServer
from connectors.testing.kinesis.eventstream import event_message, exception_message
from tests.servers.certificates import make_certificates
from tests.support.kinesis_calls import kinesis_client

SHARD = "shardId-000000000000"
SECONDS = 30.0
CONSUMER = "arn:aws:kinesis:us-east-1:123456789012:stream/orders/consumer/test:1"


# Messages


@given(st.lists(st.binary(max_size=300), max_size=4), st.integers(1, 50))
def test_messages_are_the_same_in_pieces_of_any_size(payloads: list[bytes], size: int) -> None:
    sent = b"".join(event_message("SubscribeToShardEvent", each) for each in payloads)
    buffer = MessageBuffer()
    pieces = [sent[begin : begin + size] for begin in range(0, len(sent), size)]
    found = [message for piece in pieces for message in buffer.feed(piece)]
    assert [each.payload for each in found] == payloads
    assert {each.headers[":event-type"] for each in found} <= {"SubscribeToShardEvent"}


def test_an_error_inside_of_a_stream_says_its_kind() -> None:
    (message,) = MessageBuffer().feed(exception_message("ResourceInUseException", "taken"))
    assert message.headers[":message-type"] == "exception"
    assert message.headers[":exception-type"] == "ResourceInUseException"
    assert json.loads(message.payload) == {"message": "taken"}


@pytest.mark.parametrize("place", range(0, 100, 3))
def test_a_message_with_a_wrong_byte_is_refused(place: int) -> None:
    sent = bytearray(event_message("SubscribeToShardEvent", b'{"Records":[]}' + b" " * 20))
    sent[place % len(sent)] ^= 1
    with pytest.raises(ServiceUnavailableError, match="KINESIS_EVENT_DAMAGED"):
        list(MessageBuffer().feed(bytes(sent)))


def test_an_event_says_where_to_go_on_and_whether_the_shard_ends() -> None:
    record = {"SequenceNumber": "7", "Data": "aGk=", "PartitionKey": "k", "ApproximateArrivalTimestamp": 1.5}
    event = parse_event(json.dumps({"Records": [record], "ContinuationSequenceNumber": "9"}).encode(), "s")
    assert [(each.number, each.Data, each.arrival_ms) for each in event.records] == [(7, b"hi", 1500)]
    assert (event.continuation, event.ended) == (9, False)
    children = [{"ShardId": "a", "ParentShards": ["b"], "HashKeyRange": {}}]
    assert parse_event(json.dumps({"Records": [], "ChildShards": children}).encode(), "s").ended
    assert parse_event(b'{"Records":[],"MillisBehindLatest":0}', "s").ended
    for bad in (b"{}", b'{"Records":[],"ContinuationSequenceNumber":"x"}', b"no"):
        with pytest.raises(ServiceUnavailableError, match=r"KINESIS_ANSWER_MALFORMED.*SubscribeToShard") as caught:
            parse_event(bad, "orders, shard-1")
        assert caught.value.where == "orders, shard-1"
        assert "proxy" in caught.value.action


# Subscriptions


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("http2") / "tls")


@pytest.fixture
def server(certificates: Path) -> Iterator[KinesisServer]:
    with KinesisServer(certificates=certificates) as running:
        running.set_takeover(0)
        running.create_stream("orders", 1)
        yield running


@pytest.fixture
def consumer(server: KinesisServer) -> str:
    client = kinesis_client(server.url)
    arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    made = client.register_stream_consumer(StreamARN=arn, ConsumerName="test")
    client.close()
    return str(made["Consumer"]["ConsumerARN"])


def request(url: str, consumer: str, position: Position = TRIM, certificates: Path | None = None) -> SignedRequest:
    raw = {"streamName": "orders", "endpointUrl": url, "awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
    made = KinesisClient(parse_read_options(raw, {})).subscription(consumer, SHARD, position)
    return SignedRequest(made.url, made.headers, made.body, str(certificates / "ca.pem") if certificates else None)


def run(work: Callable[[Http2Client], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        client = Http2Client()
        try:
            async with asyncio.timeout(SECONDS):
                await work(client)
        finally:
            await client.close()

    asyncio.run(all_of_it())


async def subscribe(client: Http2Client, signed: SignedRequest) -> Response:
    answer = await client.post(signed.url, signed.headers, signed.body, signed.certificates)
    await answer.begin()
    return answer


async def events(answer: Response, buffer: MessageBuffer) -> list[Event]:
    """The events of the next piece that has any."""
    while True:
        messages = list(buffer.feed(await answer.read()))
        found = [each for each in messages if each.headers[":event-type"] == "SubscribeToShardEvent"]
        if found:
            return [parse_event(each.payload, "s") for each in found]


@pytest.mark.parametrize("secure", [False, True])
def test_records_are_pushed_by_http2_signed_by_botocore(
    server: KinesisServer, consumer: str, certificates: Path, secure: bool
) -> None:
    server.put("orders", [("key", b"0"), ("key", b"1")])
    signed = request(server.tls_url if secure else server.url, consumer, TRIM, certificates)
    signed = signed if secure else SignedRequest(signed.url, signed.headers, signed.body, None)

    async def work(client: Http2Client) -> None:
        async with await subscribe(client, signed) as answer:
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/vnd.amazon.eventstream"
            assert "date" in answer.headers
            (event,) = await events(answer, MessageBuffer())
            assert [each.Data for each in event.records] == [b"0", b"1"]

    run(work)
    (call,) = server.calls("SubscribeToShard")
    assert (call.stream, call.shard) == ("orders", SHARD)
    assert "Signature=" not in repr(signed)


def test_every_start_is_reported_exactly(server: KinesisServer, consumer: str) -> None:
    placed = server.put("orders", [("key", b"%d" % number) for number in range(3)])
    moment = round(server.records("orders")[1].arrival * 1000)
    starts = [(after(placed[1][1]), [b"2"]), (at(placed[1][1]), [b"1", b"2"]), (at_time(moment + 1), [])]

    async def work(client: Http2Client) -> None:
        for position, expected in starts:
            async with await subscribe(client, request(server.url, consumer, position)) as answer:
                (event,) = await events(answer, MessageBuffer())
                assert [each.Data for each in event.records] == expected, position

    run(work)


def test_a_refused_request_has_the_errors_name(server: KinesisServer, consumer: str) -> None:
    async def work(client: Http2Client) -> None:
        async with await subscribe(client, request(server.url, consumer + "0")) as answer:
            assert answer.status == 400
            assert b"ResourceNotFoundException" in await answer.read()

    run(work)


@pytest.mark.parametrize("kind", [None, "InternalFailureException"])
def test_a_cut_is_reported_and_an_end_is_an_end(server: KinesisServer, consumer: str, kind: str | None) -> None:
    async def work(client: Http2Client) -> None:
        async with await subscribe(client, request(server.url, consumer)) as answer:
            await events(answer, MessageBuffer())
            server.end_subscriptions("orders", kind=kind)
            if kind is None:
                with pytest.raises(ServiceUnavailableError, match="KINESIS_SUBSCRIPTION_CUT"):
                    await answer.read()
            else:
                rest = [await answer.read(), await answer.read()]
                assert b"made to fail" in rest[0]
                assert rest[1] == b""
        async with await subscribe(client, request(server.url, consumer)) as again:
            assert len(await events(again, MessageBuffer())) == 1

    run(work)


def test_many_answers_share_a_connection_and_one_that_is_not_read_stops_no_other(
    server: KinesisServer, consumer: str
) -> None:
    server.fill("orders", 12_000, 1000)
    client_of_consumers = kinesis_client(server.url)
    arn = client_of_consumers.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    other = client_of_consumers.register_stream_consumer(StreamARN=arn, ConsumerName="other")["Consumer"]["ConsumerARN"]
    client_of_consumers.close()

    async def count(answer: Response) -> int:
        found, buffer = 0, MessageBuffer()
        while found < 12_000:
            found += sum(len(event.records) for event in await events(answer, buffer))
        return found

    async def work(client: Http2Client) -> None:
        async with (
            await subscribe(client, request(server.url, consumer)) as slow,
            await subscribe(client, request(server.url, other)) as quick,
        ):
            assert await count(quick) == 12_000
            await asyncio.sleep(0.2)
            held = sum(len(piece) for piece in slow._pieces)
            assert held <= 4 << 20, "what is not read is not sent either"
            assert await count(slow) == 12_000
        assert len(client._connections) == 1
        assert [len(each) for each in client._connections.values()] == [1]

    run(work)


def test_leaving_an_answer_ends_the_subscription(server: KinesisServer, consumer: str) -> None:
    async def work(client: Http2Client) -> None:
        async with await subscribe(client, request(server.url, consumer)) as answer:
            await events(answer, MessageBuffer())
            assert len(server.subscriptions("orders")) == 1
        while server.subscriptions("orders"):  # noqa: ASYNC110 - the server has no event for this
            await asyncio.sleep(0.01)

    run(work)


def test_a_connection_that_is_given_up_takes_no_request_and_ends_with_its_last_answer(
    server: KinesisServer, consumer: str
) -> None:
    signed = request(server.url, consumer)

    async def work(client: Http2Client) -> None:
        async with await subscribe(client, signed) as first:
            first.retire_connection()
            assert first._connection.is_open
            async with await subscribe(client, signed) as second:  # which takes over
                assert second._connection is not first._connection
        assert not first._connection.is_open
        assert second._connection.is_open

    run(work)


def test_no_server_and_a_server_without_http2_are_reported(server: KinesisServer, consumer: str) -> None:
    signed = request(server.url, consumer)
    server.stop()

    async def work(client: Http2Client) -> None:
        with pytest.raises(ServiceUnavailableError, match="KINESIS_SUBSCRIPTION_CUT"):
            await subscribe(client, signed)

    run(work)


# Certificates that are not trusted


@pytest.mark.parametrize(
    ("trusted", "host", "age_days", "said"),
    [
        pytest.param(False, "localhost", 1, "unable to get local issuer", id="unknown-authority"),
        pytest.param(
            True, "elsewhere.example", 1, "(127.0.0.1' doesn't match|not valid for '127.0.0.1')", id="other-name"
        ),
        pytest.param(True, "localhost", 9, "expired", id="expired"),
    ],
)
def test_a_certificate_that_is_not_trusted_is_no_transient_error_and_names_the_options_of_authorities(
    trusted: bool, host: str, age_days: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_certificates(tmp_path / "tls", host, age_days)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    if trusted:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(folder / "ca.pem"))
    with KinesisServer(certificates=folder) as server:
        client = client_at(server.tls_url)

        calls = 0

        def call() -> object:
            nonlocal calls
            calls += 1
            return client.describe("orders")

        async def subscribe_once(http: Http2Client) -> None:
            signed = client.subscription(CONSUMER, SHARD, TRIM)
            await http.post(signed.url, signed.headers, signed.body, signed.certificates)

        for ask in (lambda: wait_out(call, client_options_at(server.tls_url).outage_rule), lambda: run(subscribe_once)):
            with pytest.raises(CredentialsError, match=rf"TLS_CERTIFICATE.*{said}") as caught:
                ask()
            assert not caught.value.transient
            assert "AWS_CA_BUNDLE" in caught.value.action
        assert calls == 1, "it is not tried again"


def test_authorities_of_the_shared_files_are_those_of_subscriptions_too(
    certificates: Path, server: KinesisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(f"[default]\nca_bundle = {certificates / 'ca.pem'}\n")
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    signed = client_at(server.tls_url).subscription(CONSUMER, SHARD, TRIM)
    assert signed.certificates == str(certificates / "ca.pem")


def test_a_file_of_authorities_that_is_not_there_is_named(
    server: KinesisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = str(tmp_path / "absent.pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", absent)
    client = client_at(server.tls_url)

    async def subscribe_once(http: Http2Client) -> None:
        signed = client.subscription(CONSUMER, SHARD, TRIM)
        await http.post(signed.url, signed.headers, signed.body, signed.certificates)

    for ask in (lambda: client.describe("orders"), lambda: run(subscribe_once)):
        with pytest.raises(CredentialsError, match="TLS_CERTIFICATE") as caught:
            ask()
        assert "AWS_CA_BUNDLE" in caught.value.action
        assert "No such file" in str(caught.value) or absent in str(caught.value)


def client_options_at(url: str) -> KinesisClientOptions:
    raw = {"streamName": "orders", "endpointUrl": url, "awsAccessKey": "AKIATEST", "awsSecretKey": "x"}
    return client_options(parse_read_options(raw, {}))


def client_at(url: str) -> KinesisClient:
    return KinesisClient(client_options_at(url))


def test_a_response_of_arrays_in_arrays_is_malformed_and_no_recursion() -> None:
    deep = b'{"x":' + b"[" * 1_000_000
    for parse in (parse_event, lambda body, where: parse_page(body, 0, where)):
        with pytest.raises(ServiceUnavailableError, match="KINESIS_ANSWER_MALFORMED"):
            parse(deep, "orders, shard-1")
