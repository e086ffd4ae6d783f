"""Streaming sources and sinks for PySpark, without a jar.

    from connectors import register

    register(spark)
    events = spark.readStream.format("pubsub").option(...).load()

Importing this package imports neither Spark nor the SDK of any vendor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.core.errors import ConnectorError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["__version__", "register"]

__version__ = "0.1.0"


def register(spark: SparkSession) -> None:
    """Register the formats of this pack with a session; calling it again changes nothing.

    A format whose extra is not installed is registered too, and says so when it is used. Secret options are added to
    ``spark.sql.redaction.options.regex``, so that Spark shows them in no plan and no error. With a master ``local`` and
    no PYSPARK_PYTHON, tasks run on the Python of this program.

    Args:
        spark: a session of Spark 4.2 or newer.

    Raises:
        ConnectorError: with the code ``SPARK_TOO_OLD``, when the session's Spark has no admission control for
            Python stream readers, which came with 4.2.
    """
    _require_spark(spark.version)
    from connectors.core.formats import data_sources  # noqa: PLC0415 - so that an import alone stays cheap
    from connectors.session import prepare_session  # noqa: PLC0415 - as above

    prepare_session(spark)
    for source in data_sources():
        spark.dataSource.register(source)


def _require_spark(version: str) -> None:
    """Refuse a Spark older than 4.2, before its missing names fail as an ImportError."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (4, 2):
        raise ConnectorError(
            "SPARK_TOO_OLD",
            f"Spark {version} is too old",
            "register",
            "Use Spark 4.2 or newer: older ones cannot limit what a Python stream reader takes in a batch.",
        )
