"""Outages of Kafka: source and sink wait for as long as ``retryTimeout`` says, then names the error."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType, TimestampType

from connectors.core.errors import ServiceUnavailableError, SourceGoneError
from connectors.core.offsets import SENTINEL
from connectors.kafka.client.admin import RetryingLookup
from connectors.kafka.client.group_offsets import read_group_offset
from connectors.kafka.datasource import KafkaDataSource
from connectors.kafka.options.sink import parse_write_options
from connectors.kafka.options.source import KafkaReadOptions, parse_read_options
from connectors.kafka.sink.writer import TransactionalSink, close_sinks
from connectors.kafka.source.batch import Bounds, plan_batch
from connectors.kafka.source.consumer_pool import CONSUMERS
from connectors.kafka.source.micro_batch import KafkaStream
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import read_range
from connectors.testing.kafka.mock import MockKafkaProcess

PATIENCE = 90.0
TOPIC = "orders"
RECORDS = 20
PARTITIONS = 4
"""Of a topic that the mock cluster makes."""
UNAVAILABLE = r"KAFKA_UNAVAILABLE.*It was retried for 2 s: raise the option retryTimeout"
SHORT = {"retryTimeout": "2s"}
LONG = {"retryTimeout": "80s"}
VALUE = StructType([StructField("value", BinaryType())])
TIMED = StructType([StructField("value", BinaryType()), StructField("timestamp", TimestampType())])


@pytest.fixture
def kafka() -> Iterator[MockKafkaProcess]:
    with MockKafkaProcess() as running:
        producer = confluent_kafka.Producer({"bootstrap.servers": running.endpoint})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"%d" % number, partition=0)
        assert producer.flush(PATIENCE) == 0
        yield running
        close_sinks()
        CONSUMERS.close()


def source(kafka: MockKafkaProcess, streaming: bool = True, **options: str) -> KafkaReadOptions:
    place = {"kafka.bootstrap.servers": kafka.endpoint, "subscribe": TOPIC, "startingOffsets": "earliest"}
    return parse_read_options({**place, **options}, {}, streaming=streaming)


def plan_stream(options: KafkaReadOptions) -> Any:
    stream = KafkaStream(options)
    try:
        return stream.latest_offset(SENTINEL, everything=True)
    finally:
        stream.stop()


def read_task(options: KafkaReadOptions, end: int = RECORDS) -> list[bytes]:
    part = OffsetRange(TOPIC, 0, 0, end)
    rows = read_range(part, options, "run")
    return [value for batch in rows for value in batch.column("value").to_pylist()]


def write(kafka: MockKafkaProcess, schema: StructType = VALUE, **options: str) -> int:
    place = {"kafka.bootstrap.servers": kafka.endpoint, "topic": "copies"}
    writer = KafkaDataSource({**place, **options}).batch_writer(schema)
    return writer.write(iter([rows(range(RECORDS), schema)])).rows


def rows(numbers: range, schema: StructType) -> pa.RecordBatch:
    columns = {"value": pa.array([b"%d" % each for each in numbers], pa.binary())}
    if schema is TIMED:
        columns["timestamp"] = pa.array([1_000] * len(numbers), pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_pydict(columns)


def run_in_outage(kafka: MockKafkaProcess, work: Callable[[], Any], seconds: float = 3.0) -> Any:
    """Begin some work while the broker is silent; return its result, after the broker answers again."""
    with ThreadPoolExecutor(1) as pool:
        with kafka.stalled():
            running: Future[Any] = pool.submit(work)
            with pytest.raises(TimeoutError):
                running.result(seconds)
        return running.result(PATIENCE)


PLANS: dict[str, Callable[[MockKafkaProcess, dict[str, str]], Any]] = {
    "stream": lambda kafka, options: plan_stream(source(kafka, **options)),
    "batch": lambda kafka, options: plan_batch(source(kafka, streaming=False, minPartitions="5", **options), Bounds()),
    "task": lambda kafka, options: read_task(source(kafka, **options)),
    "task of a batch": lambda kafka, options: read_task(source(kafka, streaming=False, **options), end=-1),
    "sink": lambda kafka, options: write(kafka, **options),
    "sink on the plain path": lambda kafka, options: write(kafka, TIMED, writeTimestamps="true", **options),
    "offset of a group": lambda kafka, options: read_group_offset(source(kafka, **options).client, "g", TOPIC),
}


@pytest.mark.parametrize("name", PLANS)
def test_an_outage_that_is_shorter_is_waited_out(kafka: MockKafkaProcess, name: str) -> None:
    expected = PLANS[name](kafka, LONG)
    CONSUMERS.close()
    assert run_in_outage(kafka, lambda: PLANS[name](kafka, LONG)) == expected


@pytest.mark.parametrize("name", PLANS)
def test_a_longer_outage_ends_with_the_error_of_the_service(kafka: MockKafkaProcess, name: str) -> None:
    with kafka.stalled(), pytest.raises(ServiceUnavailableError, match=UNAVAILABLE):
        PLANS[name](kafka, SHORT)


@pytest.mark.guarantee
@pytest.mark.parametrize("schema", [VALUE, TIMED], ids=["fast path", "plain path"])
@pytest.mark.parametrize("handed_over", [RECORDS // 2, RECORDS])
def test_an_outage_that_begins_within_a_batch_fails_the_task_and_its_next_attempt_writes_all(
    kafka: MockKafkaProcess, schema: StructType, handed_over: int
) -> None:
    # Nothing is sent before the queue is flushed, or for a second: the errors come after the last row.
    place = {"kafka.bootstrap.servers": kafka.endpoint, "topic": "copies", "kafka.linger.ms": "1000", **SHORT}
    options = place if schema is VALUE else place | {"writeTimestamps": "true"}

    def with_outage() -> Iterator[pa.RecordBatch]:
        yield rows(range(handed_over), schema)
        outage.enter_context(kafka.stalled())
        if handed_over < RECORDS:
            yield rows(range(handed_over, RECORDS), schema)

    write(kafka, schema, **options)
    with ExitStack() as outage, pytest.raises(ServiceUnavailableError, match="KAFKA_UNAVAILABLE"):
        KafkaDataSource(options).batch_writer(schema).write(with_outage())
    before = copies(kafka)
    assert write(kafka, schema, **options) == RECORDS
    # A request that was in flight may have arrived before, or arrive with the connection.
    assert {*(copies(kafka) - before)} == {b"%d" % number for number in range(RECORDS)}


def copies(kafka: MockKafkaProcess) -> Counter[bytes]:
    """How often each value was written."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.endpoint, "group.id": "check"})
    found = Counter[bytes]()
    for partition in range(PARTITIONS):
        place = confluent_kafka.TopicPartition("copies", partition, 0)
        _, end = consumer.get_watermark_offsets(place, PATIENCE)
        consumer.assign([place])
        for _ in range(end):
            message = consumer.poll(PATIENCE)
            assert message is not None
            assert message.error() is None
            found[message.value()] += 1
    consumer.close()
    return found


def test_a_step_of_a_transaction_ends_with_the_error_of_the_service(kafka: MockKafkaProcess) -> None:
    raw = {"kafka.bootstrap.servers": kafka.endpoint, "topic": TOPIC, "deliveryGuarantee": "exactly_once", **SHORT}
    settings = parse_write_options(raw, {}, streaming=True).client
    with (
        kafka.stalled(),
        pytest.raises(ServiceUnavailableError, match=UNAVAILABLE),
        TransactionalSink(settings, "orders-0") as sink,
    ):
        sink.fence()


def test_records_that_were_read_before_an_outage_come_once(kafka: MockKafkaProcess) -> None:
    options = source(kafka, **LONG)
    rows = read_range(OffsetRange(TOPIC, 0, 0, RECORDS + 5), options, "run")

    def read_and_produce() -> list[bytes]:
        return [value for batch in rows for value in batch.column("value").to_pylist()]

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(read_and_produce)
        with kafka.stalled(), pytest.raises(TimeoutError):
            running.result(3.0)
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.endpoint})
        for number in range(RECORDS, RECORDS + 5):
            producer.produce(TOPIC, b"%d" % number, partition=0)
        assert producer.flush(PATIENCE) == 0
        assert running.result(PATIENCE) == [b"%d" % number for number in range(RECORDS + 5)]


def test_a_stream_that_is_stopped_in_an_outage_ends_its_call(kafka: MockKafkaProcess) -> None:
    lookup = RetryingLookup(source(kafka, **LONG))
    raised = list[BaseException]()

    def ask() -> None:
        try:
            lookup.ask(lambda asked: asked.partitions(source(kafka).strategy))
        except ServiceUnavailableError as error:
            raised.append(error)

    with kafka.stalled():
        asking = threading.Thread(target=ask)
        asking.start()
        lookup.stop()
        asking.join(30.0)
        assert not asking.is_alive()
    assert [error.code for error in raised] == ["KAFKA_CALLER_GONE"]


def test_an_outage_is_warned_of(kafka: MockKafkaProcess, caplog: pytest.LogCaptureFixture) -> None:
    sinks = ("sink", "sink on the plain path")
    small = {"kafka.queue.buffering.max.messages": "10"}
    plans = [(name, {}) for name in ("stream", "task", *sinks)] + [(name, small) for name in sinks]
    with kafka.stalled(), ThreadPoolExecutor(len(plans)) as pool:
        running = [pool.submit(PLANS[name], kafka, {"retryTimeout": "20s", **more}) for name, more in plans]
        assert all(isinstance(one.exception(PATIENCE), ServiceUnavailableError) for one in running)
    warned = [line for line in caplog.messages if line.startswith("[WAITING] ")]
    assert sum("response about topics" in line for line in warned) == 1
    assert sum("records from offset 0 of orders-0" in line for line in warned) == 1
    # All; or as many as the queue takes, or half of it, which is what the fast path gives to the client.
    waiting = [line.split("acknowledge ")[1] for line in warned if "brokers to acknowledge" in line]
    assert sorted(waiting) == sorted(f"{count} records." for count in (RECORDS, RECORDS, 10, 5))


def test_what_does_not_pass_is_not_waited_for(kafka: MockKafkaProcess) -> None:
    place = {"kafka.bootstrap.servers": kafka.endpoint, "fetchOffset.retryIntervalMs": "1"}
    options = parse_read_options({**place, "assign": '{"orders":[77]}'}, {}, streaming=False)
    with pytest.raises(SourceGoneError):
        plan_batch(options, Bounds())


def test_the_names_of_sparks_source_keep_their_meaning(kafka: MockKafkaProcess) -> None:
    calls = list[None]()

    def fail(_lookup: Any) -> None:
        calls.append(None)
        raise ServiceUnavailableError("KAFKA_UNAVAILABLE", "No answer came")

    lookup = RetryingLookup(source(kafka, **{"fetchOffset.numRetries": "4", "fetchOffset.retryIntervalMs": "1"}))
    with pytest.raises(ServiceUnavailableError):
        lookup.ask(fail)
    lookup.stop()
    assert len(calls) == 4
    with kafka.stalled(), pytest.raises(ServiceUnavailableError) as caught:
        read_task(source(kafka, **{"kafkaConsumer.pollTimeoutMs": "1000"}))
    assert "retryTimeout" not in str(caught.value)


def test_the_timeouts_of_the_client_keep_their_meaning(kafka: MockKafkaProcess) -> None:
    for name in ("kafka.delivery.timeout.ms", "kafka.message.timeout.ms"):
        with kafka.stalled(), pytest.raises(ServiceUnavailableError) as caught:
            write(kafka, **{name: "1000"})
        assert "retryTimeout" not in str(caught.value)
