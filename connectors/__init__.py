"""Streaming sources and sinks for PySpark, without a jar.

    from connectors import register

    register(spark)
    events = spark.readStream.format("pubsub").option(...).load()

Importing this package imports neither Spark nor the SDK of any vendor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["__version__", "register"]

__version__ = "0.1.0"


def register(spark: SparkSession) -> None:
    """Make the formats of this pack known to a session; calling it again changes nothing.

    A format whose extra is not installed is known too, and says so when it is used.

    Args:
        spark: a session of Spark 4.2 or newer.

    Raises:
        ConnectorError: with the code ``SPARK_TOO_OLD``, when the session's Spark has no admission control for
            Python stream readers, which came with 4.2.
    """
    _require_spark(spark.version)
    from connectors.formats import data_sources  # noqa: PLC0415 - so that an import alone stays cheap

    for source in data_sources():
        spark.dataSource.register(source)
    if (spark.conf.get("spark.speculation", None) or "false").lower() == "true":
        # Neither a sink's tasks nor its options say so.
        import logging  # noqa: PLC0415

        logging.getLogger(__name__).warning(
            "[KAFKA_SPECULATION] spark.speculation is on: with deliveryGuarantee=exactly_once, attempts of one task of "
            "kafka_py fence each other. The rows are right, but the attempts can take turns for long; switch it off."
        )


def _require_spark(version: str) -> None:
    """Refuse a Spark older than 4.2, before its missing names fail as an ImportError."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (4, 2):
        from connectors.core.errors import ConnectorError  # noqa: PLC0415 - as above

        raise ConnectorError(
            "SPARK_TOO_OLD",
            f"Spark {version} is too old",
            "register",
            "Use Spark 4.2 or newer: older ones cannot limit what a Python stream reader takes in a batch.",
        )
