"""The first job of a new user, run by the Python of an environment that has the wheel and nothing of this tree.

Publishes to the server that comes with the pack, and streams into a table as the README does. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

import connectors
from connectors import register
from connectors.testing.pubsub import PubSubServer

MESSAGES = 200
_SECONDS = 120


def main() -> None:
    """Run it in the working folder, which is empty."""
    with PubSubServer() as server:
        server.create_subscription("projects/shop/subscriptions/orders", "projects/shop/topics/orders")
        published = server.publish("projects/shop/topics/orders", [b"order"] * MESSAGES)
        os.environ["PUBSUB_EMULATOR_HOST"] = server.endpoint
        # Only now, so that the JVM and all of its workers have that variable.
        from pyspark.sql import SparkSession  # noqa: PLC0415

        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        register(spark)
        events = (
            spark.readStream.format("pubsub")
            .option("projectId", "shop")
            .option("subscriptionId", "orders")
            .option("spoolLocation", str(Path.cwd() / "spool"))
            .load()
        )
        query = events.writeStream.option("checkpointLocation", str(Path.cwd() / "checkpoint")).toTable("orders")
        end = time.monotonic() + _SECONDS
        while spark.table("orders").count() < MESSAGES and query.isActive and time.monotonic() < end:
            query.processAllAvailable()
        query.stop()
        ids = [row.messageId for row in spark.table("orders").select("messageId").collect()]
        spark.stop()
    found = {
        "pack": connectors.__file__,
        "versions": {name: version(name) for name in ("pyspark", "pyarrow", "numpy", "grpcio", "protobuf")},
        "published": len(published),
        "lost": len(set(published) - set(ids)),
        "doubled": len(ids) - len(set(ids)),
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
