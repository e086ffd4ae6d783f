"""Read orders from Pub/Sub as protobuf messages, and write what each customer has spent as protobuf messages.

    pip install '.[spark,pubsub,protobuf,protos,testing]'    # in a clone
    python examples/protobuf_orders.py

Runs by itself, against a Pub/Sub server that comes with the package. With a real subscription, leave out the server
and the option ``endpoint``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors import register
from connectors.protobuf import from_protobuf, to_protobuf
from connectors.testing.pubsub import PubSubServer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.protos import SOURCES, compile_set

TOPIC, SUBSCRIPTION = "projects/shop/topics/orders", "projects/shop/subscriptions/orders"


def totals(orders: DataFrame, descriptors: str) -> DataFrame:
    """Return each customer's total and number of orders, as shop.CustomerTotal messages."""
    decoded = orders.select(from_protobuf("payload", "Order", descriptors, {"mode": "PERMISSIVE"}).alias("order"))
    lines = decoded.where("order IS NOT NULL AND order.status = 'STATUS_PAID'").select(
        "order.*", sf.explode("order.lines").alias("line")
    )
    spent = lines.groupBy("customer").agg(
        sf.approx_count_distinct("order_id").alias("orders"),
        sf.round(sf.sum(sf.expr("line.quantity * line.price")), 2).alias("amount"),
    )
    return spent.select(to_protobuf(sf.struct("*"), "CustomerTotal", descriptors).alias("value"))


def order_bytes(spark: SparkSession, descriptors: str) -> list[bytes]:
    """Return some encoded orders, and one message that is not an order."""
    rows = [
        {
            "order_id": f"o{number}",
            "customer": ["ann", "bob"][number % 2],
            "status": "STATUS_PAID" if number % 5 else "STATUS_CANCELLED",
            "lines": [{"sku": "tea", "quantity": number, "price": 2.5}],
        }
        for number in range(1, 11)
    ]
    kind = (
        "order_id string, customer string, status string, lines array<struct<sku string, quantity int, price double>>"
    )
    made = spark.createDataFrame(rows, kind).select(to_protobuf(sf.struct("*"), "Order", descriptors).alias("value"))
    return [*(bytes(row.value) for row in made.collect()), b"not an order"]


def session() -> SparkSession:
    """Return a local session with the formats of this pack."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def main(spark: SparkSession, folder: Path) -> list[dict[str, object]]:
    """Publish, stream once, and return what was written."""
    register(spark)
    descriptors = str(folder / "orders.desc")
    compile_set(SOURCES / "orders.proto", Path(descriptors), SOURCES)
    with PubSubServer() as server:
        server.create_subscription(SUBSCRIPTION, TOPIC)
        server.publish(TOPIC, order_bytes(spark, descriptors))
        orders = (
            spark.readStream.format("pubsub")
            .option("projectId", "shop")
            .option("subscriptionId", "orders")
            .option("endpoint", server.endpoint)
            .option("spoolLocation", str(folder / "spool"))
            .option("availableNowQuiet", "1s")
            .load()
        )

        def write(batch: DataFrame, batch_id: int) -> None:
            batch.write.mode("overwrite").parquet(str(folder / "out" / str(batch_id)))

        query = (
            totals(orders, descriptors)
            .writeStream.foreachBatch(write)
            .outputMode("complete")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    last = max((folder / "out").iterdir(), key=lambda path: int(path.name))
    written = spark.read.parquet(str(last)).select(from_protobuf("value", "CustomerTotal", descriptors).alias("total"))
    return [row.asDict() for row in written.select("total.*").orderBy("customer").collect()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for total in main(session(), Path(temporary)):
            print(total)
