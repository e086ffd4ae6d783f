"""A materialized view over the tables: computed again in each run."""

from functools import reduce

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.materialized_view
def totals() -> DataFrame:
    """Rows and different messages per table."""
    tables = [
        spark.read.table(name).selectExpr(f"'{name}' AS source", "id") for name in ("clicks", "payments", "orders")
    ]
    rows = reduce(DataFrame.unionAll, tables)
    return rows.groupBy("source").agg({"id": "count", "*": "count"}).toDF("source", "ids", "messages")
