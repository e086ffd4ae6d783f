"""Where Spark finds the format ``kinesis`` by itself: it looks for `DefaultSource` in modules called ``pyspark_*``."""

from __future__ import annotations

from stream_connectors_autoload import StandIn

__all__ = ["DefaultSource"]


class DefaultSource(StandIn):
    """Stands for the source ``kinesis`` until it is used."""

    short_name = "kinesis"
    connector = "kinesis"
