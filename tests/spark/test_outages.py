"""A query that is stopped while its service is away stops at once, and leaves no process that goes on asking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from connectors import register
from connectors.testing.kafka.mock import MockKafkaProcess
from connectors.testing.kinesis import KinesisServerProcess
from connectors.testing.kinesis import start_server_process as start_kinesis
from connectors.testing.pubsub import PubSubServer
from tests.support.kinesis_rig import KinesisRig
from tests.support.waiting import wait_for

PATIENCE = 60.0
"""Far less than ``retryTimeout``, which is 10 minutes."""
TOPIC, SUBSCRIPTION = "projects/shop/topics/orders", "projects/shop/subscriptions/orders"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture
def kinesis(tmp_path: Path) -> Iterator[KinesisRig]:
    with start_kinesis() as server:
        yield KinesisRig(server, tmp_path)


def stop(query: StreamingQuery) -> None:
    """Stop a query, which must be over long before the outage is given up."""
    assert query.isActive, query.exception()
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert query.exception() is None


def failed_calls(server: KinesisServerProcess, operation: str) -> Callable[[], bool]:
    return lambda: sum(bool(call.error) for call in server.calls(operation)) > 2


def no_more_calls(server: KinesisServerProcess, operation: str) -> None:
    """See that in the end nobody asks for longer than some waits between two attempts."""

    def is_quiet() -> bool:
        since = server.next_call()
        threading.Event().wait(2.0)
        return not server.calls(operation, since=since)

    wait_for(is_quiet, PATIENCE)


def copy_to_nothing(rows: DataFrame, folder: Path) -> StreamingQuery:
    return rows.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint")).start()


@pytest.mark.parametrize("operation", ["ListShards", "GetRecords"])
def test_kinesis_in_planning(spark: SparkSession, kinesis: KinesisRig, operation: str) -> None:
    kinesis.put(10)
    kinesis.server.fail(operation, "InternalFailure", None, status=500)
    query = copy_to_nothing(spark.readStream.format("kinesis").options(**kinesis.options()).load(), kinesis.folder)
    wait_for(failed_calls(kinesis.server, operation), PATIENCE)
    stop(query)
    no_more_calls(kinesis.server, operation)


@pytest.mark.parametrize("operation", ["DescribeStreamSummary", "PutRecords"])
def test_a_sink_in_planning_and_in_tasks(spark: SparkSession, kinesis: KinesisRig, operation: str) -> None:
    kinesis.server.fail(operation, "InternalFailure", None, status=500)
    options = {name: value for name, value in kinesis.options().items() if name.startswith(("aws", "end", "streamN"))}
    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    rows = rows.selectExpr("'k' as partitionKey", "cast(cast(value as string) as binary) as data")
    query = (
        rows.writeStream.format("kinesis")
        .options(**options, maxRetryInterval="200ms")
        .option("checkpointLocation", str(kinesis.folder / "checkpoint"))
        .start()
    )
    wait_for(failed_calls(kinesis.server, operation), PATIENCE)
    stop(query)
    no_more_calls(kinesis.server, operation)


def test_pubsub(spark: SparkSession, tmp_path: Path) -> None:
    with PubSubServer() as server:
        server.create_subscription(SUBSCRIPTION, TOPIC)
        server.fail("*", times=None)
        options = {"endpoint": server.endpoint, "subscriptionId": SUBSCRIPTION, "startTimeout": "1h"}
        spool = str(tmp_path / "spool")
        rows = spark.readStream.format("pubsub").options(**options, spoolLocation=spool).load()
        query = copy_to_nothing(rows, tmp_path)
        wait_for(lambda: query.status["isTriggerActive"], PATIENCE)
        stop(query)


def test_kafka(spark: SparkSession, tmp_path: Path) -> None:
    with MockKafkaProcess() as kafka:
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.endpoint})
        producer.produce("orders", b"1")
        assert producer.flush(PATIENCE) == 0
        with kafka.stalled():
            options = {"kafka.bootstrap.servers": kafka.endpoint, "subscribe": "orders", "startingOffsets": "earliest"}
            query = copy_to_nothing(spark.readStream.format("kafka_py").options(**options).load(), tmp_path)
            wait_for(lambda: query.status["isTriggerActive"], PATIENCE)
            stop(query)
