"""Write orders from Pub/Sub to Parquet with foreachBatch: one folder per batch, which a repeated batch replaces.

    pip install '.[spark,pubsub,testing]'    # in a clone
    python examples/pubsub_to_parquet.py

Runs by itself, against a Pub/Sub server that comes with the package. With a real subscription, leave out the server
and the option ``endpoint``. For Delta see lakehouse.py.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from connectors import register
from connectors.testing.pubsub import PubSubServer

TOPIC, SUBSCRIPTION = "projects/shop/topics/orders", "projects/shop/subscriptions/orders"


def stream(spark: SparkSession, endpoint: str, folder: Path) -> None:
    """Write what is available, then end. The next run resumes where this one stopped."""
    out = str(folder / "orders")

    def write(batch: DataFrame, batch_id: int) -> None:
        # With a new checkpoint, batches count from 0 again: use a new run too, or they replace the old run's batches.
        batch.write.mode("overwrite").parquet(f"{out}/run=v1/batch={batch_id}")

    orders = (
        spark.readStream.format("pubsub")
        .option("subscriptionId", SUBSCRIPTION)
        .option("endpoint", endpoint)
        .option("spoolLocation", str(folder / "spool"))
        .option("maxRecordsPerTrigger", "40")
        .option("availableNowQuiet", "1s")
        .load()
    )
    query = (
        orders.selectExpr("offset", "messageId", "CAST(payload AS STRING) AS text")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(spark: SparkSession, folder: Path) -> list[int]:
    """Write 100 orders, forget the last commit as a crash would, run again, and return the offsets of the rows."""
    register(spark)
    with PubSubServer() as server:
        server.create_subscription(SUBSCRIPTION, TOPIC)
        server.publish(TOPIC, [b"order %d" % number for number in range(100)])
        stream(spark, server.endpoint, folder)
        commits = sorted((folder / "checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
        for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
            path.unlink(missing_ok=True)
        stream(spark, server.endpoint, folder)
    rows = spark.read.parquet(str(folder / "orders"))
    return sorted(row.offset for row in rows.select("offset").collect())


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()
    with tempfile.TemporaryDirectory() as temporary:
        found = main(session, Path(temporary))
        print(f"{len(found)} rows, {len(set(found))} different")
