"""The events of OpenLineage for queries of a real session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from connectors.observe import watch
from connectors.testing.kafka.mock import MockKafka
from connectors.testing.kinesis import start_server_process
from connectors.testing.pubsub import PubSubServer

SCHEMA = json.loads((Path(__file__).parents[1] / "vendored/openlineage/OpenLineage.json").read_text())
SECRET = "hush-hush"


@pytest.fixture(scope="module")
def server() -> Iterator[PubSubServer]:
    with PubSubServer() as running:
        yield running


def messages(spark: SparkSession, server: PubSubServer, folder: Path) -> DataFrame:
    server.create_subscription(f"projects/shop/subscriptions/{folder.name}", "projects/shop/topics/orders")
    server.publish("projects/shop/topics/orders", [b"x"] * 3)
    reader = spark.readStream.format("pubsub").option("subscriptionId", f"projects/shop/subscriptions/{folder.name}")
    reader = reader.option("endpoint", server.endpoint).option("availableNowQuiet", "100ms")
    return reader.option("spoolLocation", str(folder / "spool")).load()


def events_in(file: Path) -> list[dict[str, Any]]:
    text = file.read_text()
    assert SECRET not in text
    events = [json.loads(line) for line in text.splitlines()]
    for event in events:
        jsonschema_rs.validator_for(SCHEMA, validate_formats=True).validate(event)
    return events


def test_a_query_of_three_sources_shows_them_and_its_sink_from_its_start(
    spark: SparkSession, server: PubSubServer, tmp_path: Path
) -> None:
    with MockKafka() as kafka, start_server_process() as kinesis:
        for topic in ("clicks", "out"):
            kafka.create_topic(topic, 1)
        kinesis.create_stream("views", shards=1)
        brokers = {"kafka.bootstrap.servers": kafka.endpoint}
        clicks = spark.readStream.format("kafka_py").options(**brokers, subscribePattern="^clicks$").load()
        views = spark.readStream.format("kinesis").option("streamName", "views").option("endpointUrl", kinesis.url)
        views = views.option("awsAccessKey", "a").option("awsSecretKey", SECRET).option("initialPosition", "earliest")
        rows = messages(spark, server, tmp_path).selectExpr("payload AS value")
        rows = rows.union(clicks.select("value")).union(views.load().selectExpr("data AS value"))
        with watch(spark, lineage=tmp_path / "lineage.jsonl"):
            writer = rows.writeStream.format("kafka_py").options(**brokers, topic="out").queryName("all-orders")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        kinesis_host = kinesis.url.removeprefix("http://")
    events = events_in(tmp_path / "lineage.jsonl")
    known = [
        {"namespace": f"kinesis://{kinesis_host}", "name": "views"},
        {"namespace": "pubsub", "name": f"subscription:shop:{tmp_path.name}"},
    ]
    everything = [{"namespace": f"kafka://{kafka.endpoint}", "name": "clicks"}, *known]
    out = [{"namespace": f"kafka://{kafka.endpoint}", "name": "out"}]
    seen = [(event["eventType"], event["inputs"], event["outputs"]) for event in events]
    assert seen == [("START", known, out), ("RUNNING", everything, out), ("COMPLETE", everything, out)]
    assert {(event["run"]["runId"], event["job"]["name"]) for event in events} == {(str(query.runId), "all-orders")}


def test_a_query_that_fails_ends_with_fail_and_its_next_run_is_another(
    spark: SparkSession, server: PubSubServer, tmp_path: Path
) -> None:
    def write(_: DataFrame, number: int) -> None:
        message = f"{SECRET} in batch {number}"
        raise ValueError(message)

    rows = messages(spark, server, tmp_path)
    runs = []
    with watch(spark, lineage=tmp_path / "lineage.jsonl"):
        for _ in range(2):
            writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            runs += [str(query.runId)] * 2
            with pytest.raises(StreamingQueryException):
                query.awaitTermination()
    events = events_in(tmp_path / "lineage.jsonl")
    assert [event["eventType"] for event in events] == ["START", "FAIL"] * 2
    assert [event["run"]["runId"] for event in events] == runs
    assert {event["job"]["name"] for event in events} == {str(query.id)}
    for event in events:
        assert event["inputs"] == [{"namespace": "pubsub", "name": f"subscription:shop:{tmp_path.name}"}]
        assert event["outputs"] == []


def test_a_query_that_ran_before_and_one_that_writes_files_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate").load()
    before = rows.writeStream.format("noop").queryName("before").start()
    with watch(spark, lineage=tmp_path / "lineage.jsonl"):
        writer = rows.writeStream.format("parquet").queryName("files")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "out"))
        query.stop()
        before.stop()
    events = events_in(tmp_path / "lineage.jsonl")
    by_job = {
        job: [event["eventType"] for event in events if event["job"]["name"] == job] for job in ("before", "files")
    }
    assert by_job == {"before": ["START", "COMPLETE"], "files": ["START", "COMPLETE"]}
    outputs = [event["outputs"] for event in events if event["job"]["name"] == "files"]
    assert outputs == [[{"namespace": "file", "name": f"{tmp_path}/out"}]] * 2
