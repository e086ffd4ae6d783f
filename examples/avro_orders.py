"""Read Avro orders that two versions of a program write to Kafka, with a schema registry, into one table.

    pip install '.[spark,kafka,avro,testing]'    # in a clone
    python examples/avro_orders.py

The table has the columns of the newest version; what cannot be read is in it too, with the reason. Runs by itself,
against servers that come with the package. With real ones, leave out the servers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors import register
from connectors.avro import from_avro, to_avro
from connectors.testing.kafka.mock import MockKafka
from connectors.testing.schema_registry import SchemaRegistryServer

ID, AMOUNT = {"name": "id", "type": "string"}, {"name": "amount", "type": "double"}
CURRENCY = {"name": "currency", "type": "string", "default": "EUR"}
VERSIONS = [
    json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})
    for fields in ([ID, AMOUNT], [ID, {**AMOUNT, "name": "total", "aliases": ["amount"]}, CURRENCY])
]
TOLERANT = {"mode": "PERMISSIVE", "on.error": "column"}


def publish(spark: SparkSession, kafka: str, registry: dict[str, str]) -> None:
    """Write two orders with each version of the schema, and a message that is not an order."""
    options = {"topic": "orders", "auto.register.schemas": "true"}
    rows = spark.range(1, 3)
    old = rows.selectExpr("struct(concat('old-', id) AS id, id * 1.5D AS amount) AS order")
    new = rows.selectExpr("struct(concat('new-', id) AS id, id * 2.5D AS total, 'USD' AS currency) AS order")
    for orders, schema in zip((old, new), VERSIONS, strict=True):
        messages = orders.select(to_avro("order", schema, options=options, schemaRegistry=registry).alias("value"))
        writer = messages.write.format("kafka_py").mode("append").option("kafka.bootstrap.servers", kafka)
        writer.option("topic", "orders").save()
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce("orders", b"not an order")
    producer.flush()


def table(records: DataFrame, registry: dict[str, str]) -> DataFrame:
    """Return the orders in the columns of the newest version; rows that cannot be read have the reason."""
    order = from_avro("value", options=TOLERANT, subject="orders-value", schemaRegistry=registry)
    rows = records.select("value", order.alias("order"))
    return rows.select("order.value.*", "order.error", sf.expr("IF(order.error IS NULL, NULL, value)").alias("message"))


def main(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    """Write orders to Kafka, stream them into a table, and return its rows."""
    register(spark)
    with MockKafka() as kafka, SchemaRegistryServer() as server:
        kafka.create_topic("orders", 2)
        registry = {"address": server.address}
        publish(spark, kafka.endpoint, registry)
        records = (
            spark.readStream.format("kafka_py")
            .option("kafka.bootstrap.servers", kafka.endpoint)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            table(records, registry)
            .writeStream.format("parquet")
            .option("path", str(folder / "orders"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    rows = spark.read.parquet(str(folder / "orders")).orderBy("id").collect()
    return [row.asDict() for row in rows]


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()
    with tempfile.TemporaryDirectory() as temporary:
        for found in main(session, Path(temporary)):
            print(found)
