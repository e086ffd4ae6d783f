"""Write orders from Kafka to a Delta table with foreachBatch and delta-rs: no jar, and a repeated batch is skipped.

    pip install '.[spark,kafka]' deltalake    # in a clone
    python examples/lakehouse.py

Runs by itself, against a Kafka cluster that comes with the package. With a real one, leave out the server. A batch
passes through the driver: it must fit there, and below ``spark.driver.maxResultSize``; ``maxOffsetsPerTrigger`` says
how large it may be.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from connectors import register
from connectors.testing.kafka.mock import MockKafka


def delta_writer(location: str, query: str) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch that writes each batch into a Delta table once.

    Args:
        location: of the table; it is created with the first batch.
        query: names the checkpoint in the table's log; another one with another checkpoint.
    """

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.toArrow()
        # The commit is checked against the version of this object: it fails if another writer of this query commits
        # in between. With the location in its place it would not fail.
        table = DeltaTable.create(location, rows.schema, mode="ignore")
        done = table.transaction_version(query)
        if done is not None and done >= batch_id:
            return
        once = CommitProperties(app_transactions=[Transaction(query, batch_id)])
        write_deltalake(table, rows, mode="append", commit_properties=once)

    return write


def stream(spark: SparkSession, servers: str, folder: Path) -> None:
    """Write what is available, then end. The next run resumes where this one stopped."""
    orders = (
        spark.readStream.format("kafka_py")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "40")
        .load()
    )
    query = (
        orders.selectExpr("partition", "offset", "CAST(value AS STRING) AS text")
        .writeStream.foreachBatch(delta_writer(str(folder / "orders"), "orders-v1"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(spark: SparkSession, folder: Path) -> list[str]:
    """Write 100 orders, forget the last commit as a crash would, run again, and return the texts in the table."""
    register(spark)
    with MockKafka() as kafka:
        kafka.create_topic("orders", 2)
        producer = Producer({"bootstrap.servers": kafka.endpoint})
        for number in range(100):
            producer.produce("orders", f"order {number:02d}", partition=number % 2)
        producer.flush()
        stream(spark, kafka.endpoint, folder)
        commits = sorted((folder / "checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
        for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
            path.unlink(missing_ok=True)
        stream(spark, kafka.endpoint, folder)
    texts = DeltaTable(folder / "orders").to_pyarrow_table(columns=["text"])["text"]
    return sorted(texts.to_pylist())


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()
    with tempfile.TemporaryDirectory() as temporary:
        found = main(session, Path(temporary))
        print(f"{len(found)} rows, {len(set(found))} different")
