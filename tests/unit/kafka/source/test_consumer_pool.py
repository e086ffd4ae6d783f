"""The reads of tasks on a mock cluster, in both ways: what they make of answers that are errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from connectors.core.errors import ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.native import NativeSink, native_reason
from connectors.kafka.offsets import EARLIEST, TopicPartition
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.schema import Event
from connectors.kafka.sink.writer import RecordSink
from connectors.kafka.source.consumer_pool import CONSUMERS, RecordSource, open_source, own_defaults
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import read_range, watermarks
from connectors.testing.kafka.mock import MockKafka
from tests.support.kafka_headers import send_header

UNKNOWN_PARTITION, NOT_LEADER = 3, 6

needs_native = pytest.mark.skipif(bool(native_reason()), reason=native_reason() or "none")


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with MockKafka() as made:
        made.create_topic("t", 1)
        yield made
        CONSUMERS.close()


def how(mock: MockKafka, *, headers: bool = False, poll_timeout: float = 10.0) -> KafkaReadOptions:
    client = ClientSettings((("bootstrap.servers", mock.endpoint), ("isolation.level", "read_uncommitted")))
    return KafkaReadOptions(
        client=client, group="check", include_headers=headers, poll_timeout_ms=int(poll_timeout * 1000)
    )


def send(mock: MockKafka, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for value in values:
        producer.produce("t", value, partition=0)
    assert producer.flush(10) == 0


def rows(start: int, end: int, settings: KafkaReadOptions) -> list[dict[str, Any]]:
    return [row for batch in read_range(OffsetRange("t", 0, start, end), settings) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "answers",
    [[NOT_LEADER], [0, NOT_LEADER], [NOT_LEADER] * 2, [UNKNOWN_PARTITION], [0, UNKNOWN_PARTITION]],
)
@pytest.mark.usefixtures("native")
def test_a_lookup_of_which_an_answer_is_an_error_finds_all_rows(mock: MockKafka, answers: list[int]) -> None:
    send(mock, [b"v"] * 3)
    mock.fail("ListOffsets", answers)
    assert len(rows(-2, -1, how(mock))) == 3


@pytest.mark.usefixtures("native")
def test_a_partition_whose_leader_goes_on_to_say_that_there_is_none_is_gone(mock: MockKafka) -> None:
    source = open_source(how(mock))
    mock.fail("ListOffsets", [UNKNOWN_PARTITION] * 5000)
    with pytest.raises(SourceGoneError):
        watermarks(source, TopicPartition("t", 0), 30)  # 1 s of such answers is enough, however late the first is
    source.close()


@pytest.mark.usefixtures("native")
def test_one_late_answer_that_there_is_no_partition_is_asked_about_again(mock: MockKafka) -> None:
    class Late:
        def offset_of(self, where: TopicPartition, word: int, seconds: float) -> int:
            time.sleep(2 if word == EARLIEST else 0)
            return source.offset_of(where, word, seconds)

    source = open_source(how(mock))
    mock.fail("ListOffsets", [UNKNOWN_PARTITION])
    assert watermarks(cast("RecordSource", Late()), TopicPartition("t", 0), 30) == (0, 0)
    source.close()


GONE = SourceGoneError("KAFKA_GONE", "There is no such partition", "t-0", "Look for it.")
AWAY = ServiceUnavailableError("KAFKA_UNAVAILABLE", "There is no leader", "t-0", "Wait.")


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([(0.0, GONE), (1.2, AWAY), (0.0, GONE)], id="a new leader came in between"),
        pytest.param([(0.0, AWAY), (3.2, GONE)], id="after the time for the lookup"),
    ],
)
def test_one_answer_that_there_is_no_partition_is_not_enough(answers: list[tuple[float, ConnectorError]]) -> None:
    class Told:
        def offset_of(self, *_asked: object) -> int:
            if not answers:
                return 7
            pause, error = answers.pop(0)
            time.sleep(pause)
            raise error

    assert watermarks(cast("RecordSource", Told()), TopicPartition("t", 0), 3) == (7, 7)


@pytest.mark.usefixtures("native")
def test_a_range_that_ends_in_control_records_ends_though_the_end_was_reported_in_the_range_before(
    mock: MockKafka,
) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint, "transactional.id": "x", "linger.ms": 0})
    producer.init_transactions(10)
    for number in range(10):  # two offsets each: the record, and the end of its transaction
        producer.begin_transaction()
        producer.produce("t", b"%d" % number, partition=0)
        producer.commit_transaction(10)
    settings = how(mock, poll_timeout=60)
    found = []
    for part in ((0, 6), (6, 16), (16, 20)):
        time.sleep(0.2)  # the kept consumer goes on fetching: the end of the partition comes with an earlier range
        found.append([row["offset"] for row in rows(*part, settings)])
    assert found == [[0, 2, 4], [6, 8, 10, 12, 14], [16, 18]]


def test_a_user_who_lets_brokers_wait_gets_no_least_bytes_that_each_small_range_would_wait_for() -> None:
    assert own_defaults({})["fetch.min.bytes"] == "1024"
    assert "fetch.min.bytes" not in own_defaults({"fetch.wait.max.ms": "500"})
    assert {"fetch.min.bytes", "fetch.wait.max.ms"} & set(own_defaults({"fetch.min.bytes": "1"})) == {
        "fetch.wait.max.ms"
    }


@pytest.mark.usefixtures("native")
def test_an_event_names_its_partition(mock: MockKafka) -> None:
    mock.create_topic("other", 3)
    source, where = open_source(how(mock)), TopicPartition("other", 2)
    source.assign(where, 0)
    events: list[Event] = []
    for _ in range(1000):
        events += source.fetch(10, 0.01).events
        if events:
            break
    source.close()
    assert [(each.name, each.partition, each.offset) for each in events] == [("_PARTITION_EOF", where, 0)]


def _rows_with_headers(mock: MockKafka, end: int) -> list[Any]:
    settings = how(mock, headers=True)
    return [row["headers"] for row in rows(0, end, settings)]


@pytest.mark.usefixtures("native")
def test_headers_are_the_same_in_both_ways(mock: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    sent: list[Any] = [[("b", b"1"), ("a", None), ("b", b""), ("\u00e9", b"\0x")], None, [("", b"v" * 1000)]]
    for headers in sent:
        producer.produce("t", b"v", partition=0, headers=headers)
    assert producer.flush(10) == 0
    wanted = [headers and [{"key": key, "value": value} for key, value in headers] for headers in sent]
    assert _rows_with_headers(mock, 3) == wanted


GOOD = 1000
"""Records before a bad one: after some calls the interpreter no longer checks what the client returned."""


@needs_native
def test_what_is_not_utf_8_in_the_key_of_a_header_is_replaced(mock: MockKafka) -> None:
    send(mock, [b"good"] * GOOD)
    send_header(mock, b"caf\xe9")
    assert _rows_with_headers(mock, GOOD + 1) == [*[None] * GOOD, [{"key": "caf\ufffd", "value": b"1"}]]


@pytest.mark.usefixtures("plain_path")
def test_the_plain_way_names_a_record_with_such_a_key(mock: MockKafka) -> None:
    send(mock, [b"good"] * GOOD)
    send_header(mock, b"caf\xe9")
    with pytest.raises(ConnectorError, match=rf"\[KAFKA_MALFORMED_HEADERS\].*offset {GOOD} .*\(t-0\)"):
        _rows_with_headers(mock, GOOD + 1)


@pytest.mark.parametrize("name", ["reconnect.backoff.ms", "reconnect.backoff.max.ms"])
@pytest.mark.usefixtures("native")
def test_a_pause_before_reconnecting_may_be_longer_than_ours(mock: MockKafka, name: str) -> None:
    send(mock, [b"v"])
    settings = how(mock)
    client = replace(settings.client, plain=(*settings.client.plain, (name, "5000")))
    assert len(rows(0, 1, replace(settings, client=client))) == 1


@pytest.mark.usefixtures("native")
def test_the_position_moves_behind_ends_of_transactions(mock: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint, "transactional.id": "x"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("t", b"v", partition=0)
    producer.commit_transaction(10)
    source, where = open_source(how(mock)), TopicPartition("t", 0)
    assert source.position(where) < 0
    source.assign(where, 1)
    rows, end = 0, time.monotonic() + 60
    while source.position(where) < 2 and time.monotonic() < end:
        rows += len(source.fetch(10, 0.01))
    assert (rows, source.position(where)) == (0, 2)
    source.close()


NOWHERE = ClientSettings((("bootstrap.servers", "127.0.0.1:1"),))


def _consumed(*, native: bool) -> Callable[[], Any]:  # noqa: ARG001 - the fixture of this name has chosen
    settings = KafkaReadOptions(client=NOWHERE, group="g", poll_timeout_ms=1_000)
    source = open_source(settings)
    return lambda: source.fetch(1, 0.1)


def _produced(*, native: bool) -> Callable[[], Any]:
    sink: Any = NativeSink(NOWHERE) if native else RecordSink(NOWHERE)
    return lambda: time.sleep(0.1) if native else sink.check()


def _asked(*, native: bool) -> Callable[[], Any]:  # noqa: ARG001 - there is one way
    lookup = KafkaLookup(NOWHERE)
    return lookup._serve


@pytest.mark.parametrize("client", [_consumed, _produced, _asked])
def test_lines_of_librdkafka_are_logged_and_not_written_to_standard_error(
    client: Callable[..., Callable[[], Any]],
    native: bool,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if native and native_reason():
        pytest.skip(native_reason())
    caplog.set_level(logging.INFO)
    poll, end = client(native=native), time.monotonic() + 60
    while not all(text in caplog.text for text in ("FAIL [", "KAFKA_BROKERS_DOWN", "Connection refused")):
        assert time.monotonic() < end
        poll()
    lines = [record for record in caplog.records if "FAIL [" in record.message]
    assert {record.name for record in lines} == {"connectors.kafka.client"}
    texts = [record.message.partition(" (after ")[0] for record in lines]
    assert len(set(texts)) == len(texts), "no line comes again and again"
    assert "127.0.0.1:1/" not in capfd.readouterr().err  # a client of another test may still write there
