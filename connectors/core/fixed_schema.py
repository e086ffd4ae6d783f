"""A source whose columns are its own takes no schema of the user, as Spark's own Kafka source takes none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.core.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["check_schema"]


def check_schema(given: StructType, own: StructType, connector: str) -> None:
    """Refuse a schema that the user has given; where Spark makes a reader is the first place that sees it.

    Args:
        given: what Spark hands over: the source's own, or what came with ``.schema(...)``.
        own: the source's. Whether a column may be null does not count.
        connector: the name of the format.

    Raises:
        OptionError: they differ.
    """
    if given.simpleString() != own.simpleString():
        raise OptionError(
            "SCHEMA_NOT_SUPPORTED",
            f"{connector} source has a fixed schema and cannot be set with a custom one",
            connector,
            f"Leave .schema(...) out, and select or cast columns after load(); they are {own.simpleString()}.",
        )
