"""Where Spark finds the format ``pubsub`` by itself: it looks for `DefaultSource` in modules called ``pyspark_*``."""

from __future__ import annotations

from stream_connectors_autoload import StandIn

__all__ = ["DefaultSource"]


class DefaultSource(StandIn):
    """Stands for the source ``pubsub`` until it is used."""

    short_name = "pubsub"
    connector = "pubsub"
