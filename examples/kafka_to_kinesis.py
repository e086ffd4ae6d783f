"""Stream paid orders from Kafka to Kinesis, keyed by customer, as protobuf messages on both sides.

    pip install '.[spark,kafka,kinesis,protobuf,protos,testing]'    # in a clone
    python examples/kafka_to_kinesis.py

Runs by itself, against servers that come with the package. With real ones, leave out the servers, ``endpointUrl`` and
the keys.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors import register
from connectors.protobuf import from_protobuf, to_protobuf
from connectors.testing.kafka.mock import MockKafka
from connectors.testing.kinesis import KinesisServer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.protos import SOURCES, compile_set


def paid(records: DataFrame, descriptors: str) -> DataFrame:
    """Return the columns of the sink: the customer as the key, the order as the data."""
    order = from_protobuf("value", "Order", descriptors, {"mode": "PERMISSIVE"})
    orders = records.select(order.alias("order")).where("order.status = 'STATUS_PAID'")
    return orders.select(
        sf.col("order.customer").alias("partitionKey"), to_protobuf("order", "Order", descriptors).alias("data")
    )


def main(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    """Write ten orders to Kafka, stream them to Kinesis, and read them there."""
    register(spark)
    descriptors = str(folder / "orders.desc")
    compile_set(SOURCES / "orders.proto", Path(descriptors), SOURCES)
    with MockKafka() as kafka, KinesisServer() as kinesis:
        kafka.create_topic("orders", 2)
        kinesis.create_stream("paid-orders", shards=2)
        login = {"endpointUrl": kinesis.url, "awsAccessKey": "any", "awsSecretKey": "any"}

        made = spark.range(10).selectExpr(
            "concat('o', id) AS order_id",
            "element_at(array('ann', 'bob'), CAST(id % 2 AS INT) + 1) AS customer",
            "IF(id % 5 = 0, 'STATUS_CANCELLED', 'STATUS_PAID') AS status",
        )
        producer = Producer({"bootstrap.servers": kafka.endpoint})
        for row in made.select(to_protobuf(sf.struct("*"), "Order", descriptors).alias("value")).collect():
            producer.produce("orders", bytes(row.value))
        producer.flush()

        records = (
            spark.readStream.format("kafka_py")
            .option("kafka.bootstrap.servers", kafka.endpoint)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            paid(records, descriptors)
            .writeStream.format("kinesis")
            .options(streamName="paid-orders", **login)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

        written = spark.read.format("kinesis").options(streamName="paid-orders", **login).load()
        orders = written.select("partitionKey", from_protobuf("data", "Order", descriptors).alias("order"))
        rows = orders.select("partitionKey", "order.order_id").orderBy("order_id").collect()
    return [row.asDict() for row in rows]


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()
    with tempfile.TemporaryDirectory() as temporary:
        for found in main(session, Path(temporary)):
            print(found)
