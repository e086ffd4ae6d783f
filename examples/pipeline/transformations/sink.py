"""A sink: a topic of Kafka that takes each new row of a table, at least once if a run breaks off."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from connectors import register

spark = SparkSession.active()
register(spark)  # definition files are loaded in no order, and another call changes nothing

dp.create_sink("clicks_by_kafka", "kafka_py", {"kafka.bootstrap.servers": os.environ["SHOP_KAFKA"], "topic": "clicks"})


@dp.append_flow(target="clicks_by_kafka")
def clicks_to_kafka() -> DataFrame:
    """Each click, by its id."""
    return spark.readStream.table("clicks").selectExpr("id AS key", "text AS value")
