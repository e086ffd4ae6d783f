"""A program that has Spark Connect only, no Java: it reads a Pub/Sub subscription to its end and says what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from connectors import register
from connectors.protobuf import from_protobuf, register_sql, to_protobuf


def read_to_the_end(spark: SparkSession, options: dict[str, str], folder: Path) -> list[str]:
    """The message ids that a stream has brought to a Parquet table."""
    events = spark.readStream.format("pubsub").options(**options).load()
    target = str(folder / "table")
    query = (
        events.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()
    return [row.messageId for row in spark.read.parquet(target).select("messageId").collect()]


def error_of_an_unknown_option(spark: SparkSession, options: dict[str, str]) -> str:
    """What the user is told of a misspelt option."""
    try:
        spark.readStream.format("pubsub").options(**options, spoolLocatoin="elsewhere").load().schema  # noqa: B018
    except Exception as error:  # noqa: BLE001 - whatever Spark makes of it is what is looked at
        return str(error)
    return ""


def through_protobuf(spark: SparkSession, descriptor_set: str) -> list[Any]:
    """Ids that were encoded and decoded."""
    rows = spark.range(3).selectExpr("named_struct('id', cast(id + 1 as string)) as event")
    encoded = rows.select(to_protobuf("event", "Event", descriptor_set).alias("message"))
    decoded = encoded.select(from_protobuf("message", "Event", descriptor_set).alias("event"))
    return [row.id for row in decoded.select("event.id").collect()]


def through_sql(spark: SparkSession, descriptor_set: str) -> list[Any]:
    """Ids that functions of SQL encoded and decoded."""
    register_sql(spark, "event", "Event", descriptor_set)
    encoded = "to_protobuf_event(named_struct('id', cast(id + 1 as string)))"
    return [row.id for row in spark.sql(f"SELECT from_protobuf_event({encoded}).id AS id FROM range(3)").collect()]


def plan_with_a_secret(spark: SparkSession) -> str:
    """Return the plans that Spark prints of a source with a secret option."""
    events = spark.readStream.format("rate").option("privateKey", "canary-9f3").load()
    return str(events._explain_string(extended=True))


def main() -> None:
    """Print one line of JSON."""
    job = json.loads(sys.argv[1])
    spark = SparkSession.builder.remote(job["remote"]).getOrCreate()
    register(spark)
    register(spark)
    found = {
        "session": type(spark).__module__,
        "messages": read_to_the_end(spark, job["options"], Path(job["folder"])),
        "protobuf": through_protobuf(spark, job["descriptor_set"]),
        "sql": through_sql(spark, job["descriptor_set"]),
        "plan": plan_with_a_secret(spark),
        "error": error_of_an_unknown_option(spark, job["options"]),
    }
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
