"""The session of most tests of Spark."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from connectors.cli.demo.job import QUICK_JAVA


def quick_session(settings: Mapping[str, str]) -> SparkSession:
    """Start a session of two cores, with further settings."""
    common = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
    }
    return SparkSession.builder.master("local[2]").config(map={**common, **settings}).getOrCreate()
