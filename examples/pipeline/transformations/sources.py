"""A streaming table for each source: every message is in exactly one row, however often the pipeline runs."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from connectors import register

spark = SparkSession.active()
register(spark)


@dp.table
def clicks() -> DataFrame:
    """Clicks from Pub/Sub."""
    return (
        spark.readStream.format("pubsub")
        .option("subscriptionId", "projects/shop/subscriptions/clicks")
        .option("endpoint", os.environ["SHOP_PUBSUB"])
        .option("spoolLocation", os.environ["SHOP_SPOOL"])
        .option("availableNow", "true")  # Spark 4.1 does not say that a run is bounded
        .option("availableNowQuiet", "5s")
        .load()
        .selectExpr("messageId AS id", "CAST(payload AS STRING) AS text")
    )


@dp.table
def payments() -> DataFrame:
    """Payments from Kinesis."""
    return (
        spark.readStream.format("kinesis")
        .option("streamName", "payments")
        .option("endpointUrl", os.environ["SHOP_KINESIS"])
        .option("region", "us-east-1")
        .option("awsAccessKey", "env:SHOP_KEY")  # a secret's place, not the secret: the definitions never hold it
        .option("awsSecretKey", "env:SHOP_KEY")
        .option("initialPosition", "trim_horizon")
        .option("availableNow", "true")
        .load()
        .selectExpr("sequenceNumber AS id", "CAST(data AS STRING) AS text")
    )


@dp.table
def orders() -> DataFrame:
    """Orders from Kafka."""
    return (
        spark.readStream.format("kafka_py")
        .option("kafka.bootstrap.servers", os.environ["SHOP_KAFKA"])
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("availableNow", "true")
        .load()
        .selectExpr("concat(partition, '/', offset) AS id", "CAST(value AS STRING) AS text")
    )
