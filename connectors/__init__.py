"""Streaming sources and sinks for PySpark, without a jar.

    from connectors import register

    register(spark)
    events = spark.readStream.format("pubsub").option(...).load()

Importing this package imports neither Spark nor the SDK of any vendor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import SparkSession

    from connectors.core.options import builders as options

__all__ = ["__version__", "options", "register"]

__version__ = "0.1.0"


def register(spark: SparkSession) -> None:
    """Register the formats of this pack with a session; calling it again changes nothing.

    A format whose extra is not installed is registered too, and raises an error that says so when it is used. Secret
    options are added to ``spark.sql.redaction.options.regex``, so that Spark shows them in no plan and no error. If a
    session does not let that be set, the formats warn of options that contain a secret in plain text. With a master
    ``local`` and no PYSPARK_PYTHON, tasks run on the Python of this program.

    Raises:
        ConnectorError: with the code ``SPARK_TOO_OLD``, when the session's Spark is older than 4.0, and
            ``SPARK_MISSING``, when this Python has none.
    """
    from connectors.core.formats import (  # noqa: PLC0415 - as above
        CONNECTORS,
        data_source,
        spark_imports,
    )

    with spark_imports("register"):
        from connectors.core.datasource import showing_secrets  # noqa: PLC0415 - as above
        from connectors.core.session import prepare_session  # noqa: PLC0415 - as above

    hidden = prepare_session(spark)
    for connector in CONNECTORS:
        source = data_source(connector.package)
        spark.dataSource.register(source if hidden else showing_secrets(source))


def __getattr__(name: str) -> ModuleType:
    """Import `connectors.options` when it is first used, so that an import of the package alone stays cheap."""
    if name == "options":
        from connectors.core.options import builders  # noqa: PLC0415 - as above

        return builders
    raise AttributeError(name)
