"""What an error says of the rows that a broker refuses: both paths, and transactions, on librdkafka's mock cluster."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Partition
from pyspark.sql.types import BinaryType, StringType, StructField, StructType, TimestampType

from connectors.core.datasource import StreamTask
from connectors.core.errors import AccessDeniedError, ConnectorError, SourceGoneError
from connectors.kafka.client.errors import RefusedRows, named_error
from connectors.kafka.datasource import KafkaDataSource
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.sink import parse_write_options
from connectors.kafka.schema import check_columns
from connectors.kafka.sink.exactly_once import finish_batch
from connectors.kafka.sink.rows import records
from connectors.kafka.sink.writer import TransactionalSink, close_sinks, produce_batches
from connectors.testing.kafka.mock import MockKafka
from tests.support.kafka_task import batches, exactly_once
from tests.support.spark_protocol.driver import BatchRead, InProcessWorkers, TaskFailedError

TOPIC = "orders"
TYPES = {"topic": StringType(), "key": BinaryType(), "value": BinaryType(), "timestamp": TimestampType()}
KINDS = {
    "topic": pa.string(),
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
SECRET = b"secret of a row"


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as kafka:
        kafka.create_topic(TOPIC, 1)
        yield kafka
        close_sinks()


def settings(kafka: MockKafka, **more: str) -> ClientSettings:
    given = {"kafka.bootstrap.servers": kafka.endpoint} | more
    return parse_write_options(given | {"kafka.linger.ms": "200"}, {}, streaming=True).client


def write(kafka: MockKafka, **columns: list[object]) -> None:
    topic = None if "topic" in columns else TOPIC
    schema = StructType([StructField(name, TYPES[name]) for name in columns])
    rows = pa.RecordBatch.from_pydict({name: pa.array(cells, KINDS[name]) for name, cells in columns.items()})
    chosen = check_columns(schema, topic, timestamps=True)
    produce_batches([rows], chosen, settings(kafka, **({} if topic is None else {"topic": topic})))


@pytest.mark.usefixtures("native")
def test_a_row_that_a_broker_finds_invalid_is_told_by_its_key_and_the_policy_of_its_topic(kafka: MockKafka) -> None:
    kafka.fail("Produce", [87])
    with pytest.raises(ConnectorError) as caught:
        write(kafka, key=[b"a", None, b"ccc"], value=[b"v", SECRET, None])
    said = str(caught.value)
    assert said.startswith("[KAFKA_RECORD_INVALID] The broker refuses a record as invalid: ")
    assert "(INVALID_RECORD). The request has 3 rows with 20 bytes in keys and values, 1 of them without a key" in said
    assert f"the largest has a null key and a value of {len(SECRET)} bytes" in said
    assert "(orders-0). For a compacted topic, fill the column key" in said
    assert SECRET.decode() not in said


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("number", "code", "action"),
    [
        (32, "KAFKA_TIMESTAMP", "message.timestamp.before.max.ms"),
        (10, "KAFKA_RECORD_TOO_LARGE", "max.message.bytes"),
        (18, "KAFKA_RECORD_TOO_LARGE", "max.message.bytes"),
        (17, "KAFKA_TOPIC_NAME", "option or the column topic"),
        (44, "KAFKA_ERROR", ""),
    ],
)
def test_each_error_that_a_row_may_cause_says_what_of_it_and_what_to_do(
    kafka: MockKafka, number: int, code: str, action: str
) -> None:
    kafka.fail("Produce", [number])
    with pytest.raises(ConnectorError) as caught:
        write(kafka, key=[b""], value=[b"v"])
    assert caught.value.code == code
    assert caught.value.where == "orders-0"
    assert "The row has a key of 0 bytes and a value of 1 byte. The rows have the time of writing" in caught.value.what
    assert action in caught.value.action
    write(kafka, key=[b""], value=[b"v"])  # the next task works


@pytest.mark.usefixtures("native")
def test_a_topic_without_the_right_to_write_and_one_that_is_gone_name_the_column(kafka: MockKafka) -> None:
    kafka.fail("Produce", [29])
    with pytest.raises(AccessDeniedError, match=r"KAFKA_ACCESS_DENIED.*\(orders-0\).*Write on topics"):
        write(kafka, topic=[TOPIC], value=[b"v"])
    refused = RefusedRows("UNKNOWN_TOPIC_OR_PART", "Unknown topic", TOPIC, None)
    refused.add(None, 1)
    assert isinstance(refused.error(), SourceGoneError)
    assert "the columns topic and partition of the rows" in refused.error().action


def test_a_refused_timestamp_is_named(kafka: MockKafka) -> None:
    times = [dt.datetime(2001, 2, 3, 4, 5, 6, 789000, dt.UTC), None, dt.datetime(2030, 1, 1, tzinfo=dt.UTC)]
    kafka.fail("Produce", [32])
    with pytest.raises(ConnectorError, match="KAFKA_TIMESTAMP") as caught:
        write(kafka, value=[b"v"] * 3, timestamp=times)
    assert "timestamps from 2001-02-03T04:05:06.789+00:00 to 2030-01-01T00:00:00.000+00:00" in caught.value.what


def test_a_timestamp_beyond_the_times_of_python_is_still_an_error() -> None:
    refused = RefusedRows("INVALID_TIMESTAMP", "Invalid timestamp", TOPIC, 0)
    refused.add(None, 1)
    assert "9999-12-31T23:59:59.999+00:00" in refused.error((2**62, 2**62)).what


def test_a_transaction_says_it_too(kafka: MockKafka) -> None:
    schema = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    rows = pa.RecordBatch.from_pydict({"key": pa.array([None], pa.binary()), "value": pa.array([b"v"], pa.binary())})

    def commit() -> None:
        with TransactionalSink(settings(kafka, topic=TOPIC, deliveryGuarantee="exactly_once"), "id") as transaction:
            transaction.fence()
            transaction.begin()
            transaction.sink.send(records(rows, check_columns(schema, TOPIC, timestamps=True)))
            transaction.sink.finish()

    kafka.fail("Produce", [87])
    with pytest.raises(ConnectorError, match=r"KAFKA_RECORD_INVALID.*The row has a null key.*\(orders-0\)"):
        commit()


def test_where_the_broker_names_the_invalid_record_the_others_do_not_count() -> None:
    other = RefusedRows("_INVALID_DIFFERENT_RECORD", "different record in batch", TOPIC, 0)
    assert other.replaced_by("INVALID_RECORD")
    assert not other.replaced_by("_INVALID_DIFFERENT_RECORD")
    assert not RefusedRows("INVALID_RECORD", "", TOPIC, 0).replaced_by("_INVALID_DIFFERENT_RECORD")


def test_exactly_once_on_a_mock_cluster_is_refused_before_a_row_is_written(kafka: MockKafka) -> None:
    given = {"kafka.bootstrap.servers": kafka.endpoint, "topic": TOPIC}
    for batch in range(2):
        with pytest.raises(
            ConnectorError, match=r"KAFKA_UNSUPPORTED.*mock cluster, which has no transactions"
        ) as caught:
            exactly_once(given).write(batches(["a", "b"]), StreamTask("query", batch, 0), "run")
        assert not caught.value.transient
    with pytest.raises(ConnectorError, match=r"KAFKA_UNSUPPORTED.*a real broker. Or write with .*at_least_once"):
        finish_batch(exactly_once(given), "query", 0, 1, "run")
    end = Consumer({"bootstrap.servers": kafka.endpoint, "group.id": "g"}).get_watermark_offsets(Partition(TOPIC, 0))
    assert end == (0, 0)


def test_a_transaction_that_was_written_to_a_mock_cluster_is_no_damaged_disk(kafka: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.endpoint, "transactional.id": "id"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(TOPIC, b"v", partition=0)
    producer.commit_transaction(10)
    options = {"kafka.bootstrap.servers": kafka.endpoint, "subscribe": TOPIC, "startingOffsets": "earliest"}
    with (
        BatchRead(KafkaDataSource, options, workers=InProcessWorkers()) as read,
        pytest.raises(TaskFailedError, match=r"KAFKA_RECORDS_DAMAGED.*have no checksum.*mock cluster") as caught,
    ):
        read.collect()
    assert "a disk or the network" not in str(caught.value)


def test_a_wrong_checksum_is_still_damage() -> None:
    text = "MessageSet at offset 2 (66 bytes) failed CRC32C check (original 0x0a12 != calculated 0xabaf54da)"
    assert "a disk or the network" in named_error("_BAD_MSG", text, "t-0", retriable=False).what
