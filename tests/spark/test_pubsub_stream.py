"""The Pub/Sub stream in a real Spark session, on our own server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connectors import register
from connectors.executors import fetch_on_executors
from connectors.spool import stats
from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_calls import PubSubCalls
from tests.support.spark_protocol.driver import descendants
from tests.support.spark_session import quick_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = quick_session({"spark.log.level": "ERROR"})
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[PubSubServer]:
    with PubSubServer() as running:
        yield running


class Stream:
    """A subscription, and queries on it with one spool and one checkpoint."""

    def __init__(self, spark: SparkSession, server: PubSubServer, folder: Path) -> None:
        name = f"orders-{uuid4().hex[:8]}"
        self.spark, self.server, self.folder = spark, server, folder
        self.topic = f"projects/shop/topics/{name}"
        self.subscription = f"projects/shop/subscriptions/{name}"
        self.published: list[str] = []
        self.rows: dict[int, list[str]] = {}
        server.create_subscription(self.subscription, self.topic)

    def publish(self, count: int) -> None:
        self.published += self.server.publish(self.topic, [b"payload"] * count, {"kind": "test"})

    @property
    def options(self) -> dict[str, str]:
        return {
            "projectId": "shop",
            "subscriptionId": self.subscription.rpartition("/")[2],
            "endpoint": self.server.endpoint,
            "spoolLocation": str(self.folder / "spool"),
            "availableNowQuiet": "3s",
        }

    def load(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("pubsub").options(**self.options, **options).load()

    def start(
        self, trigger: dict[str, object] | None = None, rows: DataFrame | None = None, **options: str
    ) -> StreamingQuery:
        """Start a query whose sink keeps the ids of each batch, keyed on the batch id."""

        def write(batch: DataFrame, batch_id: int) -> None:
            self.rows[batch_id] = batch.toArrow()["messageId"].to_pylist()

        writer = (rows or self.load(**options)).writeStream.foreachBatch(write)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        return writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()

    def found(self) -> list[str]:
        return [row for rows in self.rows.values() for row in rows]

    def assert_each_once(self) -> None:
        assert sorted(self.found()) == sorted(self.published)


@pytest.fixture
def stream(spark: SparkSession, server: PubSubServer, tmp_path: Path) -> Stream:
    return Stream(spark, server, tmp_path)


def wait_for(condition: Callable[[], bool], query: StreamingQuery | None = None, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if query is not None and (error := query.exception()) is not None:
            raise error
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.05)


def test_the_schema_is_the_documented_one(stream: Stream) -> None:
    assert stream.load().schema == StructType(
        [
            StructField("messageId", StringType()),
            StructField("payload", BinaryType()),
            StructField("attributes", MapType(StringType(), StringType())),
            StructField("orderingKey", StringType()),
            StructField("publishTimestamp", TimestampType()),
            StructField("deliveryAttempt", IntegerType()),
            StructField("subscription", StringType()),
            StructField("offset", LongType()),
        ]
    )


def test_an_unknown_option_fails_at_load_with_the_nearest_name(stream: Stream) -> None:
    with pytest.raises(AnalysisException, match=r"OPTION_UNKNOWN.*maxRecordsPerTrigger"):
        stream.load(maxRecordPerTrigger="5")


def test_rows_arrive_once_over_a_stop_and_a_start_with_redelivery(stream: Stream) -> None:
    stream.publish(300)
    query = stream.start(maxRecordsPerTrigger="120")
    wait_for(lambda: len(stream.found()) >= 300, query)
    query.stop()
    stream.server.redeliver(stream.subscription)
    stream.publish(200)
    query = stream.start(maxRecordsPerTrigger="120")
    wait_for(lambda: len(stream.found()) >= 500, query)
    wait_for(lambda: stats(str(stream.folder / "spool")).duplicates >= 300, query)
    query.stop()
    stream.assert_each_once()
    assert max(map(len, stream.rows.values())) <= 120


class Living:
    """What `fetch_on_executors` asks of a query: whether it has ended."""

    isActive = True  # noqa: N815 - the name that Spark has


def test_fetching_on_executors_goes_on_while_the_query_lives_though_its_reader_is_silent(stream: Stream) -> None:
    options = {"fetch": "external", "maxReaderAge": "1s"}
    stream.start({"availableNow": True}, availableNowMaxWait="0s", **options).awaitTermination(60)
    stream.publish(50)
    all_options = stream.options | options
    with fetch_on_executors(stream.spark, "pubsub", all_options, query=cast("StreamingQuery", Living())) as fetching:
        wait_for(lambda: fetching.jobs > 1)
        query = stream.start(**options)
        wait_for(lambda: len(stream.found()) >= 50, query)
        query.stop()
    with fetch_on_executors(stream.spark, "pubsub", all_options) as fetching:
        assert fetching.await_end(60)
        assert fetching.jobs == 1
    stream.assert_each_once()


def test_available_now_ends_by_itself(stream: Stream) -> None:
    stream.publish(250)
    query = stream.start({"availableNow": True}, maxRecordsPerTrigger="100")
    assert query.awaitTermination(60)
    stream.assert_each_once()


def test_a_union_of_the_stream_with_itself_reads_every_row_twice(stream: Stream) -> None:
    stream.publish(50)
    both = stream.load()
    counted: list[int] = []
    query = (
        both.union(both)
        .writeStream.foreachBatch(lambda batch, _: counted.append(batch.count()))
        .option("checkpointLocation", str(stream.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert sum(counted) == 100


def test_a_second_query_on_one_dataframe_fails_with_what_to_do_instead_and_the_first_goes_on(stream: Stream) -> None:
    stream.publish(50)
    rows = stream.load()
    first = stream.start(rows=rows)
    wait_for(lambda: len(stream.found()) >= 50, first)
    second = (
        rows.writeStream.format("noop").option("checkpointLocation", str(stream.folder / "other checkpoint")).start()
    )
    wait_for(lambda: second.exception() is not None)
    for part in ("SPOOL_IN_USE", "one query with foreachBatch", "its own source and spoolLocation"):
        assert part in str(second.exception())
    stream.publish(50)
    wait_for(lambda: len(stream.found()) >= 100, first)
    first.stop()
    stream.assert_each_once()


def test_no_fetcher_outlives_its_query_and_a_new_start_works_at_once(stream: Stream) -> None:
    stream.publish(20)
    query = stream.start()
    wait_for(lambda: len(stream.found()) >= 20, query)
    fetchers = [pid for pid in descendants(os.getpid()) if b"fetching.process" in _command(pid)]
    assert fetchers
    query.stop()
    stream.publish(20)
    query = stream.start()
    wait_for(lambda: len(stream.found()) >= 40, query)
    wait_for(lambda: not any(b"fetching.process" in _command(pid) for pid in fetchers))
    query.stop()
    stream.assert_each_once()


@pytest.mark.guarantee
def test_a_query_whose_source_process_is_killed_goes_on_after_a_restart(stream: Stream) -> None:
    stream.publish(100)
    query = stream.start()
    wait_for(lambda: len(stream.found()) >= 100, query)
    stream.publish(100)
    (reader,) = {_parent(pid) for pid in descendants(os.getpid()) if b"fetching.process" in _command(pid)}
    os.kill(reader, signal.SIGKILL)
    wait_for(lambda: not query.isActive)
    query = stream.start()
    wait_for(lambda: len(stream.found()) >= 200, query)
    query.stop()
    stream.assert_each_once()


def test_a_batch_write_publishes_every_row_with_its_attributes_and_key(stream: Stream) -> None:
    columns = [
        "CAST(id AS STRING) AS data",
        "map('kind', 'order') AS attributes",
        "CONCAT('key-', id % 3) AS orderingKey",
    ]
    rows = stream.spark.range(0, 600, 1, 3).selectExpr(*columns)
    options = {"projectId": "shop", "topicId": stream.topic.rpartition("/")[2], "endpoint": stream.server.endpoint}
    rows.write.format("pubsub").options(**options).mode("append").save()
    found = published(stream)
    assert sorted(int(message.data) for message in found) == list(range(600))
    assert {message.attributes["kind"] for message in found} == {"order"}
    assert all(message.ordering_key == f"key-{int(message.data) % 3}" for message in found)
    names = [message.attributes["spark_uid"].split("/") for message in found]
    assert len({run for run, *_ in names}) == 1
    assert sorted((int(partition), int(row)) for _, _, partition, row, _ in names) == [
        (partition, row) for partition in range(3) for row in range(200)
    ]


def test_a_bad_row_fails_the_write_and_is_named(stream: Stream) -> None:
    rows = stream.spark.range(0, 50, 1, 1).selectExpr(
        "'x' AS payload", "IF(id = 33, repeat('k', 2000), '') AS orderingKey"
    )
    with pytest.raises(Exception, match=r"PUBSUB_BAD_ROW.*Row 33 of partition 0"):
        rows.write.format("pubsub").option("endpoint", stream.server.endpoint).option("topicId", stream.topic).mode(
            "append"
        ).save()
    with pytest.raises(Exception, match="PUBSUB_SAVE_MODE"):
        rows.write.format("pubsub").option("topicId", stream.topic).mode("overwrite").save()
    with pytest.raises(Exception, match="PUBSUB_SINK_COLUMNS"):
        rows.select("orderingKey").write.format("pubsub").option("topicId", stream.topic).mode("append").save()


@pytest.mark.guarantee
def test_a_stream_write_whose_workers_are_killed_publishes_the_same_names_again(stream: Stream) -> None:
    lines = stream.folder / "lines"
    lines.mkdir()
    for file in range(2):
        (lines / f"{file}.txt").write_text("".join(f"{file}-{line}\n" for line in range(3000)))

    def start() -> StreamingQuery:
        return (
            stream.spark.readStream.text(str(lines))
            .withColumnRenamed("value", "payload")
            .writeStream.format("pubsub")
            .option("endpoint", stream.server.endpoint)
            .option("topicId", stream.topic)
            .option("checkpointLocation", str(stream.folder / "out"))
            .trigger(availableNow=True)
            .start()
        )

    # Two requests of a thousand rows take effect, unanswered, and none after them: tasks try until they are killed.
    stream.server.fail("Publish", times=2, after_effect=True)
    stream.server.fail("Publish", times=None)
    query = start()
    wait_for(lambda: stream.server.backlog(stream.subscription) == 2000, query)
    for pid in descendants(os.getpid()):
        if b"pyspark.daemon" in _command(pid) and b"pyspark.daemon" in _command(_parent(pid)):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not query.isActive)
    assert query.exception() is not None
    stream.server.clear_faults()
    before = stream.server.backlog(stream.subscription)
    query = start()
    assert query.awaitTermination(60)
    names: dict[str, bytes] = {}
    for message in published(stream):
        uid = message.attributes["spark_uid"]
        assert names.setdefault(uid, message.data) == message.data
        assert uid.startswith(f"{query.id}/0/")
    assert sorted(names.values()) == sorted(f"{file}-{line}".encode() for file in range(2) for line in range(3000))
    assert stream.server.backlog(stream.subscription) == 6000 + before
    # Our own source has each row once.
    stream.server.expire_leases(stream.subscription)
    rows: list[bytes] = []

    def keep(batch: DataFrame, _: int) -> None:
        rows.extend(batch.toArrow()["payload"].to_pylist())

    reading = (
        stream.load(dedupAttribute="spark_uid")
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(stream.folder / "in"))
        .trigger(availableNow=True)
        .start()
    )
    assert reading.awaitTermination(60)
    assert sorted(rows) == sorted(names.values())


def published(stream: Stream) -> list[Any]:
    """All messages of the subscription, each once, although those come again that were held for longer than 10 s."""
    found: dict[str, Any] = {}
    with PubSubCalls(stream.server.endpoint) as calls:
        count, end = stream.server.backlog(stream.subscription), time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} messages came"
            for received in calls.pull_once(stream.subscription):
                found[received.message.message_id] = received.message
    return list(found.values())


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_batch_reads_what_the_spool_keeps_and_every_action_sees_the_same_rows(stream: Stream) -> None:
    stream.publish(60)
    query = stream.start({"availableNow": True})
    assert query.awaitTermination(60)
    options = {"projectId": "shop", "subscriptionId": stream.subscription.rpartition("/")[2]}
    options |= {"endpoint": stream.server.endpoint, "spoolLocation": str(stream.folder / "spool")}
    reading = stream.spark.read.format("pubsub").options(**options)
    rows = reading.load()
    assert rows.schema == stream.load().schema
    assert [row["messageId"] for row in rows.select("messageId").sort("offset").collect()] == stream.published
    assert rows.filter("offset >= 20").count() == 40
    stream.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        fewer = (
            stream.spark.read.format("pubsub").options(**options, partitionBytes="200", pushDownPredicate="true").load()
        )
        assert fewer.rdd.getNumPartitions() > 1
        assert fewer.filter("offset = 20").rdd.getNumPartitions() == 1
        assert fewer.filter("offset BETWEEN 20 AND 29 AND publishTimestamp > timestamp'2020-01-01'").count() == 10
    finally:
        stream.spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert reading.option("startingPosition", "latest").load().count() == 0
    theirs = stream.spark.read.format("pubsub").options(**options, schemaMode="databricks").load()
    assert theirs.schema.simpleString() == (
        "struct<messageId:string,payload:binary,attributes:string,publishTimestampInMillis:bigint>"
    )
    assert {tuple(row) for row in theirs.selectExpr("cast(payload as string)", "attributes").collect()} == {
        ("payload", '{"kind":"test"}')
    }
