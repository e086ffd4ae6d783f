"""Questions for partitions, on a mock cluster: which topics a pattern means, and how an error is waited out."""

from __future__ import annotations

import contextlib
import gc
import inspect
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer

from connectors.core.errors import CredentialsError, ServiceUnavailableError, SourceGoneError
from connectors.core.offsets import SENTINEL, START_KEY
from connectors.kafka.client.admin import KafkaLookup, RetryingLookup
from connectors.kafka.client.errors import gone
from connectors.kafka.native import library
from connectors.kafka.offsets import TopicPartition, resolved_start
from connectors.kafka.options.source import KafkaReadOptions, Subscribe, SubscribePattern, parse_read_options
from connectors.kafka.source.batch import Bounds, plan_batch
from connectors.kafka.source.micro_batch import KafkaStream
from connectors.testing.kafka.mock import MockKafka
from tests.servers.certificates import make_certificates
from tests.support.kafka_tls import TlsKafka
from tests.support.waiting import wait_for

UNKNOWN_PARTITION, LEADER_NOT_AVAILABLE, CONNECTION_BROKEN = 3, 5, -195
PASSING = {
    "REPLICA_NOT_AVAILABLE": 9,
    "NETWORK_EXCEPTION": 13,
    "NOT_CONTROLLER": 41,
    "LISTENER_NOT_FOUND": 72,
    "FENCED_LEADER_EPOCH": 74,
    "UNKNOWN_LEADER_EPOCH": 75,
    "OFFSET_NOT_AVAILABLE": 78,
    "UNSTABLE_OFFSET_COMMIT": 88,
}
"""What Kafka's own client tries again, by librdkafka's names."""


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with MockKafka() as made:
        for topic in ("t", "__consumer_offsets", "__transaction_state"):
            made.create_topic(topic, 1)
        yield made


def options(mock: MockKafka, raw: Mapping[str, str], *, streaming: bool) -> KafkaReadOptions:
    given = {"kafka.bootstrap.servers": mock.endpoint, "subscribe": "t", **raw}
    return parse_read_options(given, {}, streaming=streaming)


def lookup(mock: MockKafka, seconds: float = 30.0) -> KafkaLookup:
    return KafkaLookup(options(mock, {}, streaming=True).client, call_seconds=seconds)


def test_a_pattern_leaves_internal_topics_out_and_their_names_mean_them(mock: MockKafka) -> None:
    with lookup(mock) as asked:
        assert {each.topic for each in asked.partitions(SubscribePattern(".*"))} == {"t"}
        named = asked.partitions(Subscribe(("__consumer_offsets",)))
        assert {each.topic for each in named} == {"__consumer_offsets"}


def test_an_error_that_may_pass_is_asked_about_again_with_pauses(mock: MockKafka) -> None:
    with lookup(mock, seconds=1.0) as asked:
        asked.partitions(Subscribe(("t",)))
        mock.count_requests()
        mock.fail("Metadata", [LEADER_NOT_AVAILABLE] * 5000)
        with pytest.raises(ServiceUnavailableError):
            asked.partitions(Subscribe(("t",)))
        assert 2 <= mock.requests("Metadata") <= 50, "one each tenth of a second, and not thousands"


@pytest.mark.parametrize(("answers", "found"), [(1, True), (20, False)])
def test_an_unknown_topic_is_asked_for_as_often_as_the_option_says(mock: MockKafka, answers: int, found: bool) -> None:
    given = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "10"}
    patient = RetryingLookup(options(mock, given, streaming=True))
    attempts = []

    def question(asked: KafkaLookup) -> int:
        attempts.append(asked)
        if len(attempts) <= answers:
            raise gone("t")
        return len(asked.partitions(Subscribe(("t",))))

    if found:
        assert patient.ask(question) == 1
    else:
        with pytest.raises(SourceGoneError):
            patient.ask(question)
    assert len(attempts) == 2
    patient.close()


def test_a_partition_that_is_listed_and_not_known_to_its_leader_is_asked_for_later(mock: MockKafka) -> None:
    where = TopicPartition("t", 0)
    with lookup(mock) as asked:
        for question in (asked.latest, asked.earliest):
            mock.fail("ListOffsets", [UNKNOWN_PARTITION] * 2)
            with pytest.raises(ServiceUnavailableError, match=r"Kafka lists these partitions.*\[t-0\]"):
                question([where])
            assert question([where]) == {where: 0}


def test_a_partition_that_is_not_listed_is_left_out(mock: MockKafka) -> None:
    with lookup(mock) as asked:
        assert asked.latest([TopicPartition("t", 0), TopicPartition("t", 7)]) == {TopicPartition("t", 0): 0}


UNKNOWN_TO_ONE_LEADER = [UNKNOWN_PARTITION, 0, UNKNOWN_PARTITION, UNKNOWN_PARTITION, 0, UNKNOWN_PARTITION]


@pytest.fixture
def two_leaders() -> Iterator[MockKafka]:
    """Two brokers that lead one partition each, with ten records in both."""
    with MockKafka(2) as made:
        made.create_topic("t", 2)
        producer = Producer({"bootstrap.servers": made.endpoint})
        for number in range(20):
            producer.produce("t", b"v", partition=number % 2)
        assert producer.flush(10) == 0
        yield made


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_stream_keeps_a_partition_that_its_leader_does_not_know_for_a_moment(
    two_leaders: MockKafka, fail_on_data_loss: str
) -> None:
    raw = {"startingOffsets": "earliest", "failOnDataLoss": fail_on_data_loss, "fetchOffset.retryIntervalMs": "10"}
    stream = KafkaStream(options(two_leaders, raw, streaming=True))
    start = {**stream.latest_offset(SENTINEL, everything=True)}
    assert [each.size for each in stream.partitions(SENTINEL, start)] == [10, 10]
    start.pop(START_KEY)
    two_leaders.fail("ListOffsets", UNKNOWN_TO_ONE_LEADER)
    for _ in range(3):
        end = stream.latest_offset(start, everything=True)
        assert (end, stream.partitions(start, end)) == (start, [])
        start = end
    stream.stop()


def test_a_new_stream_begins_at_the_end_of_a_partition_that_its_leader_does_not_know_for_a_moment(
    two_leaders: MockKafka,
) -> None:
    raw = {"startingOffsets": "latest", "fetchOffset.retryIntervalMs": "10"}
    stream = KafkaStream(options(two_leaders, raw, streaming=True))
    two_leaders.fail("ListOffsets", UNKNOWN_TO_ONE_LEADER)
    end = stream.latest_offset(SENTINEL, everything=True)
    assert stream.partitions(SENTINEL, end) == []
    assert resolved_start(end) == {TopicPartition("t", 0): 10, TopicPartition("t", 1): 10}
    stream.stop()


def test_a_batch_read_keeps_partitions_that_their_leader_does_not_know_for_a_moment(mock: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for _ in range(10):
        producer.produce("t", b"v", partition=0)
    assert producer.flush(10) == 0
    raw = {"minPartitions": "4", "fetchOffset.retryIntervalMs": "10"}
    mock.fail("ListOffsets", [UNKNOWN_PARTITION] * 4)
    assert len(plan_batch(options(mock, raw, streaming=False), Bounds())) == 4


@pytest.mark.guarantee
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_stream_asks_again_when_a_connection_breaks_within_the_response_about_offsets(
    two_leaders: MockKafka, starting: str
) -> None:
    raw = {"startingOffsets": starting, "fetchOffset.retryIntervalMs": "10"}
    stream = KafkaStream(options(two_leaders, raw, streaming=True))
    two_leaders.fail("ListOffsets", [CONNECTION_BROKEN, 0, CONNECTION_BROKEN])
    end = {**stream.latest_offset(SENTINEL, everything=True)}
    assert [each.size for each in stream.partitions(SENTINEL, end)] == ([10, 10] if starting == "earliest" else [])
    end.pop(START_KEY)
    for broken in ([CONNECTION_BROKEN], [CONNECTION_BROKEN] * 2):
        two_leaders.fail("ListOffsets", broken)
        assert stream.latest_offset(end, everything=True) == end
    stream.stop()


def test_a_connection_that_breaks_with_each_response_about_offsets_is_an_outage(mock: MockKafka) -> None:
    where = TopicPartition("t", 0)
    with lookup(mock, seconds=1.0) as asked:
        for question in (asked.earliest, asked.latest):
            mock.fail("ListOffsets", [CONNECTION_BROKEN] * 1000)
            with pytest.raises(ServiceUnavailableError, match=r"KAFKA_UNAVAILABLE.*t-0"):
                question([where])
            mock.fail("ListOffsets", [])


def test_a_passing_error_of_a_lookup_is_tried_again(mock: MockKafka) -> None:
    patient = RetryingLookup(options(mock, {"fetchOffset.retryIntervalMs": "10"}, streaming=True))
    where = TopicPartition("t", 0)
    assert patient.ask(lambda asked: asked.latest([where])) == {where: 0}
    for name, code in PASSING.items():
        assert library.library().rd_kafka_err2name(code).decode() == name
        mock.fail("ListOffsets", [code])
        assert patient.ask(lambda asked: asked.latest([where])) == {where: 0}, name
    patient.close()


def threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


@pytest.fixture
def without_collection() -> Iterator[None]:
    """What the garbage collector would find stays: a source process that asks little is not collected for hours."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
def test_a_closed_lookup_leaves_no_thread_and_no_connection(mock: MockKafka) -> None:
    before = threads()
    with lookup(mock) as asked:
        asked.latest([TopicPartition("t", 0)])
    # A thread that was waited for stays listed until the kernel has ended it; fewer, if what an earlier test had left
    # ends meanwhile.
    wait_for(lambda: threads() <= before)


def test_servers_that_are_not_there_are_named_with_what_the_client_says_of_them() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    with KafkaLookup(parse_read_options(given, {}, streaming=True).client, call_seconds=1.0) as asked:
        end = time.monotonic() + 60
        while asked._connection_errors._last is None:  # else a second may pass before the client has tried
            assert time.monotonic() < end
            asked._consumer.poll(0.01)
        with pytest.raises(
            ServiceUnavailableError,
            match=r"\[KAFKA_UNAVAILABLE\].*last reported: .*Connection "
            r"refused",
        ):
            asked.partitions(Subscribe(("t",)))


def test_a_log_in_that_is_refused_while_a_question_waits_ends_it_and_no_later_one(
    mock: MockKafka, certificates: Path
) -> None:
    where = TopicPartition("t", 0)
    with TlsKafka(mock, certificates) as kafka, KafkaLookup(kafka.settings(), call_seconds=60.0) as asked:
        assert asked.latest([where]) == {where: 0}
        kafka.refuse()
        began = time.monotonic()
        with pytest.raises(CredentialsError, match=r"\[KAFKA_LOG_IN\].*SSL"):
            asked.latest([where])
        assert time.monotonic() - began < 50, "long before its time is over"
        kafka.refuses, kafka.delay = False, 0.7  # so long that the question looks for what was refused meanwhile

        def answered() -> bool:
            with contextlib.suppress(CredentialsError):  # of a connection that was refused a moment ago
                return asked.latest([where]) == {where: 0}
            return False

        wait_for(answered)


NOWHERE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "fetchOffset.retryIntervalMs": "0"}


def test_brokers_that_have_never_answered_are_reported_without_another_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert inspect.signature(RetryingLookup).parameters["first_seconds"].default < 30
    counted = {**NOWHERE, "fetchOffset.numRetries": "3"}
    asked = RetryingLookup(parse_read_options(counted, {}, streaming=True), first_seconds=2.0)
    with pytest.raises(ServiceUnavailableError, match="Connection refused"):
        asked.ask(lambda made: made.partitions(Subscribe(("t",))))
    assert "KAFKA_OFFSETS_RETRIED" not in caplog.text


def test_brokers_that_have_answered_get_all_attempts(caplog: pytest.LogCaptureFixture) -> None:
    def refused(_: KafkaLookup) -> None:
        raise ServiceUnavailableError("KAFKA_UNAVAILABLE", "No answer came")

    counted = {**NOWHERE, "fetchOffset.numRetries": "3"}
    asked = RetryingLookup(parse_read_options(counted, {}, streaming=True), first_seconds=0.0)
    assert asked.ask(lambda _: "an answer") == "an answer"
    with pytest.raises(ServiceUnavailableError):
        asked.ask(refused)
    assert caplog.text.count("KAFKA_OFFSETS_RETRIED") == 2


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    pytest.importorskip("cryptography")
    return make_certificates(tmp_path / "certificates")


@pytest.fixture(params=["127.0.0.1", "127.0.0.2"])
def tls_server(request: pytest.FixtureRequest, certificates: Path) -> Iterator[str]:
    """A server that shows a certificate for 127.0.0.1, whatever its address is, and says nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), context.wrap_socket(self.request, server_side=True) as connection:
                connection.recv(1)

    with socketserver.ThreadingTCPServer((request.param, 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"{request.param}:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_certificate_that_is_not_trusted_is_no_outage_and_names_the_options_for_authorities(
    tls_server: str, certificates: Path
) -> None:
    given = {"kafka.bootstrap.servers": tls_server, "subscribe": "t", "kafka.security.protocol": "SSL"}
    if tls_server.startswith("127.0.0.2"):  # trusted, but for another name
        given["kafka.ssl.ca.location"] = str(certificates / "ca.pem")
    asked = RetryingLookup(parse_read_options(given, {}, streaming=True))
    with pytest.raises(CredentialsError) as caught:
        asked.ask(lambda made: made.partitions(Subscribe(("t",))))
    assert caught.value.code == "KAFKA_CERTIFICATE_UNTRUSTED"
    assert not caught.value.transient
    for name in ("kafka.ssl.ca.location", "kafka.ssl.truststore.location", "host name"):
        assert name in caught.value.action


def test_topics_have_no_ids_where_the_controller_is_not_among_the_brokers_and_nobody_is_asked_again_soon(
    mock: MockKafka,
) -> None:
    with lookup(mock) as asked:
        mock.count_requests()
        calls = 20
        assert [asked.topic_ids(["t"]) for _ in range(calls)] == [{}] * calls
        # That of the first call, and what the clients ask by themselves once they are connected.
        assert 0 < mock.requests("Metadata") < calls
