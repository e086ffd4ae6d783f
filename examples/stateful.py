"""Four stateful pipelines, each on a source of this pack: windows, deduplication, totals, and a join.

    pip install '.[spark,kafka,kinesis,pubsub,testing]'    # in a clone
    python examples/stateful.py

The totals use ``transformWithState``, for which Spark needs pandas, and RocksDB as the state store; without pandas they
are skipped. Runs by itself, against servers that come with the package. With real ones, leave out the servers and the
options that name them.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from connectors import register
from connectors.testing.kafka.mock import MockKafka
from connectors.testing.kinesis import KinesisServer
from connectors.testing.pubsub import PubSubServer

TOPIC, SUBSCRIPTIONS = "projects/shop/topics/orders", "projects/shop/subscriptions/"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def visits_by_window(visits: DataFrame) -> DataFrame:
    """Kafka: visits per page in 10-second windows. A window is written when the watermark has passed its end."""
    windows = visits.withWatermark("timestamp", "10 seconds").groupBy(
        sf.window("timestamp", "10 seconds"), sf.col("key").cast("string").alias("page")
    )
    return windows.count().selectExpr("unix_timestamp(window.start) AS start", "page", "count AS visits")


def without_duplicates(orders: DataFrame) -> DataFrame:
    """Pub/Sub: what a producer publishes twice within ten minutes, under two message ids, becomes one row.

    For a longer time, and without state in Spark, give the source the option ``dedupAttribute``.
    """
    named = orders.selectExpr("attributes['order'] AS order", "publishTimestamp", "CAST(payload AS STRING) AS text")
    return named.withWatermark("publishTimestamp", "10 minutes").dropDuplicatesWithinWatermark(["order"])


class Total(StatefulProcessor):  # type: ignore[misc] - Spark's class has no types
    """The sum of a customer's payments, stored from batch to batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._total = handle.getValueState("total", "amount DOUBLE")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002 - Spark's names
        """Add the batch's payments, and yield the new total."""
        kept = self._total.get() if self._total.exists() else (0.0,)
        total = kept[0] + sum(row.amount for row in rows)
        self._total.update((total,))
        yield Row(customer=key[0], total=total)

    def close(self) -> None:
        """Do nothing: nothing is open."""


def totals(payments: DataFrame) -> DataFrame:
    """Kinesis: the total of each customer so far, by ``transformWithState``."""
    amounts = payments.selectExpr("partitionKey AS customer", "CAST(CAST(data AS STRING) AS DOUBLE) AS amount")
    return amounts.groupBy("customer").transformWithState(
        Total(), "customer STRING, total DOUBLE", outputMode="Update", timeMode="None"
    )


def paid_orders(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Pub/Sub and Kafka: each order with its payment, if the payment arrives within an hour."""
    left = orders.selectExpr("attributes['order'] AS order", "publishTimestamp AS ordered")
    right = payments.selectExpr(
        "CAST(key AS STRING) AS paid_order", "timestamp AS paid", "CAST(CAST(value AS STRING) AS INT) AS amount"
    )
    return (
        left.withWatermark("ordered", "1 hour")
        .join(
            right.withWatermark("paid", "1 hour"),
            sf.expr("order = paid_order AND paid BETWEEN ordered - INTERVAL 1 HOUR AND ordered + INTERVAL 1 HOUR"),
        )
        .select("order", "amount")
    )


class Shop:
    """The sources, on servers in this process."""

    def __init__(self, spark: SparkSession, folder: Path, kafka: str, pubsub: str, kinesis: str) -> None:
        self._spark = spark
        self._folder = folder
        self._kafka = kafka
        self._pubsub = pubsub
        self._kinesis = kinesis

    def topic(self, name: str, **options: str) -> DataFrame:
        """Return a stream of a Kafka topic."""
        reader = self._spark.readStream.format("kafka_py").option("kafka.bootstrap.servers", self._kafka)
        return reader.option("subscribe", name).option("startingOffsets", "earliest").options(**options).load()

    def orders(self, subscription: str) -> DataFrame:
        """Return a stream of a Pub/Sub subscription. Each query has its own, with a spool."""
        reader = self._spark.readStream.format("pubsub").option("subscriptionId", SUBSCRIPTIONS + subscription)
        reader = reader.option("endpoint", self._pubsub).option("availableNowQuiet", "1s")
        return reader.option("spoolLocation", str(self._folder / "spools" / subscription)).load()

    def payments(self) -> DataFrame:
        """Return a stream of the Kinesis stream."""
        reader = self._spark.readStream.format("kinesis").option("streamName", "payments")
        reader = reader.option("endpointUrl", self._kinesis).option("initialPosition", "trim_horizon")
        return reader.option("awsAccessKey", "any").option("awsSecretKey", "any").load()

    def run(self, name: str, rows: DataFrame, mode: str = "append") -> list[dict[str, Any]]:
        """Run a pipeline on everything available, and return its rows."""
        out = str(self._folder / name / "out")

        def write(batch: DataFrame, batch_id: int) -> None:
            batch.write.mode("overwrite").parquet(f"{out}/batch={batch_id}")

        query = (
            rows.writeStream.foreachBatch(write)
            .outputMode(mode)
            .option("checkpointLocation", str(self._folder / name / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [row.asDict() for row in self._spark.read.parquet(out).collect()]


def send(kafka: str, topic: str, records: list[tuple[str, str, int]]) -> None:
    """Write keys and values with their times, in milliseconds since 1970."""
    producer = Producer({"bootstrap.servers": kafka})
    for key, value, time_ms in records:
        producer.produce(topic, key=key, value=value, timestamp=time_ms)
    producer.flush()


def main(spark: SparkSession, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Run the pipelines, and return the rows of each."""
    register(spark)
    with MockKafka() as kafka, PubSubServer() as pubsub, KinesisServer() as kinesis:
        kafka.create_topic("visits", 1)
        kafka.create_topic("payments", 1)
        kinesis.create_stream("payments", shards=2)
        for subscription in ("copies", "paid"):
            pubsub.create_subscription(SUBSCRIPTIONS + subscription, TOPIC)
        shop = Shop(spark, folder, kafka.endpoint, pubsub.endpoint, kinesis.url)

        seconds = [*range(30), *range(60, 76)]
        send(kafka.endpoint, "visits", [("home", "", 1_700_000_000_000 + second * 1000) for second in seconds])
        now = int(time.time() * 1000)
        send(kafka.endpoint, "payments", [("o1", "10", now), ("o3", "30", now), ("o9", "90", now)])
        for order in ("o1", "o2", "o1", "o3"):
            pubsub.publish(TOPIC, [b"an order"], {"order": order})
        kinesis.put(
            "payments", [(name, str(amount).encode()) for name, amount in (("ann", 5), ("bob", 7), ("ann", 20))]
        )

        found = {
            "windows": shop.run("windows", visits_by_window(shop.topic("visits", maxOffsetsPerTrigger="15"))),
            "copies": shop.run("copies", without_duplicates(shop.orders("copies"))),
            "paid": shop.run("paid", paid_orders(shop.orders("paid"), shop.topic("payments"))),
        }
        if importlib.util.find_spec("pandas") is not None:
            found["totals"] = shop.run("totals", totals(shop.payments()), "update")
        return found


def session() -> SparkSession:
    """Return a local session."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for pipeline, found in main(session(), Path(temporary)).items():
            print(pipeline)
            for row in found:
                print("  ", row)
