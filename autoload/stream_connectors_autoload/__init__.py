"""What the modules ``pyspark_*`` of this distribution share; not called by users."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource

__all__ = ["StandIn", "__version__"]

__version__ = "0.1.0"


class StandIn(DataSource):
    """A data source by name only: to make one makes the source of the pack, which is imported then.

    Spark pickles the class where it looks for sources, and calls it, with the options, in each process that needs one.
    """

    short_name: ClassVar[str]
    """The name of the format."""
    connector: ClassVar[str]
    """The folder of the pack that it is in, which is also the name of its extra."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return cls.short_name

    def __new__(cls, options: dict[str, str]) -> Any:
        """The source of the pack.

        Args:
            options: of the source.

        Raises:
            ImportError: the pack cannot be imported in this process.
            ConnectorError: what this source needs is not installed, or its options are not good.
        """
        try:
            source = importlib.import_module("connectors.core.formats").data_source(cls.connector)
        except ImportError as error:
            raise ImportError(
                f"[AUTOLOAD_SOURCE_UNAVAILABLE] The format {cls.short_name} cannot be loaded: {error}. "
                f"Install pyspark-stream-connectors[{cls.connector}] as it was installed elsewhere (in a clone of it: "
                f"pip install '.[{cls.connector}]'), here and on every executor; "
                "`connectors doctor` finds what else it may be."
            ) from error
        return source(options)
