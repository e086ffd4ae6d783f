"""Where Spark finds the format ``kafka_py`` by itself: it looks for `DefaultSource` in modules called ``pyspark_*``."""

from __future__ import annotations

from stream_connectors_autoload import StandIn

__all__ = ["DefaultSource"]


class DefaultSource(StandIn):
    """Stands for the source ``kafka_py`` until it is used."""

    short_name = "kafka_py"
    connector = "kafka"
