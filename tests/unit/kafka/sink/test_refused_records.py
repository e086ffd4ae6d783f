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
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.sink import parse_write_options
from connectors.kafka.sink.native_writer import NativeSink
from connectors.kafka.sink.rows import check_columns
from connectors.kafka.sink.writer import RecordSink, TransactionalSink
from connectors.testing.kafka.mock import MockKafka

pytestmark = pytest.mark.guarantee
TOPIC = "orders"
VALUES = [b"%d" % number for number in range(100)]
HEADERS = [("of", b"shop")]
REFUSALS = pytest.mark.parametrize("refusal", [3, 5, 6], ids=["unknown topic", "no leader", "not the leader"])


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as kafka:
        kafka.create_topic(TOPIC, 1)
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


@REFUSALS
@pytest.mark.parametrize(("idempotence", "key"), [("true", b"own key"), ("True", None), ("1", b"")])
def test_the_fast_path_writes_refused_records_again_with_all_they_had(
    kafka: MockKafka, refusal: int, idempotence: str, key: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    sink = NativeSink(settings(kafka, kafka__enable__idempotence=idempotence))
    keys = [key, *(b"key-%d" % number for number in range(len(VALUES)))]
    values = [b"refused", *VALUES]
    kafka.fail("Produce", [refusal])
    schema = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    rows = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    columns = check_columns(schema, TOPIC, timestamps=False)
    for _ in range(2):
        sink.begin()
        sink.send(rows, columns)
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
    sink.send([(TOPIC, b"key", value, -1, 0, headers) for value in VALUES])
    sink.finish()
    sink.discard()
    found = read(kafka)
    assert Counter(message.value() for message in found) == Counter(VALUES)
    assert [(message.key(), message.headers()) for message in found] == [(b"key", headers)] * len(VALUES)
    assert "[KAFKA_WRITTEN_AGAIN] Writing 1 record(s) again" in caplog.text


class _Unconfirmed:
    """A report as the client makes it of a record that it takes for written, as `Message` of confluent-kafka."""

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return 7

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
