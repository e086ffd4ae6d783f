"""Records that a broker refuses while later ones are under way: an idempotent client takes them for written.

librdkafka's mock cluster refuses one request, and takes those that follow, as a broker does that has not begun to lead
a partition when the first one comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition
from pyspark.sql.types import BinaryType, StructField, StructType

from connectors.core.errors import ServiceUnavailableError
from connectors.kafka.native import MOST_ROUNDS, NativeSink
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.sink import parse_write_options
from connectors.kafka.schema import Columns, check_columns
from connectors.kafka.sink.writer import RecordSink, TransactionalSink
from connectors.testing.kafka.mock import MockKafka

pytestmark = pytest.mark.guarantee
TOPIC = "orders"
VALUES = [b"%d" % number for number in range(30)]
HEADERS = [("of", b"shop")]
NOT_THE_LEADER = 6
REFUSALS = pytest.mark.parametrize("refusal", [3, 5, 6], ids=["unknown topic", "no leader", "not the leader"])


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as kafka:
        kafka.create_topic(TOPIC, 1)
        kafka.delay(5)  # so that others are under way when the first one is answered
        yield kafka


def settings(kafka: MockKafka, guarantee: str = "at_least_once", **more: str) -> ClientSettings:
    # A record a request, so that many are under way.
    given = {"kafka.bootstrap.servers": kafka.endpoint, "topic": TOPIC, "deliveryGuarantee": guarantee}
    small = {"kafka.batch.num.messages": "1", "kafka.linger.ms": "0"}
    given |= small | {name.replace("__", "."): value for name, value in more.items()}
    return parse_write_options(given, {}, streaming=True).client


def read(kafka: MockKafka) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": kafka.endpoint, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([Partition(TOPIC, 0, 0)])
    found = []
    while (message := consumer.poll(60)) is not None and not message.error():
        found.append(message)
    consumer.close()
    return found


def batch_of(keys: list[bytes | None], values: list[bytes]) -> tuple[pa.RecordBatch, Columns]:
    schema = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    rows = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    return rows, check_columns(schema, TOPIC, timestamps=False)


@REFUSALS
@pytest.mark.parametrize(("idempotence", "key"), [("true", b"own key"), ("True", None), ("1", b"")])
def test_the_fast_path_writes_refused_records_again_with_all_they_had(
    kafka: MockKafka, refusal: int, idempotence: str, key: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    sink = NativeSink(settings(kafka, kafka__enable__idempotence=idempotence))
    keys = [key, *(b"key-%d" % number for number in range(len(VALUES)))]
    values = [b"refused", *VALUES]
    kafka.fail("Produce", [refusal])
    for _ in range(2):
        sink.begin()
        sink.send(*batch_of(keys, values))
        sink.finish()
    sink.discard()
    found = Counter((message.key(), message.value()) for message in read(kafka))
    assert found == Counter(dict.fromkeys(zip(keys, values, strict=True), 2))
    assert "[KAFKA_WRITTEN_AGAIN] Writing 1 record(s) again" in caplog.text


@REFUSALS
@pytest.mark.parametrize("headers", [None, HEADERS], ids=["without headers", "with headers"])
def test_the_plain_path_writes_refused_records_again_with_all_they_had(
    kafka: MockKafka, refusal: int, headers: list[tuple[str, bytes]] | None, caplog: pytest.LogCaptureFixture
) -> None:
    sink = RecordSink(settings(kafka))
    kafka.fail("Produce", [refusal])
    keys = [b"own key", None, *(b"key-%d" % number for number in range(2, len(VALUES)))]
    sink.send([(TOPIC, key, value, -1, 0, headers) for key, value in zip(keys, VALUES, strict=True)])
    sink.finish()
    sink.discard()
    found = read(kafka)
    assert Counter((message.key(), message.value()) for message in found) == Counter(zip(keys, VALUES, strict=True))
    assert [message.headers() for message in found] == [headers] * len(VALUES)
    assert "[KAFKA_WRITTEN_AGAIN] Writing 1 record(s) again" in caplog.text


def write(given: ClientSettings, path: str, keys: list[bytes | None]) -> None:
    """Write a row for each key, with its number as its value."""
    values = [b"%d" % number for number in range(len(keys))]
    if path == "fast":
        fast = NativeSink(given)
        try:
            fast.send(*batch_of(keys, values))
            fast.finish()
        finally:
            fast.discard()
        return
    plain = RecordSink(given)
    try:
        for first in range(0, len(keys), 10):
            part = slice(first, first + 10)
            plain.send([(TOPIC, key, value, -1, 0, None) for key, value in zip(keys[part], values[part], strict=True)])
        plain.finish()
    finally:
        plain.discard()


PATHS = pytest.mark.parametrize("path", ["fast", "plain"])


@PATHS
def test_the_newest_value_of_a_key_stays_the_last_one(kafka: MockKafka, path: str) -> None:
    kafka.fail("Produce", [NOT_THE_LEADER])
    keys = [b"refused", *[b"another", b"refused", None] * 33]
    write(settings(kafka), path, keys)
    found = read(kafka)
    last = {message.value(): place for place, message in enumerate(found)}
    assert len(last) == len(keys)
    of_key = [last[b"%d" % number] for number, key in enumerate(keys) if key == b"refused"]
    assert of_key == sorted(of_key)
    others = Counter(message.key() for message in found if message.key() != b"refused")
    assert others == {b"another": 33, None: 33}  # nothing else is written again


@PATHS
def test_records_that_no_broker_ever_confirms_are_an_error(kafka: MockKafka, path: str) -> None:
    # The first request of each round is refused, while others are under way; of one key, all rows are written again.
    keys: list[bytes | None] = [b"key"] * 10
    kafka.fail("Produce", [NOT_THE_LEADER, *[0] * (len(keys) - 1)] * (1 + MOST_ROUNDS))
    with pytest.raises(ServiceUnavailableError, match=r"\[KAFKA_WRITE_UNCONFIRMED\].*orders-0"):
        write(settings(kafka), path, keys)
    assert len(read(kafka)) == (1 + MOST_ROUNDS) * (len(keys) - 1)


class _Unconfirmed:
    """A report as the client makes it of a record that it takes for written, as `Message` of confluent-kafka."""

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return None

    def offset(self) -> None:
        return None


def test_a_transaction_with_a_record_that_no_broker_has_confirmed_is_not_committed(kafka: MockKafka) -> None:
    # The mock cluster refuses what follows in a transaction, real brokers take it: see test_exactly_once.py.
    with pytest.raises(ServiceUnavailableError, match=r"\[KAFKA_WRITE_UNCONFIRMED\].*orders-7"):
        commit_unconfirmed(settings(kafka, "exactly_once"))


def commit_unconfirmed(given: ClientSettings) -> None:
    with TransactionalSink(given, "id") as transaction:
        transaction.fence()
        transaction.begin()
        transaction.sink._delivered(None, _Unconfirmed())
        transaction.sink.finish()
        transaction.commit()
