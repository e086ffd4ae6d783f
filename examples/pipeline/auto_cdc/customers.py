"""Customers as the last change of each leaves them, from a compacted topic; for Spark 4.2 and tables that take MERGE.

No part of spark-pipeline.yml: docs/how-to/pipelines.md says which tables were tried.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from connectors import register

spark = SparkSession.active()
register(spark)


@dp.temporary_view
def changes() -> DataFrame:
    """Each change, by the offset that orders those of one customer; a record without a value deletes."""
    return (
        spark.readStream.format("kafka_py")
        .option("kafka.bootstrap.servers", os.environ["SHOP_KAFKA"])
        .option("subscribe", "customers")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(
            "CAST(key AS STRING) AS id", "CAST(value AS STRING) AS name", "offset AS version", "value IS NULL AS gone"
        )
    )


dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers",
    source="changes",
    keys=["id"],
    sequence_by="version",
    apply_as_deletes="gone",
    except_column_list=["gone"],
    stored_as_scd_type=1,
)
