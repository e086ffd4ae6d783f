"""Google Cloud Pub/Sub as a source and a sink of Spark; ``datasource`` has the classes that Spark builds."""

from typing import Final

FORMAT: Final = "pubsub"
"""The name of the format."""
