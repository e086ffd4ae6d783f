"""Kinesis through Spark itself: what only Spark shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from connectors import register
from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.support.kinesis_rig import FAST, KinesisRig


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServerProcess]:
    made = start_server_process()
    yield made
    made.close()


@pytest.fixture
def kinesis(server: KinesisServerProcess, tmp_path: Path) -> KinesisRig:
    return KinesisRig(server, tmp_path, shards=2)


def test_29_no_secret_is_in_a_plan_or_an_error(spark: SparkSession, kinesis: KinesisRig) -> None:
    values = kinesis.put(10)
    rows = spark.read.format("kinesis").options(**kinesis.options(awsSecretKey="very-secret-key")).load()
    plan = rows._jdf.queryExecution().toString()
    assert FAST["awsAccessKey"] not in plan
    assert "very-secret-key" not in plan
    assert rows.where("length(data) > 0").count() == len(values)
    stored = kinesis.server.records(kinesis.stream)
    times = {
        row.data: row.ms for row in rows.selectExpr("data", "unix_millis(approximateArrivalTimestamp) ms").collect()
    }
    assert {bytes(data): ms for data, ms in times.items()} == {each.data: int(each.arrival * 1000) for each in stored}


def test_filters_that_spark_pushes_spare_reading_and_change_no_row(spark: SparkSession, kinesis: KinesisRig) -> None:
    kinesis.put(20)
    kinesis.server.jump(600)
    kinesis.put(20)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = spark.read.format("kinesis").options(**kinesis.options(pushDownPredicate="true")).load()
        every = rows.collect()
        assert rows.rdd.getNumPartitions() == 2
        shard, middle = every[0].shardId, sorted(row.approximateArrivalTimestamp for row in every)[25]
        in_shard = rows.filter(rows.shardId == shard)
        assert in_shard.rdd.getNumPartitions() == 1
        assert in_shard.collect() == [row for row in every if row.shardId == shard]
        late = rows.filter(rows.approximateArrivalTimestamp >= middle)
        assert late.count() == sum(row.approximateArrivalTimestamp >= middle for row in every)
        assert rows.filter(rows.sequenceNumber == every[3].sequenceNumber).collect() == [every[3]]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_22_a_bad_option_fails_while_load_runs(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="OPTION_MISSING"):
        spark.readStream.format("kinesis").load()


def run(rows: DataFrame, kinesis: KinesisRig, found: list[tuple[int, list[bytes]]]) -> None:
    """Run a stream of what there is; each batch is acted on twice, and must count the same."""

    def twice(batch: DataFrame, number: int) -> None:
        first = [bytes(row.data) for row in batch.select("data").collect()]
        again = [bytes(row.data) for row in batch.select("data").collect()]
        assert sorted(first) == sorted(again)
        found.append((number, first))

    writer = rows.writeStream.foreachBatch(twice).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(kinesis.folder / "checkpoint")).start()
    assert query.awaitTermination(120)
    assert query.exception() is None


def test_05_23_two_actions_of_a_batch_are_the_same_and_a_restart_goes_on_across_a_split(
    spark: SparkSession, kinesis: KinesisRig
) -> None:
    values = kinesis.put(40)
    rows = spark.readStream.format("kinesis").options(**kinesis.options(maxRecordsPerTrigger="15")).load()
    found: list[tuple[int, list[bytes]]] = []
    run(rows, kinesis, found)
    kinesis.server.split(kinesis.stream, kinesis.server.shards(kinesis.stream)[0])
    values += kinesis.put(40)
    run(rows, kinesis, found)
    assert sorted(data for _, batch in found for data in batch) == sorted(values)
    assert max(len(batch) for _, batch in found) <= 15
