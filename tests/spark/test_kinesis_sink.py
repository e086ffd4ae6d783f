"""The ``kinesis`` sink through Spark itself: batches, streams, and errors as users see them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from connectors import register
from connectors.testing.kinesis import KinesisServer


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture
def server() -> Iterator[KinesisServer]:
    with KinesisServer() as running:
        running.create_stream("orders", shards=2)
        yield running


def options(server: KinesisServer) -> dict[str, str]:
    keys = {"awsAccessKey": "AKIASINK", "awsSecretKey": "not-shown"}
    return {"streamName": "orders", "endpointUrl": server.url, "maxRetryInterval": "100ms", **keys}


def numbers(server: KinesisServer) -> list[int]:
    return sorted(int(record.data) for record in server.records("orders"))


def test_batch_is_appended_over_failures(spark: SparkSession, server: KinesisServer) -> None:
    server.fail_entries(count=200, every=3)
    rows = spark.range(1000, numPartitions=2).selectExpr("concat('key-', id % 7) partitionKey", "string(id) data", "id")
    rows.write.format("kinesis").options(**options(server)).mode("append").save()
    assert numbers(server) == list(range(1000))
    assert {record.partition_key for record in server.records("orders")} == {f"key-{number}" for number in range(7)}


def test_stream_is_written_in_the_order_of_its_keys(spark: SparkSession, server: KinesisServer, tmp_path: Path) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    for part in range(2):
        lines = [json.dumps({"id": number}) for number in range(part * 100, part * 100 + 100)]
        file = folder / f"{part}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (1_000_000 + part, 1_000_000 + part))  # Spark takes the older file first
    server.throttle("PutRecord", 20)
    rows = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", "1").json(str(folder))
    query = (
        rows.selectExpr("string(id % 5) partitionKey", "string(id) data")
        .coalesce(1)
        .writeStream.format("kinesis")
        .options(**options(server), ordered="true")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert numbers(server) == list(range(200))
    for key in "01234":
        written = [int(record.data) for record in server.records("orders") if record.partition_key == key]
        assert written == list(range(int(key), 200, 5))


def test_bad_row_fails_the_write_with_its_key_and_no_secret(spark: SparkSession, server: KinesisServer) -> None:
    rows = spark.range(1).selectExpr("'culprit' partitionKey", "cast(null as binary) data")
    with pytest.raises(PySparkException, match="KINESIS_BAD_ROW") as raised:
        rows.write.format("kinesis").options(**options(server)).mode("append").save()
    assert "'culprit'" in str(raised.value)
    assert "not-shown" not in str(raised.value)
