"""Kafka through Spark itself: what only Spark shows, and our source and sink held against Spark's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from connectors import register
from connectors.kafka.lag import offsets_behind, summarize
from connectors.kafka.sink.exactly_once import query_run
from tests.servers.maven import class_path
from tests.support.kafka_rig import KafkaRig, text


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session with Spark's own connector beside ours, where its jars can be had."""
    jars = class_path("kafka-spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
    )
    if not jars.reason:
        builder = builder.config("spark.jars", ",".join(jars.jars))
    end_jvm()  # jars count when a JVM starts
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()
    end_jvm()


def end_jvm() -> None:
    """End the JVM of an earlier session of this process, if there is one."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def jvm() -> None:
    """Skips where Spark's own connector cannot be had."""
    if reason := class_path("kafka-spark").reason:
        pytest.skip(reason)


def run(rows: DataFrame, folder: Path, **options: str) -> Any:
    """Run a stream of all there is into Kafka; returns the query."""
    writer = rows.writeStream.format("kafka_py").trigger(availableNow=True)
    query = writer.options(**options).option("checkpointLocation", str(folder / "checkpoint")).start()
    assert query.awaitTermination(60)
    return query


def test_28_29_30_a_stream_with_a_window_counts_its_rows_and_reports_its_lag(
    spark: SparkSession, kafka: KafkaRig, tmp_path: Path
) -> None:
    topic = kafka.topic(2)
    for number in range(20):
        kafka.send(topic, [number], number % 2, timestamp=1_700_000_000_000 + number * 1000)
    options = kafka.options(topic, maxOffsetsPerTrigger="10")
    rows = spark.readStream.format("kafka_py").options(**options).load()
    counts = rows.withWatermark("timestamp", "1 second").groupBy(f.window("timestamp", "5 seconds")).count()
    query = (
        (counts.writeStream.format("memory").queryName("windows").outputMode("complete").trigger(availableNow=True))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    assert query.awaitTermination(60)
    found = spark.table("windows").select(f.unix_timestamp("window.start").alias("start"), "count").collect()
    assert {row["start"]: row["count"] for row in found} == {1_700_000_000 + after: 5 for after in (0, 5, 10, 15)}
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    # A second before the newest record of the first batch.
    assert progress[1]["eventTime"]["watermark"] == "2023-11-14T22:13:28.000Z"
    assert [each["numInputRows"] for each in progress] == [10, 10]
    # Spark asks no Python source for metrics (tests/spark/test_internals.py); connectors.observe has ours.
    assert not progress[0]["sources"][0].get("metrics")
    assert offsets_behind(progress[0]) == [{topic: {0: 5, 1: 5}}]
    assert asdict(summarize(offsets_behind(progress[0])[0])) == {
        "minOffsetsBehindLatest": 5,
        "maxOffsetsBehindLatest": 5,
        "avgOffsetsBehindLatest": 5.0,
    }
    assert offsets_behind(progress[1]) == [{topic: {0: 0, 1: 0}}]


def test_batch_reads_late_binding_and_filters_through_spark(spark: SparkSession, kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, range(6))
    kafka.send(topic, range(6, 9), 1)
    rows = spark.read.format("kafka_py").options(**kafka.options(topic)).load()
    assert rows.count() == 9
    assert rows.union(rows).count() == 18
    kafka.send(topic, [9])
    assert rows.filter("partition = 0 AND offset >= 4").count() == 3


def test_a_dataframe_that_was_filtered_has_all_rows_without_the_filter(spark: SparkSession, kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    for partition in (0, 1):
        kafka.send(topic, range(5), partition)
    options = kafka.options(topic)
    rows = spark.read.format("kafka_py").options(**options).load()
    assert rows.filter("partition = 0").count() == 5
    assert rows.count() == 10
    assert rows.filter("partition = 0").union(rows).count() == 15
    narrow = spark.read.format("kafka_py").options(**options, pushDownPredicate="true").load().filter("partition = 0")
    assert (narrow.count(), narrow.rdd.getNumPartitions()) == (5, 1)


def test_spark_still_reads_without_a_filter_what_it_planned_with_one(spark: SparkSession, kafka: KafkaRig) -> None:
    """When this fails, Spark has mended it: then `pushDownPredicate` can be true by default."""
    topic = kafka.topic(2)
    for partition in (0, 1):
        kafka.send(topic, range(5), partition)
    rows = spark.read.format("kafka_py").options(**kafka.options(topic), pushDownPredicate="true").load()
    assert rows.filter("partition = 0").count() == 5
    assert rows.count() == 5


def test_49_save_modes_other_than_append_are_refused(spark: SparkSession, kafka: KafkaRig) -> None:
    rows = spark.createDataFrame([("a",)], "value string")
    options = {"kafka.bootstrap.servers": kafka.broker.endpoint, "topic": kafka.topic(1)}
    for mode in ("overwrite", "ignore", "error"):
        with pytest.raises((AnalysisException, Exception), match=r"(?i)mode"):
            rows.write.format("kafka_py").options(**options).mode(mode).save()
    rows.write.format("kafka_py").options(**options).mode("append").save()
    assert [message.value() for message in kafka.read_committed(options["topic"])] == [b"a"]


def test_50_exactly_once_through_spark_counts_its_rows_and_goes_on_after_a_restart(
    spark: SparkSession, kafka: KafkaRig, tmp_path: Path
) -> None:
    source, target = kafka.topic(2), kafka.topic(2)
    kafka.send(source, range(10))
    rows = spark.readStream.format("kafka_py").options(**kafka.options(source, maxOffsetsPerTrigger="4")).load()
    options = {
        "kafka.bootstrap.servers": kafka.broker.endpoint,
        "topic": target,
        "deliveryGuarantee": "exactly-once",
        "dedupHeaders": "true",
    }
    query = run(rows.select("value"), tmp_path, **options)
    assert sum(each["sink"]["numOutputRows"] for each in query.recentProgress) == 10
    found = kafka.read_committed(target, 2)
    assert sorted(map(int, text(message.value() for message in found))) == list(range(10))
    assert {dict(message.headers())["spark.query"].decode() for message in found} == {query.id}
    # Spark forgets that it has committed the last batch, as after a crash of the driver.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    run(rows.select("value"), tmp_path, **options)
    assert len(kafka.read_committed(target, 2)) == 10


# Against Spark's own


@pytest.mark.usefixtures("jvm")
def test_rows_and_schema_are_those_of_sparks_own_source(spark: SparkSession, kafka: KafkaRig) -> None:
    topic = kafka.topic(3)
    kafka.send(topic, [None, b"", "text"], 0, key=b"k", headers=[("a", b"1"), ("a", None)])
    kafka.send(topic, range(5), 1, timestamp=1234)
    kafka.transaction(topic, range(5, 8), partition=2)
    kafka.transaction(topic, range(8, 10), partition=2, commit=False)
    for isolation in ("read_uncommitted", "read_committed"):
        options = kafka.options(topic, includeHeaders="true", kafka__isolation__level=isolation)
        ours, theirs = (spark.read.format(name).options(**options).load() for name in ("kafka_py", "kafka"))
        assert ours.schema == theirs.schema
        assert sorted(map(repr, ours.collect())) == sorted(map(repr, theirs.collect()))


@pytest.mark.usefixtures("jvm")
def test_batches_end_at_the_offsets_of_sparks_own_source(spark: SparkSession, kafka: KafkaRig, tmp_path: Path) -> None:
    topic = kafka.topic(3)
    for partition, count in enumerate((101, 11, 1)):
        kafka.send(topic, range(count), partition)
    ends: dict[str, list[Any]] = {}
    for name in ("kafka", "kafka_py"):
        rows = spark.readStream.format(name).options(**kafka.options(topic, maxOffsetsPerTrigger="10")).load()
        query = (
            rows.writeStream.format("noop")
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / name))
            .start()
        )
        assert query.awaitTermination(60)
        logged = sorted((tmp_path / name / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))
        ends[name] = [json.loads(each.read_text().splitlines()[-1])[topic] for each in logged]
    assert ends["kafka_py"] == ends["kafka"]


@pytest.mark.usefixtures("jvm")
def test_patterns_find_the_topics_that_sparks_own_source_finds(spark: SparkSession, kafka: KafkaRig) -> None:
    stem = kafka.name("orders")
    topics = [kafka.topic(1, name) for name in (stem, f"{stem}-eu", f"new.{stem}")]
    for topic in topics:
        kafka.send(topic, ["row"])
    read = {}
    for pattern in (stem, f"^{stem}", f"{stem}-", f"{stem}$", f"^{stem}$", f"{stem}-eu|new.{stem}", f"{stem}.*"):
        options = kafka.options(subscribePattern=pattern)
        ours, theirs = (
            {row["topic"] for row in spark.read.format(name).options(**options).load().select("topic").collect()}
            for name in ("kafka_py", "kafka")
        )
        assert ours == theirs, pattern
        read[pattern] = len(ours)
    assert read[stem] == 3
    assert read[f"^{stem}$"] == 1


@pytest.mark.usefixtures("jvm")
def test_a_query_that_begins_without_a_topic_reads_what_sparks_own_source_reads(
    spark: SparkSession, kafka: KafkaRig, tmp_path: Path
) -> None:
    stem = kafka.name("late")
    options = kafka.options(subscribePattern=f"{stem}-.*", startingOffsets="latest")
    for sent in ([], ["first", "second"], ["third"]):
        if sent == ["first", "second"]:
            kafka.topic(1, f"{stem}-a")
        kafka.send(f"{stem}-a", sent)
        for name in ("kafka", "kafka_py"):
            rows = spark.readStream.format(name).options(**options).load().selectExpr("CAST(value AS STRING) AS value")
            writer = rows.writeStream.format("json").trigger(availableNow=True)
            checkpoint = str(tmp_path / f"{name}-checkpoint")
            assert writer.option("checkpointLocation", checkpoint).start(str(tmp_path / name)).awaitTermination(60)
    found = {
        name: sorted(row["value"] for row in spark.read.schema("value string").json(str(tmp_path / name)).collect())
        for name in ("kafka", "kafka_py")
    }
    assert found["kafka_py"] == found["kafka"] == ["first", "second", "third"]


@pytest.mark.usefixtures("jvm")
def test_a_query_moves_from_sparks_own_source_with_its_checkpoint(
    spark: SparkSession, kafka: KafkaRig, tmp_path: Path
) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, range(5))
    for name, expected in (("kafka", range(5)), ("kafka_py", range(8))):
        rows = spark.readStream.format(name).options(**kafka.options(topic)).load()
        writer = rows.selectExpr("CAST(value AS STRING) AS value").writeStream.format("json").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "rows"))
        assert query.awaitTermination(60)
        found = spark.read.schema("value string").json(str(tmp_path / "rows")).collect()
        assert sorted(int(row["value"]) for row in found) == list(expected)
        kafka.send(topic, range(5, 8))


@pytest.mark.usefixtures("jvm")
def test_53_keys_land_in_the_partitions_of_sparks_own_sink(spark: SparkSession, kafka: KafkaRig) -> None:
    keys = [b"%d" % number for number in range(300)] + [b"", b"\xff\x00", "ß".encode()]
    rows = spark.createDataFrame([(bytearray(key), bytearray(key)) for key in keys], "key binary, value binary")
    found = []
    for name in ("kafka", "kafka_py"):
        topic = kafka.topic(11)
        options = {"kafka.bootstrap.servers": kafka.broker.endpoint, "topic": topic}
        rows.write.format(name).options(**options).mode("append").save()
        found.append({message.key(): message.partition() for message in kafka.read_committed(topic, 11)})
    assert found[0] == found[1]
    assert len(found[0]) == len(keys)


def test_a_schema_of_the_user_is_refused_as_by_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders"}
    refusal = r"SCHEMA_NOT_SUPPORTED\] kafka_py source has a fixed schema and cannot be set with a custom one"
    with pytest.raises(PySparkException, match=refusal):
        spark.read.schema("value STRING").format("kafka_py").options(**options).load().collect()
    rows = spark.readStream.schema("value STRING").format("kafka_py").options(**options).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match=refusal):
        writer.trigger(availableNow=True).start().awaitTermination(60)


def test_a_task_of_a_sink_knows_the_run_of_its_query(spark: SparkSession, tmp_path: Path) -> None:
    """By this a driver that serves a second run of a query tells its own tasks from those of the first."""
    seen = tmp_path / "seen"

    class Writer(DataSourceStreamWriter):  # local, so that it travels to the tasks by value
        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:  # noqa: ARG002 - Spark's interface
            seen.write_text(query_run())
            return WriterCommitMessage()

    class Sink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "runs_of_queries"

        def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:  # noqa: ARG002 - as above
            return Writer()

    spark.dataSource.register(Sink)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "2").load()
    writer = rows.writeStream.format("runs_of_queries").option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(2):
        query = writer.trigger(once=True).start()
        query.awaitTermination(60)
        assert seen.read_text() == str(query.runId)


def test_a_temporary_view_reads_and_writes_and_a_table_is_refused_with_that_advice(
    spark: SparkSession, kafka: KafkaRig
) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [1], 0)
    servers = f"`kafka.bootstrap.servers` '{kafka.options(topic)['kafka.bootstrap.servers']}'"
    spark.sql(f"CREATE TEMPORARY VIEW written (value BINARY) USING kafka_py OPTIONS ({servers}, topic '{topic}')")
    spark.sql("INSERT INTO written VALUES (X'32')")
    options = f"OPTIONS ({servers}, subscribe '{topic}')"
    spark.sql(f"CREATE TEMPORARY VIEW orders USING kafka_py {options}")
    assert [row.offset for row in spark.sql("SELECT offset FROM orders ORDER BY offset").collect()] == [0, 1]
    with pytest.raises(AnalysisException, match=r"TABLE_UNSUPPORTED.*CREATE TEMPORARY VIEW name USING kafka_py"):
        spark.sql(f"CREATE TABLE refused USING kafka_py {options}")
    assert not spark.catalog.tableExists("refused")
    # With columns Spark does not ask us, and passes no option later on.
    spark.sql(f"CREATE TABLE empty (value BINARY) USING kafka_py {options}")
    try:
        with pytest.raises(PySparkException, match=r"OPTION_MISSING.*Spark passes no options of a table"):
            spark.sql("SELECT * FROM empty").collect()
        with pytest.raises(PySparkException, match=r"OPTION_MISSING.*Spark passes no options of a table"):
            spark.sql("INSERT INTO empty VALUES (X'32')")
    finally:
        spark.sql("DROP TABLE empty")
